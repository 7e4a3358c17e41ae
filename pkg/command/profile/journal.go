package profile

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/lockfile"
	"github.com/gfaas/gfaas/pkg/profile"
)

// journal takes each row as soon as it is measured.
type journal interface {
	Append(profile.Row) error
	Close() error
}

// discard is the journal of a run that prints its rows at the end only.
type discard struct{}

func (discard) Append(profile.Row) error { return nil }
func (discard) Close() error             { return nil }

// stream writes rows as CSV lines, the header before the first.
type stream struct {
	out   io.Writer
	begun bool
}

func (s *stream) Append(row profile.Row) error {
	text, err := csvLines(!s.begun, row)
	if err != nil {
		return err
	}
	s.begun = true
	_, err = s.out.Write(text)
	return err
}

func (s *stream) Close() error { return nil }

// fileJournal appends rows to a CSV file and syncs each. A file that is begun
// anew appears, and replaces an older one, with its first row: a run that
// measures nothing destroys nothing.
type fileJournal struct {
	path string
	size int64          // of what is kept of an older file
	keep bool           // the older file is appended to
	file *os.File       // nil until the first row
	old  []profile.Row  // of an older file with other columns, written anew with the first row
	raw  bool           // the path is a pipe or a device: nothing to replace or sync
	held *lockfile.Lock // on the older file that is gone on with; nil if there is none
	anew bool           // there was none to go on with, and nobody else's is replaced
}

func (j *fileJournal) Append(row profile.Row) error {
	if j.file == nil && !j.keep {
		text, err := csvLines(true, append(j.old, row)...)
		if err != nil {
			return err
		}
		return j.create(text)
	}
	text, err := csvLines(false, row)
	if err != nil {
		return err
	}
	if j.file == nil {
		if err := j.reopen(); err != nil {
			return err
		}
	}
	// One write, so that a kill tears at most the last line.
	if _, err := j.file.Write(text); err != nil || j.raw {
		return err
	}
	return j.file.Sync()
}

// creatable says whether a file that is written when something was measured can
// be: better before that than after.
func creatable(path string) error {
	target, replace := cli.Target(path)
	if there, err := os.Stat(target); err == nil && there.IsDir() {
		return fmt.Errorf("%s is a folder, expected a file", path)
	}
	if !replace {
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(target), "."+filepath.Base(target)+".*")
	if err != nil {
		var at *fs.PathError
		if errors.As(err, &at) {
			err = &fs.PathError{Op: "write", Path: path, Err: at.Err} // the file is another's name
		}
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// create writes the first lines beside the file and moves them into place.
func (j *fileJournal) create(text []byte) (err error) {
	path, replace := cli.Target(j.path)
	if !replace {
		j.raw = true
		if j.file, err = os.OpenFile(path, os.O_WRONLY, 0); err == nil {
			_, err = j.file.Write(text)
		}
		return err
	}
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	if err = f.Chmod(0o644); err != nil {
		return err
	}
	if _, err = f.Write(text); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = j.place(f, path); err != nil {
		return err
	}
	j.file = f
	return syncDir(dir)
}

// place gives the file that was begun its name, locked like the one that it
// replaces.
func (j *fileJournal) place(f *os.File, path string) error {
	_ = lockfile.Hold(f) // nobody else knows it
	if !j.anew {
		return os.Rename(f.Name(), path)
	}
	err := unix.Renameat2(unix.AT_FDCWD, f.Name(), unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
	switch {
	case errors.Is(err, unix.EEXIST):
		return inUse(path)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS): // not on this file system
		return os.Rename(f.Name(), path)
	}
	return err
}

// reopen continues the older file behind its last whole line.
func (j *fileJournal) reopen() error {
	f, err := os.OpenFile(j.path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if err := f.Truncate(j.size); err != nil {
		return errors.Join(err, f.Close())
	}
	if _, err := f.Seek(j.size, io.SeekStart); err != nil {
		return errors.Join(err, f.Close())
	}
	j.file = f
	return nil
}

func (j *fileJournal) Close() error {
	var errs []error
	if j.file != nil {
		errs = append(errs, j.file.Close())
	}
	if j.held != nil {
		errs = append(errs, j.held.Close())
	}
	return errors.Join(errs...)
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// csvLines are rows as CSV lines, with the header before them if asked for.
func csvLines(header bool, rows ...profile.Row) ([]byte, error) {
	var buf bytes.Buffer
	w := csv.NewWriter(&buf)
	if header {
		_ = w.Write(profile.Header())
	}
	for _, row := range rows {
		_ = w.Write(profile.Record(row))
	}
	w.Flush()
	return buf.Bytes(), w.Error()
}

// past is what an earlier run left in the file to resume.
type past struct {
	rows []profile.Row
	size int64 // of the whole lines
	torn bool  // the file ended in a part of a line
	same bool  // its columns are those that rows are written with now
}

// readPast reads the file of an earlier run. A file that does not exist, or
// that was torn before its header was whole, has no rows.
func readPast(path string) (past, error) {
	// Looked at first: a device or a pipe may have no end.
	if there, err := os.Stat(path); err == nil && !there.Mode().IsRegular() {
		return past{}, cli.Usagef("%s is not a regular file: rows cannot be read back from it and appended", path)
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return past{}, nil
	}
	if err != nil {
		return past{}, err
	}
	whole := data[:bytes.LastIndexByte(data, '\n')+1]
	p := past{size: int64(len(whole)), torn: len(whole) < len(data)}
	if len(whole) == 0 {
		return p, nil
	}
	header, err := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(whole, []byte("\uFEFF")))).Read()
	if err == nil {
		p.same = slices.Equal(header, profile.Header())
		if strange := slices.IndexFunc(header, func(name string) bool { return !slices.Contains(profile.Header(), name) }); strange >= 0 {
			return p, fmt.Errorf("%s:1: %s: not a column that gfaas-profile writes, so going on would lose it: expected of %s",
				path, header[strange], strings.Join(profile.Header(), ","))
		}
	}
	p.rows, err = profile.Read(bytes.NewReader(whole), path)
	return p, err
}

// goOn locks the file of an earlier run, so that no other goes on with it too, and
// reads what is in it. The caller closes the journal.
func goOn(path string) (past, *fileJournal, error) {
	held, there, err := lockResults(path)
	if err != nil {
		return past{}, nil, err
	}
	p, err := readPast(path)
	j := p.journal(path)
	j.held, j.anew = held, !there
	if err != nil {
		_ = j.Close()
		return past{}, nil, err
	}
	return p, j, nil
}

// journal goes on with the file.
func (p past) journal(path string) *fileJournal {
	j := &fileJournal{path: path, size: p.size, keep: p.size > 0 && p.same}
	if !p.same {
		j.old = p.rows
	}
	return j
}
