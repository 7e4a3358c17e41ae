package bolt

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lockWait is how long an operation waits while other processes hold the lock.
	lockWait  = time.Second
	lockPause = 5 * time.Millisecond
)

// LockedError reports that another process held the lock of the state file for longer
// than lockWait.
type LockedError struct{ Path string }

func (e *LockedError) Error() string {
	return fmt.Sprintf("state file %s is locked by another process", e.Path)
}

// Locked returns true. It selects the exit status.
func (e *LockedError) Locked() bool { return true }

// Hint returns the next step for the user.
func (e *LockedError) Hint() string { return "try again; 'fuser " + e.Path + "' shows that process" }

// FileError reports a state file that cannot be used.
type FileError struct {
	Path    string
	Err     error
	Damaged bool // its content differs from the written one
}

func (e *FileError) Error() string {
	if e.Damaged && !errors.Is(e.Err, errForeign) {
		return fmt.Sprintf("state file %s is damaged: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("state file %s: %v", e.Path, e.Err)
}

func (e *FileError) Unwrap() error { return e.Err }

// Unreadable returns true. It tells the error from one about access to the file.
func (e *FileError) Unreadable() bool { return true }

const (
	repairHint = "'gfaas doctor --repair' puts the damaged file aside and records the running instances"
	pathHint   = "set GFAAS_STATE to a file of yours"
)

// Hint returns the next step for the user.
func (e *FileError) Hint() string {
	switch {
	case errors.Is(e.Err, errForeign):
		return "if it was a state file, " + repairHint + "; otherwise " + pathHint
	case e.Damaged:
		return repairHint
	case errors.Is(e.Err, unix.ENOSPC) || errors.Is(e.Err, unix.EDQUOT):
		return "make room there, or set GFAAS_STATE to a file elsewhere"
	}
	return pathHint
}

func isDamaged(err error) bool {
	var f *FileError
	return errors.As(err, &f) && f.Damaged
}

// regular returns an error unless the file is a regular file that only the user or
// root can write to. A state file determines which commands run as the user.
func regular(info fs.FileInfo) error {
	owner := int(info.Sys().(*syscall.Stat_t).Uid)
	switch mode := info.Mode(); {
	case mode.IsRegular() && owner != os.Geteuid() && owner != 0:
		return fmt.Errorf("is owned by uid %d, want %d", owner, os.Geteuid())
	case mode.IsRegular() && mode.Perm()&0o022 != 0:
		return fmt.Errorf("is writable by other users (mode %04o)", mode.Perm())
	case mode.IsRegular():
		return nil
	case mode.IsDir():
		return errors.New("is a folder, expected a file")
	case mode&fs.ModeNamedPipe != 0:
		return errors.New("is a pipe, expected a file")
	}
	return errors.New("is a device or a socket, expected a file")
}

// openRegular opens a file for which regular returns nil. It does not open others,
// because opening a pipe or a device can block or have effects.
func openRegular(path string, flag int) (*os.File, error) {
	info, err := os.Lstat(path)
	if err == nil {
		err = regular(info)
	}
	if err != nil && !(errors.Is(err, fs.ErrNotExist) && flag&os.O_CREATE != 0) {
		return nil, err
	}
	f, err := os.OpenFile(path, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil {
		err = regular(info)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// lock opens the current generation and locks it: exclusively if write is true, and
// shared otherwise. If there is no file, lock creates an empty one for a writer, and returns nil
// for a reader.
func (d *DB) lock(write bool) (f *os.File, err error) {
	path, err := resolve(d.path)
	flag, how := os.O_RDONLY, unix.LOCK_SH
	if write {
		flag, how = os.O_RDWR|os.O_CREATE, unix.LOCK_EX
		if err == nil {
			err = os.MkdirAll(filepath.Dir(path), 0o700)
		}
	}
	if err != nil {
		return nil, &FileError{Path: d.path, Err: err}
	}
	for late := time.Now().Add(lockWait); ; time.Sleep(lockPause) {
		f, err := openRegular(path, flag)
		if errors.Is(err, fs.ErrNotExist) && !write {
			return nil, nil
		}
		if err != nil {
			return nil, &FileError{Path: d.path, Err: err}
		}
		held, err := tryLock(f, how)
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

// tryLock reports whether it has locked the file and the file is still the current
// generation.
func tryLock(f *os.File, operation int) (bool, error) {
	switch err := unix.Flock(int(f.Fd()), operation|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR):
		return false, nil
	case err != nil:
		return false, &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
	}
	mine, err := f.Stat()
	if err != nil {
		return false, err
	}
	current, err := os.Lstat(f.Name())
	return err == nil && os.SameFile(mine, current), nil
}

// resolve follows symbolic links, so that all generations are in the folder of the file
// and not in that of a link. It fails for a link to a file that does not exist.
func resolve(path string) (string, error) {
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(path); err == nil {
			return "", errors.New("is a symbolic link to a missing file")
		}
		return path, nil
	}
	return real, err
}
