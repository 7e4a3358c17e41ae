package devices

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/gfaas/gfaas/pkg/adapter/nvml"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/lists"
)

// simulatedMem is the memory of a simulated GPU whose shape does not set it.
const simulatedMem = 16 * gpu.GiB

// simulatedModel is the model name of simulated GPUs. It marks their measurements as simulated.
const simulatedModel = "sim"

// GPU describes a GPU of this host.
type GPU struct {
	Name  string
	Mem   gpu.Bytes // 0 if unknown
	Model string    // in the spelling of gfaas-profile; empty if unknown
}

// List returns the GPUs in a list such as "0,1", or all simulated GPUs for "sim". For an empty list, it returns
// the GPUs in CUDA_VISIBLE_DEVICES or, if that is not set, all real GPUs without MIG, or all simulated GPUs if
// there is no driver.
func List(ctx context.Context, list string) ([]GPU, error) {
	var chosen []gpu.Device
	var err error
	if list == "sim" {
		chosen, err = visibleDevices(true)
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
		return realGPUs(ctx, lists.Map(chosen, gpu.Device.String))
	}
	mem, err := simulatedMemory(os.Getenv("GFAAS_SIM_GPU"))
	if err != nil {
		return nil, err
	}
	return lists.Map(chosen, func(d gpu.Device) GPU { return GPU{d.String(), mem, simulatedModel} }), nil
}

// realGPUs returns the real GPUs with the given names, or all without MIG if names is nil.
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
		one := known[name] // empty for a MIG instance
		one.Name = name
		out = append(out, one)
	}
	if len(out) == 0 {
		return nil, cli.Fail(cli.ExitUnavailable, "use the simulated GPU with --gpu sim, or a MIG instance with --gpu MIG-UUID", fmt.Errorf("no GPU found that is not partitioned by MIG"))
	}
	return out, nil
}

// simulatedMemory returns the memory of each GPU in a shape of the simulated driver.
func simulatedMemory(shape string) (gpu.Bytes, error) {
	text, found := shapeValue(shape, "mem")
	if !found {
		return simulatedMem, nil
	}
	mem, err := gpu.ParseBytes(text)
	if err == nil && mem == 0 {
		err = errors.New("0: expected more than 0")
	}
	if err != nil {
		return 0, cli.Fail(cli.ExitFailure, SimShapeHint, fmt.Errorf("GFAAS_SIM_GPU: mem: %w", err))
	}
	return mem, nil
}
