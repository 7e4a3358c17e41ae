package rollout

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/lockfile"
)

const (
	measuredPrefix = "profile-"
	lockSuffix     = ".lock"
)

// MeasuredID returns the ID of the instance that gfaas-profile measures on a GPU.
func MeasuredID(gpuName string) string {
	return measuredPrefix + strings.ReplaceAll(gpuName, ":", "-")
}

// MeasuredNames returns the names with which MeasuredID and MeasuredLock distinguish n instances on a GPU. The first
// is that of the GPU.
func MeasuredNames(gpuName string, n int) []string {
	names := []string{gpuName}
	for i := 2; i <= n; i++ {
		names = append(names, fmt.Sprintf("%s.%d", gpuName, i))
	}
	return names
}

// MeasuredLock returns the path of the lock file that gfaas-profile holds while it measures on a GPU. The file
// remains if gfaas-profile is killed.
func MeasuredLock(runDir, gpuName string) string {
	return filepath.Join(runDir, MeasuredID(gpuName)+lockSuffix)
}

// StopMeasured stops the instances of killed gfaas-profile runs, which have left a lock file that no process
// holds. The run directory must belong to the user.
func StopMeasured(ctx context.Context, s ports.Starter, runDir string) error {
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

// IsMeasured reports whether an instance belongs to gfaas-profile.
func IsMeasured(id string) bool { return strings.HasPrefix(id, measuredPrefix) }

func stopMeasured(ctx context.Context, s ports.Starter, path string) error {
	lock, err := lockfile.AcquireExisting(path)
	if _, ok := errors.AsType[*lockfile.HeldError](err); ok || errors.Is(err, fs.ErrNotExist) { // still running, or just ended
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
