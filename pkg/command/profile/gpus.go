package profile

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
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

// lanes are the GPUs to measure on, by trial: on each lane one at a time. One
// GPU is a lane, with those after it when an instance spans several; of a
// list, so many together as the largest instance spans.
func lanes(list string, fns []function.Function) ([][]string, error) {
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

// modelOf is what the column gpu says of all lanes. Rows of several models
// cannot be compared, so one profile is of one.
func modelOf(lanes [][]string) (string, error) {
	names := slices.Concat(lanes...)
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
