// Package simgpu looks after the folder in which processes share the
// simulated device. Its files and locks are described in hook/sim/shared.h.
package simgpu

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/owndir"
)

// UUID returns the UUID of a simulated GPU, as the simulated driver tells it.
func UUID(index int) string { return fmt.Sprintf("GPU-67666161-732d-7369-6d75-6c61746564%02x", index) }

// Dir is the folder: $GFAAS_SIM_DIR, else one of the user's own in shared
// memory, where anybody can make it first.
func Dir() string {
	if dir := os.Getenv("GFAAS_SIM_DIR"); dir != "" {
		return dir
	}
	return usual()
}

func usual() string { return fmt.Sprintf("/dev/shm/gfaas-sim-%d", os.Geteuid()) }

// open opens the folder. The usual one is refused, by an *owndir.Error, if
// somebody else has put it there; one that was named is taken as it is.
func open(dir string) (*os.Root, error) {
	if dir != usual() {
		return os.OpenRoot(dir)
	}
	root, err := owndir.Open(dir)
	var refused *owndir.Error
	if errors.As(err, &refused) {
		err = fmt.Errorf("%w: have it removed, or set GFAAS_SIM_DIR to a folder of yours", err)
	}
	return root, err
}

// Ensure makes the folder if it is not there, and returns its absolute path. One
// that somebody else has put there is an *owndir.Error.
func Ensure() (dir string, err error) {
	root, err := makeDir()
	if err != nil {
		return "", err
	}
	defer root.Close()
	return filepath.Abs(root.Name())
}

func makeDir() (*os.Root, error) {
	if err := os.MkdirAll(Dir(), 0o700); err != nil {
		return nil, err
	}
	return open(Dir())
}

// Keep makes sure that the folder is there, and stays, for an instance that
// has it mounted: were it removed and made again, the instance would be on
// another device than everybody else.
func Keep(id string) error {
	// Its last user may be removing the folder right now.
	const tries = 100
	for range tries {
		err := keep(id)
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return fmt.Errorf("%s is removed as fast as it is made", Dir())
}

func keep(id string) error {
	root, err := makeDir()
	if err != nil {
		return err
	}
	defer root.Close()
	f, err := root.OpenFile(keeper(id), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil // its name is what counts
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// Release takes Keep back. An instance that has kept nothing is no error.
func Release(id string) error {
	root, err := open(Dir())
	if err != nil {
		return unlessNothing(err)
	}
	defer root.Close()
	return unlessNothing(root.Remove(keeper(id)))
}

func keeper(id string) string { return "keep." + id }

// unlessNothing is nil where the error says that nothing of ours is there: no
// file, or a folder that is never used.
func unlessNothing(err error) error {
	var refused *owndir.Error
	if errors.Is(err, fs.ErrNotExist) || errors.As(err, &refused) {
		return nil
	}
	return err
}

// Sweep removes what processes that were killed left of devices on which
// nobody is any more, and the folder when nothing else is in it and it is the
// usual one.
func Sweep() error {
	root, err := open(Dir())
	if err != nil {
		return unlessNothing(err)
	}
	defer root.Close()
	states, err := fs.Glob(root.FS(), "gpu*.state")
	if err != nil {
		return err
	}
	var errs []error
	for _, state := range states {
		errs = append(errs, sweepDevice(root, state))
	}
	if os.Getenv("GFAAS_SIM_DIR") == "" {
		_ = os.Remove(Dir()) // fails unless it is empty, as it should
	}
	return errors.Join(errs...)
}

// sweepDevice removes a device's files if it gets the lock on all of its state
// at once: whoever is on the device, joins or leaves holds a part of it.
func sweepDevice(dir *os.Root, state string) error {
	f, err := dir.OpenFile(state, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return unlessNothing(err)
	}
	defer f.Close()
	err = unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	// The file may have been removed, and made again by someone, since it was
	// opened: then the lock says nothing of the one that is there now.
	opened, err := f.Stat()
	if err != nil {
		return err
	}
	if there, err := dir.Lstat(state); err != nil || !os.SameFile(opened, there) {
		return nil
	}
	files, err := fs.Glob(dir.FS(), strings.TrimSuffix(state, "state")+"mem.*")
	if err != nil {
		return err
	}
	var errs []error
	for _, file := range append(files, state) { // whoever waits for the state finds the rest gone
		errs = append(errs, unlessNothing(dir.Remove(file)))
	}
	return errors.Join(errs...)
}
