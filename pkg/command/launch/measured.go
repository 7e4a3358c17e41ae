package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	measuredPrefix = "profile-"
	lockSuffix     = ".lock"
)

// MeasuredID names the one instance that gfaas-profile measures on a GPU.
func MeasuredID(gpuName string) string {
	return measuredPrefix + strings.ReplaceAll(gpuName, ":", "-")
}

// MeasuredLock is the file that gfaas-profile keeps locked while it measures on
// a GPU, and removes when it ends in order.
func MeasuredLock(runDir, gpuName string) string {
	return filepath.Join(runDir, MeasuredID(gpuName)+lockSuffix)
}

// StopMeasured ends the instances of every gfaas-profile that was killed: its
// lock is there, and nobody holds it.
func (l *Launcher) StopMeasured(ctx context.Context) error {
	locks, err := fs.Glob(os.DirFS(l.options.RunDir), measuredPrefix+"*"+lockSuffix)
	if err != nil {
		return err
	}
	var failed []error
	for _, name := range locks {
		failed = append(failed, l.stopMeasured(ctx, filepath.Join(l.options.RunDir, name)))
	}
	return errors.Join(failed...)
}

func (l *Launcher) stopMeasured(ctx context.Context, path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil // its holder ended just now
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return l.stopUnlocked(ctx, f)
}

// stopUnlocked ends what a lock file is of, if nobody holds the lock.
func (l *Launcher) stopUnlocked(ctx context.Context, f *os.File) error {
	path := f.Name()
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil // it measures
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", path, err)
	}
	opened, err := f.Stat()
	if err != nil {
		return err
	}
	if there, err := os.Stat(path); err != nil || !os.SameFile(opened, there) {
		return nil // its holder ended since, and the next one may measure by now
	}
	id := strings.TrimSuffix(filepath.Base(path), lockSuffix)
	if err := l.Stop(ctx, Started{ID: id, Registered: []string{id}}); err != nil {
		return err
	}
	return os.Remove(path) // while it is locked, as its next holder expects
}
