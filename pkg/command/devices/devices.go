// Package devices finds and chooses the GPUs of this host, real and simulated, for the commands. It interprets
// --gpu and CUDA_VISIBLE_DEVICES (Choose, Find), lists GPUs with their memory and model (List), and queries
// the memory in use (Occupancy).
package devices

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/adapter/nvml"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/gpu"
)

// SimShapeHint is the hint on how to simulate more GPUs.
const SimShapeHint = `set the number and size of simulated GPUs with GFAAS_SIM_GPU, like "sms=80,mem=16GiB,count=4"`

// Check returns an error (ExitUnavailable) if this host does not have the GPU: its index is too high, or there
// is no driver for it.
func Check(name string) error {
	_, err := Find("--gpu", name)
	return err
}

func checkExists(d gpu.Device) error {
	hint := SimShapeHint
	if !d.Simulated {
		if !preload.HasNVIDIA() {
			return cli.Fail(cli.ExitUnavailable, "use the simulated GPU with --gpu sim",
				fmt.Errorf("GPU %s cannot be used: no NVIDIA driver found", d))
		}
		hint = "nvidia-smi -L lists the GPUs of this machine"
	}
	if d.MIG != "" {
		return nil // the driver checks it
	}
	if have := Count(d.Simulated); d.Index >= have {
		return cli.Fail(cli.ExitUnavailable, hint,
			fmt.Errorf("GPU %s cannot be used: this machine has %d GPU(s), counted from 0", d, have))
	}
	return nil
}

// Count returns the number of real or of simulated GPUs.
func Count(simulated bool) int {
	if simulated {
		return simDevices(os.Getenv("GFAAS_SIM_GPU"))
	}
	found, err := filepath.Glob("/dev/nvidia[0-9]*")
	if err != nil {
		return 0
	}
	return len(found)
}

// simDevices returns the number of GPUs in a shape of the simulated driver.
func simDevices(shape string) int {
	text, _ := shapeValue(shape, "count")
	if n, err := strconv.Atoi(text); err == nil && n > 0 {
		return n
	}
	return 1
}

// shapeValue returns the value of a key in a shape of the simulated driver, such as sms=80,mem=16GiB.
func shapeValue(shape, key string) (value string, found bool) {
	for part := range strings.SplitSeq(shape, ",") {
		if value, found = strings.CutPrefix(strings.TrimSpace(part), key+"="); found {
			return value, true
		}
	}
	return "", false
}

// Default returns the GPU that is used if none is named: "0" if there is an NVIDIA driver, and the simulated
// GPU otherwise.
func Default() string {
	if preload.HasNVIDIA() {
		return "0"
	}
	return gpu.Device{Simulated: true}.String()
}

// SimulatedNVML returns the path of the simulated management library. It returns "" if the library is not
// installed, or if there is a real driver: a process can load only one library, and loads the real one.
func SimulatedNVML() string {
	libs, err := preload.FindLibs()
	if err != nil || libs.SimDir == "" || preload.HasNVIDIA() {
		return ""
	}
	path := filepath.Join(libs.SimDir, nvml.Library)
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// NoteSimulated prints a note that the following results come from a simulated GPU. It adds the reason, unless
// --gpu names a GPU.
func NoteSimulated(env *cli.Env) {
	reason := ""
	if env.Flag("gpu") == "" && !preload.HasNVIDIA() {
		reason = "no NVIDIA driver found: "
	}
	env.Notef("note: %srunning on the simulated GPU; its figures are not those of a real GPU", reason)
	_ = os.Setenv("GFAAS_SIM_NOTED", "1") // keeps the driver from repeating the note, here and in child processes
}
