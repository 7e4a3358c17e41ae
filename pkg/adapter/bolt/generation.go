package bolt

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/owndir"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

const (
	// magic is the beginning of the first line of a state file. The version of the
	// format and the checksum (see header) follow on that line.
	magic = "gfaas-state "
	// format is the version that this program writes. Versions 1 and 2 have no such
	// line (legacy.go).
	format = "3"

	// maxFile is the largest state file that is read, in bytes.
	maxFile = 1 << 30
)

// state is one generation. It is not changed once it has been read.
type state struct {
	file  []byte // the content of the file; nil if nothing has been written yet
	image []byte // its bbolt database

	functions []function.Function // by name
	applied   []time.Time         // of functions, in the same order; zero if an earlier release applied it
	instances []instance.Record   // by ID
	models    []wire.Record       // by tenant and name

	damaged bool // this is the previous generation, because the current one is damaged
}

// load reads the current generation from its locked file f, or the previous one if
// that is damaged.
func (d *DB) load(f *os.File) (*state, error) {
	s, err := d.read(f, d.path)
	if !isDamaged(err) {
		return s, err
	}
	path := f.Name() + ".previous"
	g, openErr := openRegular(path, os.O_RDONLY)
	if openErr != nil {
		return nil, err
	}
	defer g.Close()
	info, statErr := g.Stat()
	previous, readErr := d.read(g, path)
	if statErr != nil || readErr != nil || previous.file == nil {
		return nil, err
	}
	note := fmt.Sprintf("%v; using the previous generation, %s of %s, which may lack the last change; %s",
		err, path, info.ModTime().Format(time.DateTime), repairHint)
	if d.noted != note {
		d.noted = note
		d.notef("note: %s", note)
	}
	fallback := *previous
	fallback.damaged = true
	return &fallback, nil
}

// read reads a generation. Errors give name as the name of the file.
func (d *DB) read(f *os.File, name string) (*state, error) {
	file, err := contents(f)
	if err != nil {
		return nil, &FileError{Path: name, Err: err, Damaged: true}
	}
	if len(file) == 0 {
		return &state{}, nil
	}
	if d.last != nil && bytes.Equal(file, d.last.file) {
		return d.last, nil
	}
	image, err := verify(file)
	if err != nil {
		return nil, &FileError{Path: name, Err: err, Damaged: !errors.Is(err, errVersion)}
	}
	s, err := decode(image)
	if err != nil {
		return nil, &FileError{Path: name, Err: err, Damaged: true}
	}
	s.file, d.last = file, s
	return s, nil
}

func contents(f *os.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("it has %d bytes, want at most %d", info.Size(), maxFile)
	}
	return io.ReadAll(io.NewSectionReader(f, 0, info.Size()))
}

var (
	errVersion = errors.New("it was written by another version of gfaas")
	errForeign = errors.New("it is not a state file")
	errSum     = errors.New("its content does not match its checksum")
)

// header returns the first line of the state file with this database. The checksum
// covers the version and the database.
func header(version string, image []byte) []byte {
	sum := sha256.New()
	fmt.Fprintln(sum, version)
	sum.Write(image)
	return fmt.Appendf(nil, "%s%s %x\n", magic, version, sum.Sum(nil))
}

// verify returns the database of a state file whose checksum is right.
func verify(file []byte) (image []byte, err error) {
	rest, found := bytes.CutPrefix(file, []byte(magic))
	if !found {
		return upgrade(file)
	}
	version, _, _ := bytes.Cut(rest, []byte(" "))
	_, image, _ = bytes.Cut(rest, []byte("\n"))
	switch {
	case !bytes.Equal(file[:len(file)-len(image)], header(string(version), image)):
		return nil, errSum
	case string(version) != format:
		return nil, fmt.Errorf("%w: its format is %s, want %s", errVersion, version, format)
	}
	return image, nil
}

// decode reads a database.
func decode(image []byte) (*state, error) {
	s := &state{image: image}
	return s, inMemory(image, func(db *bbolt.DB, _ *os.File) error {
		return db.View(func(tx *bbolt.Tx) error {
			return errors.Join(
				list(tx, functionsBucket, decodeFunction, &s.functions),
				list(tx, functionsBucket, decodeApplied, &s.applied),
				list(tx, instancesBucket, decodeJSON, &s.instances),
				list(tx, modelsBucket, decodeJSON, &s.models))
		})
	})
}

// list reads the values of a bucket in the order of their keys.
func list[T any](tx *bbolt.Tx, bucket []byte, decode func([]byte) (T, error), to *[]T) error {
	return tx.Bucket(bucket).ForEach(func(key, value []byte) error {
		v, err := decode(value)
		if err != nil {
			return fmt.Errorf("%s: %q: %w", bucket, key, err)
		}
		*to = append(*to, v)
		return nil
	})
}

// edit returns a copy of a database after change. A nil image is an empty database.
func edit(image []byte, change func(*bbolt.Tx) error) (out []byte, err error) {
	err = inMemory(image, func(db *bbolt.DB, f *os.File) error {
		err := db.Update(func(tx *bbolt.Tx) error {
			for _, bucket := range [][]byte{functionsBucket, instancesBucket, modelsBucket} {
				if _, err := tx.CreateBucketIfNotExists(bucket); err != nil {
					return err
				}
			}
			return change(tx)
		})
		if err == nil {
			out, err = contents(f)
		}
		return err
	})
	return out, err
}

// inMemory calls do with a copy of a database, in a file that exists only in memory.
func inMemory(image []byte, do func(*bbolt.DB, *os.File) error) error {
	fd, err := unix.MemfdCreate("gfaas-state", unix.MFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "state in memory")
	defer f.Close() // again, if bbolt has closed it
	if _, err := f.Write(image); err != nil {
		return err
	}
	db, err := bbolt.Open(f.Name(), 0o600, &bbolt.Options{
		NoSync: true, OpenFile: func(string, int, fs.FileMode) (*os.File, error) { return f, nil },
	})
	if err != nil {
		return err
	}
	return errors.Join(do(db, f), db.Close())
}

// write applies change to a copy of s, and makes the result the current generation in
// place of the locked file f. At each moment, the file's name stands for a complete
// generation. The generation s becomes, or remains, the previous one: it remains if f is
// damaged. A damaged f is kept under another name, which write returns.
func (d *DB) write(f *os.File, s *state, change func(*bbolt.Tx) error) (aside string, err error) {
	image, err := edit(s.image, change)
	if err != nil {
		return "", err
	}
	path := f.Name()
	temp, previous := path+".new", path+".previous"
	if err = writeNew(f, temp, image); err == nil && s.damaged {
		aside = path + ".damaged-" + time.Now().UTC().Format("20060102T150405.000000")
		err = os.Link(path, aside)
	} else if err == nil {
		if err = os.Remove(previous); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		if err == nil && s.file != nil {
			err = os.Link(path, previous)
		}
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp)
		return "", &FileError{Path: d.path, Err: err}
	}
	if err := owndir.Sync(filepath.Dir(path)); err != nil {
		return "", &FileError{Path: d.path, Err: err}
	}
	if aside != "" {
		d.notef("note: renamed the damaged state file to %s", aside)
	}
	return aside, nil
}

// writeNew writes a generation to a new file at path, with the mode of f. It replaces a
// file that a killed writer has left there.
func writeNew(f *os.File, path string, image []byte) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	_ = os.Remove(path)
	temp, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = temp.Write(append(header(format, image), image...))
	return errors.Join(err, temp.Chmod(info.Mode().Perm()), temp.Sync(), temp.Close())
}
