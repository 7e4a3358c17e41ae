package devices

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/gfaas/gfaas/pkg/adapter/nvml"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/gpu"
)

// simulatedMem is the memory of a simulated GPU whose shape says nothing of it.
const simulatedMem = 16 * gpu.GiB

// simulatedModel is the GPU model of simulated GPUs, so that nobody takes their figures
// for a GPU's.
const simulatedModel = "sim"

// GPU is one of this machine's.
type GPU struct {
	Name  string
	Mem   gpu.Bytes // 0 where the driver does not say
	Model string    // as gfaas-profile writes it; empty where the driver does not say
}

// List are those that a list names, all where it is empty: "0,1", or "sim" for all
// simulated ones. Where CUDA_VISIBLE_DEVICES is set, all are those that it names.
func List(ctx context.Context, list string) ([]GPU, error) {
	var chosen []gpu.Device
	var err error
	if list == "sim" {
		chosen, err = all(true)
	} else {
		chosen, err = Choose(list)
	}
	switch {
	case err != nil:
		return nil, err
	case len(chosen) == 0 && list == "" && Default() != "sim":
		return realGPUs(ctx, nil)
	case len(chosen) == 0:
		for i := range Count(true) {
			chosen = append(chosen, gpu.Device{Index: i, Simulated: true})
		}
	}
	if !chosen[0].Simulated {
		var names []string
		for _, d := range chosen {
			names = append(names, d.String())
		}
		return realGPUs(ctx, names)
	}
	mem, err := simulatedMemory(os.Getenv("GFAAS_SIM_GPU"))
	if err != nil {
		return nil, err
	}
	var out []GPU
	for _, d := range chosen {
		out = append(out, GPU{d.String(), mem, simulatedModel})
	}
	return out, nil
}

// realGPUs are the driver's: those of these names, or all that are not
// partitioned.
func realGPUs(ctx context.Context, names []string) (out []GPU, err error) {
	devices, err := nvml.NVML{}.Devices(ctx)
	if err != nil {
		return nil, err
	}
	known := map[string]GPU{}
	for _, d := range devices {
		name := gpu.Device{Index: d.Index}.String()
		known[name] = GPU{name, d.Mem, d.Name}
		if names == nil && !d.MIG {
			out = append(out, known[name])
		}
	}
	for _, name := range names {
		one := known[name] // of a MIG instance nothing is
		one.Name = name
		out = append(out, one)
	}
	if len(out) == 0 {
		return nil, cli.Fail(cli.ExitUnavailable, "--gpu sim runs on the simulated GPU", fmt.Errorf("no GPU is there that is not partitioned"))
	}
	return out, nil
}

// simulatedMemory is how much memory each simulated GPU has.
func simulatedMemory(shape string) (gpu.Bytes, error) {
	for part := range strings.SplitSeq(shape, ",") {
		if text, ok := strings.CutPrefix(strings.TrimSpace(part), "mem="); ok {
			mem, err := gpu.ParseBytes(text)
			if err == nil && mem == 0 {
				err = errors.New("0: expected more than 0")
			}
			if err != nil {
				return 0, cli.Fail(cli.ExitFailure, SimShapeHint, fmt.Errorf("GFAAS_SIM_GPU: mem: %w", err))
			}
			return mem, nil
		}
	}
	return simulatedMem, nil
}
