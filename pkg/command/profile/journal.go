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
	"github.com/gfaas/gfaas/pkg/measure"
	"github.com/gfaas/gfaas/pkg/outfile"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// openOutput opens the journal and returns what it already has of the job.
func (o *runOptions) openOutput() (journal, map[measure.Point]profile.Row, error) {
	path := o.file()
	for _, file := range []string{path, o.junit, o.env.OutFile} {
		if err := outfile.CheckCreatable(file); err != nil {
			return nil, nil, err
		}
	}
	switch {
	case o.resume != "":
		p, out, err := resume(path, o.Form())
		if err != nil {
			return nil, nil, err
		}
		if p.torn {
			o.env.Notef("%s ends in a part of a line: it is dropped", path)
		}
		old, err := o.EarlierRows(p.rows, path)
		if n := o.CountWithoutGoodput(old); n > 0 {
			o.env.Notef("%d rows of %s have no goodput for the objective of this run, and stay as they are", n, path)
		}
		return out, old, err
	case path != "":
		out, err := begin(path, o.Form())
		return out, nil, err
	case o.env.Output == "csv":
		return &stream{out: o.env.Out, form: o.Form()}, nil, nil
	}
	return discard{}, nil, nil
}

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
	form  profile.Form
	begun bool
}

func (s *stream) Append(row profile.Row) error {
	text, err := csvLines(s.form, !s.begun, row)
	if err != nil {
		return err
	}
	s.begun = true
	_, err = s.out.Write(text)
	return err
}

func (s *stream) Close() error { return nil }

// fileJournal appends rows to a CSV file and syncs each. A new file is created,
// and replaces an older one, with its first row: a run that measures nothing
// destroys nothing.
type fileJournal struct {
	path string
	form profile.Form
	size int64          // of what is kept of an older file
	keep bool           // the older file is appended to
	file *os.File       // nil until the first row
	old  []profile.Row  // of an older file with other columns, written again with the first row
	raw  bool           // the path is a pipe or a device: nothing to replace or sync
	lock *lockfile.Lock // on the older file; nil if there is none
	none bool           // there was none, so none that another run made is replaced
}

func (j *fileJournal) Append(row profile.Row) error {
	if j.file == nil && !j.keep {
		text, err := csvLines(j.form, true, append(j.old, row)...)
		if err != nil {
			return err
		}
		return j.create(text)
	}
	text, err := csvLines(j.form, false, row)
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

// create writes the first lines beside the file and moves them into place.
func (j *fileJournal) create(text []byte) (err error) {
	path, replace := outfile.Target(j.path)
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
	if !j.none {
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
	if j.lock != nil {
		errs = append(errs, j.lock.Close())
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
func csvLines(form profile.Form, header bool, rows ...profile.Row) ([]byte, error) {
	var buf bytes.Buffer
	w := csv.NewWriter(&buf)
	if header {
		_ = w.Write(form.Header())
	}
	for _, row := range rows {
		_ = w.Write(form.Record(row))
	}
	w.Flush()
	return buf.Bytes(), w.Error()
}

// earlier is what an earlier run left in the file to resume.
type earlier struct {
	rows []profile.Row
	size int64        // of the whole lines
	torn bool         // the file ended in a part of a line
	same bool         // its columns are those that rows are written with now
	form profile.Form // how rows are written now: with what it has, and what they need
}

// readBack is what a file that is gone on with has.
func readBack(path string) ([]byte, error) {
	// Looked at first: a device or a pipe may have no end.
	there, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !there.Mode().IsRegular():
		return nil, cli.Usagef("%s is not a regular file: rows cannot be read back from it and appended", path)
	case there.Size() > textfile.MaxFile:
		return nil, fmt.Errorf("%s has %d bytes, expected at most %d", path, there.Size(), textfile.MaxFile)
	}
	return os.ReadFile(path)
}

// readEarlier reads the file of an earlier run. A file that does not exist, or
// that was torn before its header was whole, has no rows. Rows that come need the
// form.
func readEarlier(path string, form profile.Form) (earlier, error) {
	data, err := readBack(path)
	if errors.Is(err, fs.ErrNotExist) {
		return earlier{form: form}, nil
	}
	if err != nil {
		return earlier{}, err
	}
	whole := data[:bytes.LastIndexByte(data, '\n')+1]
	p := earlier{size: int64(len(whole)), torn: len(whole) < len(data), form: form}
	if len(whole) == 0 {
		return p, nil
	}
	header, err := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(whole, []byte("\uFEFF")))).Read()
	if err == nil {
		basic, all := profile.Form{}.Header(), profile.Whole.Header()
		p.form.Goodput = form.Goodput || slices.ContainsFunc(all[len(basic):], func(name string) bool { return slices.Contains(header, name) })
		p.same = slices.Equal(header, p.form.Header())
		if strange := slices.IndexFunc(header, func(name string) bool { return !slices.Contains(all, name) }); strange >= 0 {
			return p, fmt.Errorf("%s:1: %s: not a column that gfaas-profile writes, so going on would lose it: expected of %s",
				path, header[strange], strings.Join(all, ","))
		}
	}
	p.rows, err = profile.Read(bytes.NewReader(whole), path)
	return p, err
}

// resume locks the file of an earlier run against others that append to it, and
// reads what is in it. The caller closes the journal, which takes rows of the form.
func resume(path string, form profile.Form) (earlier, *fileJournal, error) {
	lock, there, err := lockResults(path)
	if err != nil {
		return earlier{}, nil, err
	}
	p, err := readEarlier(path, form)
	j := p.journal(path)
	j.lock, j.none = lock, !there
	if err != nil {
		_ = j.Close()
		return earlier{}, nil, err
	}
	return p, j, nil
}

// begin replaces the file, if there is one, unless another run writes to it.
func begin(path string, form profile.Form) (journal, error) {
	lock, there, err := lockResults(path)
	if err != nil {
		return nil, err
	}
	return &fileJournal{path: path, form: form, lock: lock, none: !there}, nil
}

// journal appends to the file.
func (p earlier) journal(path string) *fileJournal {
	j := &fileJournal{path: path, size: p.size, form: p.form, keep: p.size > 0 && p.same}
	if !p.same {
		j.old = p.rows
	}
	return j
}

// lockResults locks the file of an earlier run, if there is one, until it is
// closed: of two that append to it neither would see where the other is. Not
// every file system has locks: without, there is a file and no lock.
func lockResults(path string) (l *lockfile.Lock, there bool, err error) {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return nil, false, nil // reading it says what is wrong, if anything
	}
	l, err = lockfile.TakeExisting(path)
	var other *lockfile.HeldError
	switch {
	case errors.As(err, &other):
		return nil, true, inUse(path)
	case errors.Is(err, fs.ErrNotExist):
		return nil, false, nil
	}
	return l, true, nil
}

func inUse(path string) error {
	return cli.Fail(cli.ExitLocked, "wait until it is done, or name another file",
		fmt.Errorf("another gfaas-profile writes to %s: their rows would be lost", path))
}
