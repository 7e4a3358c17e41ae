// Package gpus prepares the GPUs to measure on: it groups them by the number of GPUs that an
// instance spans, finds their model, and locks them for one run.
//
// GPUs are named as gpu.ParseDevice accepts. The command gfaas-profile run calls the
// package. A lock is held by the process and ends with it; all functions are safe for
// concurrent use.
package gpus

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

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

// Groups splits GPUs into groups. Each has as many GPUs as the largest instance of the
// functions spans. If only one GPU is given, it forms a group with the GPUs of the next
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
		return nil, fmt.Errorf("%d GPUs, expected a multiple of the %d that an instance spans", len(names), span)
	}
	return slices.Collect(slices.Chunk(names, span)), nil
}

// Model returns the model of the GPUs for the column gpu of a profile: empty if the
// driver does not tell it, "sim" for simulated GPUs, so that their figures cannot be
// mistaken for a GPU's. It fails if the models differ, since rows of several models are
// not comparable.
func Model(groups [][]string) (string, error) {
	names := slices.Concat(groups...)
	first, err := modelOf(names[0])
	for _, name := range names[1:] {
		model, e := modelOf(name)
		if err = errors.Join(err, e); err == nil && model != first {
			return "", fmt.Errorf("%s is %q and %s is %q: expected GPUs of one model", names[0], first, name, model)
		}
	}
	return first, err
}

// driverGPUs is the folder in which the NVIDIA kernel driver describes its devices.
const driverGPUs = "/proc/driver/nvidia/gpus"

// modelOf returns the model of one GPU.
func modelOf(name string) (string, error) {
	d, err := gpu.ParseDevice(name)
	switch {
	case err != nil:
		return "", err
	case d.Simulated:
		return gpu.Device{Simulated: true}.String(), nil
	case d.MIG != "":
		return "", nil // the driver's files do not describe MIG instances
	}
	return modelAt(driverGPUs, d.Index), nil
}

// modelAt returns the model of the device with that index, from the files in dir. It is
// empty if the devices are of several models, since then the index does not determine the
// model: users can change the order of the devices.
func modelAt(dir string, index int) string {
	files, _ := filepath.Glob(filepath.Join(dir, "*", "information"))
	var models []string
	for _, path := range files {
		models = append(models, modelIn(path))
	}
	slices.Sort(models)
	if index >= len(models) || len(slices.Compact(models)) != 1 {
		return ""
	}
	return models[0]
}

// modelIn returns NAME of the line "Model: NAME" in a file; empty without one.
func modelIn(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, ok := strings.CutPrefix(lines.Text(), "Model:"); ok {
			return strings.TrimSpace(name)
		}
	}
	return ""
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
	return fmt.Sprintf("%s measures on GPU %s: two at once would measure each other", by, e.GPU)
}

// Unavailable returns true.
func (e *BusyError) Unavailable() bool { return true }

// Hint returns the next step for the user.
func (e *BusyError) Hint() string { return "wait until it is done, or choose another GPU with --gpu" }

// RunDirError reports a run directory in which no lock can be created.
type RunDirError struct{ err error }

func (e *RunDirError) Error() string { return "run directory: " + e.err.Error() }
func (e *RunDirError) Unwrap() error { return e.err }

// Unavailable returns true.
func (e *RunDirError) Unavailable() bool { return true }

// Hint returns the next step for the user.
func (e *RunDirError) Hint() string { return owndir.Hint }

// Lock locks the GPUs for this process, so that concurrent runs do not distort each
// other's results. It creates the run directory and in it the file that path names for
// each GPU. Release unlocks the GPUs and removes the files; the locks end with the
// process as well. The error is a *BusyError or a *RunDirError, or about a file.
func Lock(runDir string, names []string, path func(gpu string) string) (release func(), err error) {
	if err := owndir.Ensure(runDir); err != nil {
		return nil, &RunDirError{err}
	}
	var locks []*lockfile.Lock
	release = func() {
		for _, l := range locks {
			_ = l.Remove()
		}
	}
	// Sorted, so that of two runs that want the same GPUs one gets all.
	for _, name := range slices.Sorted(slices.Values(names)) {
		l, err := lockfile.Take(path(name))
		var held *lockfile.HeldError
		switch {
		case errors.As(err, &held):
			err = &BusyError{name, held.PID}
		case errors.Is(err, fs.ErrPermission):
			err = &RunDirError{err}
		}
		if err != nil {
			release()
			return nil, err
		}
		locks = append(locks, l)
	}
	return release, nil
}
