package profile

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/host"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/lockfile"
	"github.com/gfaas/gfaas/pkg/owndir"
)

// gpuNames are n GPUs from the named one on: what an instance that spans
// several gets.
func gpuNames(first string, n int) []string {
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

// gpuGroups are the GPUs to measure on, in groups of which each has one trial at
// a time: as many GPUs as the largest instance spans. Of one GPU that is named,
// it and those after it are the one group.
func gpuGroups(list string, fns []function.Function) ([][]string, error) {
	span := 1
	for _, fn := range fns {
		span = max(span, fn.GPUs)
	}
	names := strings.Split(list, ",")
	for i, name := range names {
		d, err := gpu.ParseDevice(strings.TrimSpace(name))
		if err != nil {
			return nil, cli.Usagef("--gpu: %w", err)
		}
		if names[i] = d.String(); slices.Contains(names[:i], names[i]) {
			return nil, cli.Usagef("--gpu %s: %s is given twice", list, names[i])
		}
	}
	if len(names) == 1 {
		return [][]string{gpuNames(names[0], span)}, nil
	}
	if len(names)%span != 0 {
		return nil, cli.Usagef("--gpu %s: %d GPUs, expected a multiple of the %d that an instance spans", list, len(names), span)
	}
	return slices.Collect(slices.Chunk(names, span)), nil
}

// modelOf is what the column gpu says of all groups. Rows of several models
// cannot be compared, so one profile is of one.
func modelOf(groups [][]string) (string, error) {
	names := slices.Concat(groups...)
	first, err := gpuModel(names[0])
	for _, name := range names[1:] {
		model, e := gpuModel(name)
		if err = errors.Join(err, e); err == nil && model != first {
			return "", cli.Usagef("--gpu: %s is %q and %s is %q: expected GPUs of one model", names[0], first, name, model)
		}
	}
	return first, err
}

// driverGPUs is where the NVIDIA kernel driver describes its devices.
const driverGPUs = "/proc/driver/nvidia/gpus"

// gpuModel is what the column gpu says: the model of the device, and "sim" for
// a simulated one, so that nobody takes its figures for a GPU's.
func gpuModel(name string) (string, error) {
	d, err := gpu.ParseDevice(name)
	switch {
	case err != nil:
		return "", cli.Usagef("--gpu: %w", err)
	case d.Simulated:
		return gpu.Device{Simulated: true}.String(), nil
	case d.MIG != "":
		return "", nil // which part of which model it is, the driver's files do not say
	}
	return modelAt(driverGPUs, d.Index), nil
}

// modelAt reads the model of the device with that index; empty when the driver
// does not tell for sure, as with devices of several models whose order is the
// user's to change.
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

// modelIn finds the line "Model: NAME".
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

// lockGPUs takes the GPUs for this run: two runs on one GPU would measure each
// other. The locks go with the process, however it ends; release removes
// their files too.
func lockGPUs(runDir string, gpus []string) (release func(), err error) {
	if err := owndir.Ensure(runDir); err != nil {
		return nil, noRunDir(err)
	}
	var held []*lockfile.Lock
	release = func() {
		for _, l := range held {
			_ = l.Remove()
		}
	}
	// In one order everywhere, so that two runs never wait for each other's.
	for _, name := range slices.Sorted(slices.Values(gpus)) {
		l, err := lockfile.Take(host.MeasuredLock(runDir, name))
		var other *lockfile.HeldError
		switch {
		case errors.As(err, &other):
			err = busy(name, other.PID)
		case errors.Is(err, fs.ErrPermission):
			err = noRunDir(err)
		}
		if err != nil {
			release()
			return nil, err
		}
		held = append(held, l)
	}
	return release, nil
}

func noRunDir(err error) error {
	return cli.Fail(cli.ExitUnavailable, owndir.Hint, fmt.Errorf("run directory: %w", err))
}

func busy(gpuName string, holder int) error {
	by := "another gfaas-profile run"
	if holder != 0 {
		by += fmt.Sprintf(" (process %d)", holder)
	}
	return cli.Fail(cli.ExitUnavailable, "wait until it is done, or choose another GPU with --gpu",
		fmt.Errorf("%s measures on GPU %s: two at once would measure each other", by, gpuName))
}
