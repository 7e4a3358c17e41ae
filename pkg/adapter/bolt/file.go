package bolt

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/lockfile"
)

const (
	// lockWait is how long an operation waits for another process's.
	lockWait  = time.Second
	lockPause = 5 * time.Millisecond
)

// LockedError says that another process kept the state file for longer than
// the time to wait for it.
type LockedError struct{ Path string }

func (e *LockedError) Error() string {
	return fmt.Sprintf("state file %s is locked by another process", e.Path)
}

// Locked marks the error for the exit status.
func (e *LockedError) Locked() bool { return true }

// Hint says what to do about it.
func (e *LockedError) Hint() string { return "try again; 'fuser " + e.Path + "' tells who holds it" }

// FileError is a state file that cannot be used.
type FileError struct {
	Path    string
	Err     error
	Damaged bool // what is in it is not what was written
}

func (e *FileError) Error() string {
	if e.Damaged {
		return fmt.Sprintf("state file %s is damaged: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("state file %s: %v", e.Path, e.Err)
}
func (e *FileError) Unwrap() error { return e.Err }

// Hint says what to do about it.
func (e *FileError) Hint() string {
	switch {
	case e.Damaged:
		return "'gfaas doctor --repair' puts it aside and makes another of what is left of it and of what runs"
	case errors.Is(e.Err, unix.ENOSPC) || errors.Is(e.Err, unix.EDQUOT):
		return "make room there, or set GFAAS_STATE to a file elsewhere"
	}
	return "set GFAAS_STATE to a file of yours"
}

func (d *DB) damaged(err error) error { return &FileError{Path: d.path, Err: err, Damaged: true} }

// IsDamaged reports whether an error is of a state file that is damaged.
func IsDamaged(err error) bool {
	var f *FileError
	return errors.As(err, &f) && f.Damaged
}

// empty says whether there is no state yet: no file, or one without anything in
// it. What is no file is refused before it is opened.
func (d *DB) empty() (bool, error) {
	info, err := os.Stat(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err == nil {
		err = regular(info)
	}
	if err != nil {
		return false, &FileError{Path: d.path, Err: err}
	}
	return info.Size() == 0, nil
}

// regular says what is wrong with a file, by what it is and by who can write to it:
// whoever can has the user run what it says.
func regular(info fs.FileInfo) error {
	owner := int(info.Sys().(*syscall.Stat_t).Uid)
	switch mode := info.Mode(); {
	case mode.IsRegular() && owner != os.Geteuid() && owner != 0:
		return fmt.Errorf("belongs to user %d, not to you", owner)
	case mode.IsRegular() && mode.Perm()&0o022 != 0:
		return fmt.Errorf("can be written to by others (mode %04o)", mode.Perm())
	case mode.IsRegular():
		return nil
	case mode.IsDir():
		return errors.New("is a folder, expected a file")
	case mode&fs.ModeNamedPipe != 0:
		return errors.New("is a pipe, expected a file")
	}
	return errors.New("is a device or a socket, expected a file")
}

// create makes the file if there is none. It is made whole beside its place and
// linked there, so that a full disk leaves none rather than a part.
func (d *DB) create() error {
	if empty, err := d.empty(); err != nil || !empty {
		return err
	}
	if err := d.createNew(); err != nil {
		return &FileError{Path: d.path, Err: err}
	}
	return nil
}

func (d *DB) createNew() error {
	dir := filepath.Dir(d.path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	fresh, err := makeFile(dir, func(tx *bbolt.Tx) error { return errors.Join(layOut(tx), settle(tx)) })
	if err != nil {
		return err
	}
	defer os.Remove(fresh)
	err = os.Link(fresh, d.path)
	if errors.Is(err, fs.ErrExist) {
		err = d.fill(fresh)
	}
	if err != nil {
		return err
	}
	return syncDir(dir)
}

// fill puts a file in the place of one that is there and has nothing in it; if
// somebody has filled it meanwhile, that is as good.
func (d *DB) fill(fresh string) error {
	lock, err := lockfile.TakeExisting(d.path)
	var held *lockfile.HeldError
	switch {
	case errors.As(err, &held):
		return nil // by whoever fills it
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("is a link to no file")
	case err != nil:
		return err
	}
	defer lock.Close()
	if info, err := os.Stat(d.path); err != nil || info.Size() > 0 {
		return err
	}
	return os.Rename(fresh, d.path)
}

// makeFile makes a state file of one transaction in a folder, and returns its
// path; after an error there is none.
func makeFile(dir string, write func(*bbolt.Tx) error) (path string, err error) {
	f, err := os.CreateTemp(dir, ".state-*")
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	return f.Name(), guarded(f, func() error {
		db, err := openHeld(f, false)
		if err != nil {
			return err
		}
		return errors.Join(db.Update(write), db.Close())
	})
}

func layOut(tx *bbolt.Tx) error {
	for _, name := range buckets {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return err
		}
	}
	return nil
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// hold opens the file and locks it, for others to read or not at all. It is the
// one that has the name once it is locked: Repair replaces it.
func (d *DB) hold(readOnly bool) (*os.File, error) {
	flag, how := os.O_RDWR, unix.LOCK_EX
	if readOnly {
		flag, how = os.O_RDONLY, unix.LOCK_SH
	}
	for late := time.Now().Add(lockWait); ; time.Sleep(lockPause) {
		f, err := os.OpenFile(d.path, flag|unix.O_NONBLOCK, 0) // a pipe would block
		if err != nil {
			return nil, &FileError{Path: d.path, Err: err}
		}
		held, err := tryHold(f, how)
		if held {
			return f, nil
		}
		_ = f.Close()
		if err != nil {
			return nil, &FileError{Path: d.path, Err: err}
		}
		if time.Now().After(late) {
			return nil, &LockedError{Path: d.path}
		}
	}
}

// tryHold reports whether the file is locked now, and has its name.
func tryHold(f *os.File, how int) (bool, error) {
	info, err := f.Stat()
	if err == nil {
		err = regular(info)
	}
	if err != nil {
		return false, err
	}
	switch err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR):
		return false, nil
	case err != nil:
		return false, &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
	}
	there, err := os.Stat(f.Name())
	return err == nil && os.SameFile(info, there), nil
}

// using opens the file for one transaction of bbolt.
func (d *DB) using(readOnly bool, do func(*bbolt.DB) error) error {
	f, err := d.hold(readOnly)
	if err != nil {
		return err
	}
	defer f.Close() // again, where bbolt has
	data, err := contents(f)
	if err != nil {
		return &FileError{Path: d.path, Err: err}
	}
	if err := sound(data); err != nil {
		return &FileError{Path: d.path, Err: err, Damaged: !errors.Is(err, errNone)}
	}
	var failed error // of do
	err = guarded(f, func() error {
		db, err := openHeld(f, readOnly)
		if err != nil {
			return err
		}
		failed = do(db)
		return db.Close()
	})
	var broke *brokeError
	switch {
	case errors.As(err, &broke):
		return d.damaged(err)
	case failed != nil:
		return failed
	case err != nil:
		return &FileError{Path: d.path, Err: err}
	}
	return nil
}

// contents reads a file that is locked.
func contents(f *os.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("has %d bytes, expected at most %d", info.Size(), maxFile)
	}
	data := make([]byte, info.Size())
	_, err = io.ReadFull(io.NewSectionReader(f, 0, info.Size()), data)
	return data, err
}

// openHeld has bbolt take over a file that is open, and the lock that it may have.
func openHeld(f *os.File, readOnly bool) (*bbolt.DB, error) {
	return bbolt.Open(f.Name(), 0o600, &bbolt.Options{
		Timeout: lockWait, ReadOnly: readOnly,
		OpenFile: func(string, int, fs.FileMode) (*os.File, error) { return f, nil },
	})
}

// brokeError is what bbolt said of a file when it gave up.
type brokeError struct{ what any }

func (e *brokeError) Error() string { return fmt.Sprint(e.what) }

// guarded makes an error of a panic of bbolt, which reads the file through memory:
// what the disk does not give, or somebody has cut off meanwhile, is a fault there
// (SIGBUS). The file is closed then, and nobody waits for its lock.
func guarded(f *os.File, do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if what := recover(); what != nil {
			// The mapping stays, and would keep the lock.
			_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
			_ = f.Close()
			err = &brokeError{what}
		}
	}()
	return do()
}
