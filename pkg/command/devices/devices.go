// Package devices is which GPUs this machine has, the simulated one's among them, for
// the commands that are told of one or choose.
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

// SimShapeHint says how the simulated machine gets more GPUs.
const SimShapeHint = `the shape of the simulated machine is set by GFAAS_SIM_GPU, as in "sms=80,mem=16GiB,count=4"`

// Check refuses a GPU that this machine does not have: one that needs a
// driver where there is none, or a number beyond the last (exit 4).
func Check(name string) error {
	_, err := Find("--gpu", name)
	return err
}

func there(d gpu.Device) error {
	hint := SimShapeHint
	if !d.Simulated {
		if !preload.HasNVIDIA() {
			return cli.Fail(cli.ExitUnavailable, "--gpu sim runs on the simulated GPU",
				fmt.Errorf("GPU %s cannot be used: no NVIDIA driver found", d))
		}
		hint = "nvidia-smi -L lists the GPUs that are there"
	}
	if d.MIG != "" {
		return nil // the driver says whether it is there
	}
	if have := Count(d.Simulated); d.Index >= have {
		return cli.Fail(cli.ExitUnavailable, hint,
			fmt.Errorf("GPU %s cannot be used: this machine has %d GPU(s), counted from 0", d, have))
	}
	return nil
}

// Count counts the GPUs of this machine, or of the simulated one.
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

// simDevices is how many GPUs the simulated driver will show.
func simDevices(shape string) int {
	for part := range strings.SplitSeq(shape, ",") {
		if text, ok := strings.CutPrefix(strings.TrimSpace(part), "count="); ok {
			if n, err := strconv.Atoi(text); err == nil && n > 0 {
				return n
			}
		}
	}
	return 1
}

// Default is the GPU that is used when none is named: "0" where there is
// an NVIDIA driver, else the simulated one.
func Default() string {
	if preload.HasNVIDIA() {
		return "0"
	}
	return gpu.Device{Simulated: true}.String()
}

// SimulatedNVML is the path of the simulated driver's management library; empty
// where it is not installed, or where a real driver is: a process can ask one of the
// two, and that is then the real one.
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

// NoteSimulated says on standard error that figures from now on are not a
// GPU's, and why, unless a GPU was named by --gpu.
func NoteSimulated(env *cli.Env) {
	why := ""
	if env.Flag("gpu") == "" && !preload.HasNVIDIA() {
		why = "no NVIDIA driver found: "
	}
	env.Notef("note: %srunning on the simulated GPU; its figures are not a GPU's", why)
	_ = os.Setenv("GFAAS_SIM_NOTED", "1") // the driver, here or in what is started, need not say it again
}
