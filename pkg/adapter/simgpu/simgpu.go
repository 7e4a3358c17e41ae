// Package simgpu manages the folder in which processes share the simulated GPUs, and reads their memory
// use. hook/sim/shared.h describes the files and locks.
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

// UUID returns the UUID that the simulated driver reports for a GPU.
func UUID(index int) string { return fmt.Sprintf("GPU-67666161-732d-7369-6d75-6c61746564%02x", index) }

// Dir returns the folder: $GFAAS_SIM_DIR, or by default a folder of the user in shared memory, where any
// user could create it first.
func Dir() string {
	if dir := os.Getenv("GFAAS_SIM_DIR"); dir != "" {
		return dir
	}
	return usual()
}

func usual() string { return fmt.Sprintf("/dev/shm/gfaas-sim-%d", os.Geteuid()) }

// open opens the folder. If another user has created the default folder, it returns an *owndir.Error. It
// does not check a folder that was set explicitly.
func open(dir string) (*os.Root, error) {
	if dir != usual() {
		return os.OpenRoot(dir)
	}
	root, err := owndir.Open(dir)
	var refused *owndir.Error
	if errors.As(err, &refused) {
		err = fmt.Errorf("%w: ask its owner to remove it, or set GFAAS_SIM_DIR to a folder of yours", err)
	}
	return root, err
}

// Ensure creates the folder if necessary and returns its absolute path. It returns an *owndir.Error if
// another user has created the default folder.
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

// Retain creates the folder if necessary and prevents its removal while an instance mounts it. If the
// folder were removed and created again, the instance would use another device than other processes.
func Retain(id string) error {
	// Another process may be removing the folder at this moment.
	const tries = 100
	for range tries {
		err := createMarker(id)
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return fmt.Errorf("cannot create %s: other processes keep removing it", Dir())
}

func createMarker(id string) error {
	root, err := makeDir()
	if err != nil {
		return err
	}
	defer root.Close()
	f, err := root.OpenFile(markerName(id), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil // the file has no contents; its name suffices
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// Release undoes Retain. It does nothing if the instance has no marker.
func Release(id string) error {
	root, err := open(Dir())
	if err != nil {
		return ignoreMissing(err)
	}
	defer root.Close()
	return ignoreMissing(root.Remove(markerName(id)))
}

func markerName(id string) string { return "keep." + id }

// ignoreMissing returns nil if the error means that there is no file of ours: the file does not exist,
// or the folder belongs to another user.
func ignoreMissing(err error) error {
	var refused *owndir.Error
	if errors.Is(err, fs.ErrNotExist) || errors.As(err, &refused) {
		return nil
	}
	return err
}

// Sweep removes the files of devices that no process uses any more, which killed processes leave behind.
// It also removes the default folder if it is then empty.
func Sweep() error {
	root, err := open(Dir())
	if err != nil {
		return ignoreMissing(err)
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
		_ = os.Remove(Dir()) // fails, as intended, unless the folder is empty
	}
	return errors.Join(errs...)
}

// sweepDevice removes a device's files if it can lock the whole state file: a process that uses, joins or
// leaves the device holds a lock on part of it.
func sweepDevice(dir *os.Root, state string) error {
	f, err := dir.OpenFile(state, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return ignoreMissing(err)
	}
	defer f.Close()
	err = unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	// Another process may have removed the file and created a new one since it was opened. In
	// that case the lock does not protect the new file.
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
	for _, file := range append(files, state) { // the state last: a process that waits for its lock finds the other files removed
		errs = append(errs, ignoreMissing(dir.Remove(file)))
	}
	return errors.Join(errs...)
}
