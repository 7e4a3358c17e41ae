// Package lockfile provides exclusive locks on files (flock(2)), for example for a daemon's run
// directory. The kernel releases a lock when its holder ends, in whatever way. A holder that exits in
// order also removes the file (Lock.Remove).
package lockfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// pause is the poll interval of Await. It polls because flock(2) cannot wait with a deadline.
const pause = 10 * time.Millisecond

// HeldError is the error if another process holds the lock.
type HeldError struct {
	Path string
	PID  int // of the holder; 0 if unknown
}

func (e *HeldError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("%s is locked", e.Path)
	}
	return fmt.Sprintf("%s is locked by process %d", e.Path, e.PID)
}

// Lock is a locked file.
type Lock struct{ file *os.File }

// Acquire locks a file and writes this process's PID into it. It creates the file if it does not exist,
// and does not follow a symbolic link. If another process holds the lock, it returns a *HeldError.
func Acquire(path string) (*Lock, error) {
	l, err := open(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW)
	if err == nil {
		// The PID is for people. On a full disk the lock is valid without it.
		_ = l.file.Truncate(0)
		_, _ = l.file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return l, err
}

// AcquireExisting locks an existing file without changing its content. If the file does not exist, it
// returns an error that matches fs.ErrNotExist.
func AcquireExisting(path string) (*Lock, error) { return open(path, os.O_RDONLY) }

// Await takes the lock like Acquire, but waits while another process holds it, until the context ends.
func Await(ctx context.Context, path string) (*Lock, error) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		l, err := Acquire(path)
		var held *HeldError
		if !errors.As(err, &held) {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
	}
}

func open(path string, mode int) (*Lock, error) {
	for {
		f, err := os.OpenFile(path, mode, 0o600)
		if err != nil {
			return nil, err
		}
		l, err := lockCurrent(f)
		if l != nil {
			return l, nil
		}
		_ = f.Close()
		if err != nil {
			return nil, err
		}
	}
}

// lockCurrent locks an open file. Its previous holder may have removed the file, so that the path may now
// refer to another file, or to none. In this case lockCurrent returns neither a lock nor an error.
func lockCurrent(f *os.File) (*Lock, error) {
	l, err := &Lock{f}, Flock(f)
	for errors.Is(err, unix.EINTR) {
		err = Flock(f)
	}
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, &HeldError{f.Name(), holder(f)}
	case err != nil:
		return nil, err
	case !l.Current():
		return nil, nil
	}
	return l, nil
}

// Flock locks an open file until the file is closed. It returns an error if the lock is held
// elsewhere.
func Flock(f *os.File) error {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
	}
	return nil
}

// holder returns the PID in a lock file, or 0.
func holder(f *os.File) int {
	var text [32]byte
	n, _ := f.ReadAt(text[:], 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text[:n])))
	if err != nil {
		return 0
	}
	return pid
}

// Current reports whether the path still refers to the locked file.
func (l *Lock) Current() bool {
	locked, err := l.file.Stat()
	if err != nil {
		return false
	}
	atPath, err := os.Stat(l.file.Name())
	return err == nil && os.SameFile(locked, atPath)
}

// Close releases the lock and keeps the file.
func (l *Lock) Close() error { return l.file.Close() }

// Remove releases the lock and removes the file, unless the path refers to another file by now.
func (l *Lock) Remove() error {
	var err error
	if l.Current() { // no other process replaces the file while it is locked
		err = os.Remove(l.file.Name())
	}
	return errors.Join(err, l.file.Close())
}
