package journal

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

	"github.com/gfaas/gfaas/pkg/lockfile"
	"github.com/gfaas/gfaas/pkg/outfile"
	"github.com/gfaas/gfaas/pkg/owndir"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// Writer is a measure.RowWriter that the caller closes after the run.
type Writer interface {
	Append(row profile.Row) error
	Close() error
}

// Stream is a Writer of CSV lines, with the header before the first row. Close does
// not close the underlying writer.
type Stream struct {
	out   io.Writer
	form  profile.Form
	begun bool
}

// NewStream returns a stream of rows of the form to out.
func NewStream(out io.Writer, form profile.Form) *Stream { return &Stream{out: out, form: form} }

// Append writes a row.
func (s *Stream) Append(row profile.Row) error {
	text, err := csvLines(s.form, !s.begun, row)
	if err != nil {
		return err
	}
	s.begun = true
	_, err = s.out.Write(text)
	return err
}

// Close returns nil.
func (s *Stream) Close() error { return nil }

// File is a Writer that appends rows to a CSV file and syncs each. It creates the
// file, or replaces an older one, with the first row.
type File struct {
	path      string
	form      profile.Form
	size      int64          // of the kept part of an older file
	appending bool           // rows are appended to the older file
	file      *os.File       // nil until the first row
	old       []profile.Row  // of an older file with other columns, written again with the first row
	raw       bool           // the path is a pipe or a device, which is neither replaced nor synced
	lock      *lockfile.Lock // on the older file; nil if there is none
	absent    bool           // there was no file, so a file of another run is not replaced
}

// Append writes a row and syncs the file.
func (j *File) Append(row profile.Row) error {
	if j.file == nil && !j.appending {
		text, err := csvLines(j.form, withHeader, append(j.old, row)...)
		if err != nil {
			return err
		}
		return j.create(text)
	}
	text, err := csvLines(j.form, withoutHeader, row)
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

// create writes the first lines to a temporary file and renames it to the path.
func (j *File) create(text []byte) (err error) {
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
	return owndir.Sync(dir)
}

// place renames the temporary file to the path, locked like the file that it replaces.
// It returns an *InUseError if another run created the file meanwhile.
func (j *File) place(f *os.File, path string) error {
	_ = lockfile.Flock(f) // cannot fail: no other process knows the file
	if !j.absent {
		return os.Rename(f.Name(), path)
	}
	err := unix.Renameat2(unix.AT_FDCWD, f.Name(), unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
	switch {
	case errors.Is(err, unix.EEXIST):
		return &InUseError{path}
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS): // the file system lacks it
		return os.Rename(f.Name(), path)
	}
	return err
}

// reopen opens the older file and truncates it after its last whole line.
func (j *File) reopen() error {
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

// Close closes the file and releases its lock.
func (j *File) Close() error {
	var errs []error
	if j.file != nil {
		errs = append(errs, j.file.Close())
	}
	if j.lock != nil {
		errs = append(errs, j.lock.Close())
	}
	return errors.Join(errs...)
}

// Values of the argument header of csvLines.
const (
	withHeader    = true
	withoutHeader = false
)

// csvLines returns rows as CSV, with or without a header.
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

// Earlier is the content of a file to resume.
type Earlier struct {
	Rows []profile.Row
	Torn bool // the file ends with an incomplete line, which will be dropped

	size int64        // of the whole lines
	same bool         // the file has the columns of form
	form profile.Form // the columns of the file and of new rows together
}

// NotRegularError reports a file that cannot be resumed because it is a device, a
// pipe or a folder.
type NotRegularError struct{ Path string }

func (e *NotRegularError) Error() string {
	return e.Path + " is not a regular file, which is required for reading and appending rows"
}

// InUseError reports a file that another process writes to.
type InUseError struct{ Path string }

func (e *InUseError) Error() string {
	return fmt.Sprintf("another gfaas-profile writes to %s, and rows could be lost", e.Path)
}

// Locked returns true.
func (e *InUseError) Locked() bool { return true }

// Hint returns the next step for the user.
func (e *InUseError) Hint() string { return "wait until it has finished, or give another file" }

// readBack returns the content of a file to resume.
func readBack(path string) ([]byte, error) {
	// Check the kind of file before reading it: a device or a pipe may have no end.
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, &NotRegularError{path}
	case info.Size() > textfile.MaxFile:
		return nil, fmt.Errorf("%s has %d bytes, expected at most %d bytes", path, info.Size(), textfile.MaxFile)
	}
	return os.ReadFile(path)
}

// wholeLines returns data without an incomplete last line.
func wholeLines(data []byte) []byte { return data[:bytes.LastIndexByte(data, '\n')+1] }

// readEarlier reads the file of an earlier run, to which rows of the form will be
// appended. A file that does not exist, or whose header is incomplete, has no rows.
// readEarlier fails if the file has a column that is not in the form, since resuming would
// lose it.
func readEarlier(path string, form profile.Form) (Earlier, error) {
	data, err := readBack(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Earlier{form: form}, nil
	}
	if err != nil {
		return Earlier{}, err
	}
	whole := wholeLines(data)
	p := Earlier{size: int64(len(whole)), Torn: len(whole) < len(data), form: form}
	if len(whole) == 0 {
		return p, nil
	}
	header, err := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(whole, []byte("\uFEFF")))).Read()
	if err == nil {
		all := profile.Whole.Header()
		p.form = form.With(header)
		p.same = slices.Equal(header, p.form.Header())
		if strange := slices.IndexFunc(header, func(name string) bool { return !slices.Contains(all, name) }); strange >= 0 {
			return p, fmt.Errorf("%s:1: %s: unknown column, whose values a resumed run would lose: expected a subset of %s",
				path, header[strange], strings.Join(all, ","))
		}
	}
	p.Rows, err = profile.ReadAll(bytes.NewReader(whole), path)
	return p, err
}

// Resume locks and reads the file of an earlier run, and returns a File that appends
// rows of the form. If the columns differ, Append rewrites the file with the first row. The
// caller closes the File.
//
// The error is an *InUseError if another process writes to the file, a *NotRegularError, or
// an error about the content of the file.
func Resume(path string, form profile.Form) (Earlier, *File, error) {
	lock, exists, err := lockResults(path)
	if err != nil {
		return Earlier{}, nil, err
	}
	p, err := readEarlier(path, form)
	j := &File{path: path, size: p.size, form: p.form, appending: p.size > 0 && p.same, lock: lock, absent: !exists}
	if !p.same {
		j.old = p.Rows
	}
	if err != nil {
		_ = j.Close()
		return Earlier{}, nil, err
	}
	return p, j, nil
}

// Create returns a File that replaces the file at path, if there is one, with its
// first row. The error is an *InUseError if another process writes to that file.
func Create(path string, form profile.Form) (*File, error) {
	lock, exists, err := lockResults(path)
	if err != nil {
		return nil, err
	}
	return &File{path: path, form: form, lock: lock, absent: !exists}, nil
}

// lockResults locks the file at path, if it is a regular file, until the lock is
// closed. It reports whether there is such a file. On a file system without locks it
// returns no lock.
func lockResults(path string) (l *lockfile.Lock, exists bool, err error) {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return nil, false, nil // reading or creating it reports the error
	}
	l, err = lockfile.AcquireExisting(path)
	if _, held := errors.AsType[*lockfile.HeldError](err); held {
		return nil, true, &InUseError{path}
	}
	return l, !errors.Is(err, fs.ErrNotExist), nil
}
