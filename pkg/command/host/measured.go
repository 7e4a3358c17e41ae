package host

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/lockfile"
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
func StopMeasured(ctx context.Context, s ports.Starter, runDir string) error {
	if err := tokend.CheckOwner(runDir); err != nil { // the locks could be anybody's
		return err
	}
	locks, err := fs.Glob(os.DirFS(runDir), measuredPrefix+"*"+lockSuffix)
	if err != nil {
		return err
	}
	var failed []error
	for _, name := range locks {
		failed = append(failed, stopMeasured(ctx, s, filepath.Join(runDir, name)))
	}
	return errors.Join(failed...)
}

// IsMeasured reports whether an instance is one that gfaas-profile measures.
func IsMeasured(id string) bool { return strings.HasPrefix(id, measuredPrefix) }

func stopMeasured(ctx context.Context, s ports.Starter, path string) error {
	lock, err := lockfile.TakeExisting(path)
	var measures *lockfile.HeldError
	if errors.As(err, &measures) || errors.Is(err, fs.ErrNotExist) { // or has ended just now
		return nil
	}
	if err != nil {
		return err
	}
	id := strings.TrimSuffix(filepath.Base(path), lockSuffix)
	if err := s.Stop(ctx, instance.Record{ID: id, Registered: []string{id}}); err != nil {
		return errors.Join(err, lock.Close())
	}
	return lock.Remove()
}
