// Package gpus prepares the GPUs to measure on: it groups them by the number of GPUs that an
// instance spans, and locks them for one run.
//
// GPUs are named as gpu.ParseDevice accepts. The command gfaas-profile run calls the
// package. A lock is held by the process and ends with it; all functions are safe for
// concurrent use.
package gpus

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/lockfile"
	"github.com/gfaas/gfaas/pkg/owndir"
)

// consecutive returns the names of n GPUs with consecutive numbers from first on. If first is
// a MIG instance, the result is only that.
func consecutive(first string, n int) []string {
	d, err := gpu.ParseDevice(first)
	if err != nil || d.MIG != "" {
		return []string{first}
	}
	var names []string
	for range max(n, 1) {
		names = append(names, d.String())
		d.Index++
	}
	return names
}

// Groups splits GPUs into groups, which have the size of the functions' largest instance
// (its span). If only one GPU is given, it forms a group with the GPUs of the next
// numbers. Groups fails if the number of GPUs is not a multiple of the span.
func Groups(names []string, fns []function.Function) ([][]string, error) {
	span := 1
	for _, fn := range fns {
		span = max(span, fn.GPUs)
	}
	if len(names) == 1 {
		return [][]string{consecutive(names[0], span)}, nil
	}
	if len(names)%span != 0 {
		return nil, fmt.Errorf("%d GPUs, expected a multiple of %d, the number of GPUs of an instance", len(names), span)
	}
	return slices.Collect(slices.Chunk(names, span)), nil
}

// BusyError reports a GPU on which another run measures.
type BusyError struct {
	GPU string
	PID int // of the other run; 0 if unknown
}

func (e *BusyError) Error() string {
	by := "another gfaas-profile run"
	if e.PID != 0 {
		by += fmt.Sprintf(" (process %d)", e.PID)
	}
	return fmt.Sprintf("%s measures on GPU %s, and concurrent runs would distort each other's results", by, e.GPU)
}

// Unavailable returns true.
func (e *BusyError) Unavailable() bool { return true }

// Hint returns the next step for the user.
func (e *BusyError) Hint() string {
	return "wait until it has finished, or choose another GPU with --gpu"
}

// Lock locks the GPUs for this process, so that concurrent runs do not distort each
// other's results. It creates the run directory and in it the file that path names for
// each GPU. Release unlocks the GPUs and removes the files; the locks end with the
// process as well. The error is a *BusyError or a *owndir.RunDirError, or about a file.
func Lock(runDir string, names []string, path func(gpu string) string) (release func(), err error) {
	if err := owndir.Ensure(runDir); err != nil {
		return nil, &owndir.RunDirError{Err: err}
	}
	var locks []*lockfile.Lock
	release = func() {
		for _, l := range locks {
			_ = l.Remove()
		}
	}
	// Sorted, so that two runs cannot each lock a part of the same GPUs.
	for _, name := range slices.Sorted(slices.Values(names)) {
		l, err := lockfile.Acquire(path(name))
		if held, ok := errors.AsType[*lockfile.HeldError](err); ok {
			err = &BusyError{name, held.PID}
		} else if errors.Is(err, fs.ErrPermission) {
			err = &owndir.RunDirError{Err: err}
		}
		if err != nil {
			release()
			return nil, err
		}
		locks = append(locks, l)
	}
	return release, nil
}
