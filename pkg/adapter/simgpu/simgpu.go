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
)

// Dir is the folder: $GFAAS_SIM_DIR, else one of the user's own in shared
// memory.
func Dir() string {
	if dir := os.Getenv("GFAAS_SIM_DIR"); dir != "" {
		return dir
	}
	return fmt.Sprintf("/dev/shm/gfaas-sim-%d", os.Getuid())
}

// Keep makes sure that the folder is there, and stays, for an instance that
// has it mounted: were it removed and made again, the instance would be on
// another device than everybody else.
func Keep(id string) error {
	path := keepPath(id)
	// Its last user may be removing the folder right now.
	const tries = 100
	for range tries {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		err := os.WriteFile(path, nil, 0o600)
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return fmt.Errorf("%s is removed as fast as it is made", filepath.Dir(path))
}

// Release takes Keep back. An instance that has kept nothing is no error.
func Release(id string) error {
	if err := os.Remove(keepPath(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func keepPath(id string) string { return filepath.Join(Dir(), "keep."+id) }

// Sweep removes what processes that were killed left of devices on which
// nobody is any more, and the folder when nothing else is in it and it is the
// usual one.
func Sweep() error {
	states, err := fs.Glob(os.DirFS(Dir()), "gpu*.state")
	if err != nil {
		return err
	}
	var errs []error
	for _, state := range states {
		errs = append(errs, sweepDevice(Dir(), state))
	}
	if os.Getenv("GFAAS_SIM_DIR") == "" {
		_ = os.Remove(Dir()) // fails unless it is empty, as it should
	}
	return errors.Join(errs...)
}

// sweepDevice removes a device's files if it gets the lock on all of its state
// at once: whoever is on the device, joins or leaves holds a part of it.
func sweepDevice(dir, name string) error {
	state := filepath.Join(dir, name)
	f, err := os.OpenFile(state, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", state, err)
	}
	// The file may have been removed, and made again by someone, since it was
	// opened: then the lock says nothing of the one that is there now.
	opened, err := f.Stat()
	if err != nil {
		return err
	}
	if there, err := os.Stat(state); err != nil || !os.SameFile(opened, there) {
		return nil
	}
	files, err := fs.Glob(os.DirFS(dir), strings.TrimSuffix(name, "state")+"mem.*")
	if err != nil {
		return err
	}
	var errs []error
	for _, file := range append(files, name) { // whoever waits for the state finds the rest gone
		if err := os.Remove(filepath.Join(dir, file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
