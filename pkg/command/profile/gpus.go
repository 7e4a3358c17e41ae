package profile

import (
	"bufio"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
)

// gpuNames are n GPUs from the named one on: what an instance that spans
// several gets.
func gpuNames(first string, n int) []string {
	index, simulated, err := gpu.ParseName(first)
	if err != nil {
		return []string{first}
	}
	names := make([]string, 0, n)
	for i := index; i < index+max(n, 1); i++ {
		if simulated {
			names = append(names, gpu.SimName(i))
		} else {
			names = append(names, strconv.Itoa(i))
		}
	}
	return names
}

// gpusOf are all GPUs that the functions will be measured on.
func gpusOf(first string, fns []function.Function) []string {
	most := 1
	for _, fn := range fns {
		most = max(most, fn.GPUs)
	}
	return gpuNames(first, most)
}

// driverGPUs is where the NVIDIA kernel driver describes its devices.
const driverGPUs = "/proc/driver/nvidia/gpus"

// gpuModel is what the column gpu says: the model of the device, and "sim" for
// a simulated one, so that nobody takes its figures for a GPU's.
func gpuModel(name string) (string, error) {
	index, simulated, err := gpu.ParseName(name)
	if err != nil {
		return "", cli.Usagef("--gpu: %w", err)
	}
	if simulated {
		return gpu.SimName(0), nil
	}
	return modelAt(driverGPUs, index), nil
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
