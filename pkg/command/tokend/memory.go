package tokend

import (
	"github.com/gfaas/gfaas/pkg/adapter/nvml"
	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/gpu"
)

// occupancy tells what processes occupy of GPUs, real and simulated.
type occupancy struct{ real nvml.Processes }

func (o *occupancy) of(name string) (map[int]gpu.Bytes, error) {
	d, err := gpu.ParseDevice(name)
	if err != nil {
		return nil, err
	}
	if d.Simulated {
		return simgpu.ProcessMemory(simgpu.Dir(), d.Index)
	}
	return o.real.Memory(d)
}
