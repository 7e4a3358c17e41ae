// Package lockfile locks files that say who is at work. A lock (flock(2)) goes
// with its holder, however that ends; who ends in order removes the file too.
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

// pause is how often Await looks: a lock cannot be waited for and the waiting
// be given up.
const pause = 10 * time.Millisecond

// HeldError says that somebody else has the lock.
type HeldError struct {
	Path string
	PID  int // of the holder, if it is known; else 0
}

func (e *HeldError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("%s is locked", e.Path)
	}
	return fmt.Sprintf("%s is locked by process %d", e.Path, e.PID)
}

// Lock is a file that is locked.
type Lock struct{ file *os.File }

// Take makes the file if it is not there, locks it and writes the number of this
// process into it. When somebody else has it, the error is a *HeldError. No link
// is followed.
func Take(path string) (*Lock, error) {
	l, err := open(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW)
	if err == nil {
		// For people: on a full disk the lock holds all the same.
		_ = l.file.Truncate(0)
		_, _ = l.file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return l, err
}

// TakeExisting locks a file that is there, and leaves what is in it: the error
// is an fs.ErrNotExist where there is none.
func TakeExisting(path string) (*Lock, error) { return open(path, os.O_RDONLY) }

// Await is Take, once whoever has the lock lets it go or ends, or ctx does.
func Await(ctx context.Context, path string) (*Lock, error) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		l, err := Take(path)
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
		l, err := take(f)
		if l != nil {
			return l, nil
		}
		_ = f.Close()
		if err != nil {
			return nil, err
		}
	}
}

// take locks what was opened. The holder of a lock may remove its file: then the
// lock on what was opened says nothing of what has its name by now, and take
// returns neither a lock nor an error.
func take(f *os.File) (*Lock, error) {
	l := &Lock{f}
	err := Hold(f)
	for errors.Is(err, unix.EINTR) {
		err = Hold(f)
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, &HeldError{f.Name(), holder(f)}
	}
	if err != nil {
		return nil, err
	}
	if !l.Current() {
		return nil, nil
	}
	return l, nil
}

// Hold locks a file that is open, until it is closed.
func Hold(f *os.File) error {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
	}
	return nil
}

// holder reads who wrote its number into a file.
func holder(f *os.File) int {
	var text [32]byte
	n, _ := f.ReadAt(text[:], 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text[:n])))
	if err != nil {
		return 0
	}
	return pid
}

// Current reports whether the path still leads to the file that is locked.
func (l *Lock) Current() bool {
	mine, err := l.file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(l.file.Name())
	return err == nil && os.SameFile(mine, there)
}

// Close lets the lock go and leaves the file.
func (l *Lock) Close() error { return l.file.Close() }

// Remove lets the lock go and removes the file, unless the path leads to
// another's by now.
func (l *Lock) Remove() error {
	var err error
	if l.Current() { // nobody else takes it for theirs while it is locked
		err = os.Remove(l.file.Name())
	}
	return errors.Join(err, l.file.Close())
}
