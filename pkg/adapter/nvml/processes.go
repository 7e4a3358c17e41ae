package nvml

import (
	"fmt"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// Processes queries the utilization of GPUs, and the memory of GPUs and their processes. It opens the library on first use and keeps it
// open until Close. It is not safe for concurrent use.
type Processes struct {
	// API is the library to call. If nil, it is libnvidia-ml.so.1.
	API nvml.Interface
	// Simulated is as in NVML.
	Simulated string

	api nvml.Interface // nil until opened
}

// Memory returns the bytes that each process occupies on a GPU or MIG instance, contexts and other memory
// of the driver included. The keys are PIDs on the host. It omits processes for which the driver does not
// report the memory.
func (p *Processes) Memory(d gpu.Device) (map[int]gpu.Bytes, error) {
	if err := p.init(); err != nil {
		return nil, err
	}
	handle, ret := p.handle(d)
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("GPU %v: %w", d, ret)
	}
	used := map[int]gpu.Bytes{}
	for _, list := range []func() ([]nvml.ProcessInfo, nvml.Return){
		handle.GetComputeRunningProcesses, handle.GetMPSComputeRunningProcesses,
	} {
		found, ret := list()
		if ret == nvml.ERROR_NOT_SUPPORTED {
			continue
		}
		if ret != nvml.SUCCESS {
			return nil, fmt.Errorf("processes on GPU %v: %w", d, ret)
		}
		for _, info := range found {
			if info.UsedGpuMemory <= math.MaxInt64 { // larger values mean "not available"
				used[int(info.Pid)] = max(used[int(info.Pid)], gpu.Bytes(info.UsedGpuMemory))
			}
		}
	}
	return used, nil
}

// Free returns the free and the total memory of a GPU or MIG instance.
func (p *Processes) Free(d gpu.Device) (free, total gpu.Bytes, err error) {
	if err := p.init(); err != nil {
		return 0, 0, err
	}
	handle, ret := p.handle(d)
	if ret != nvml.SUCCESS {
		return 0, 0, fmt.Errorf("GPU %v: %w", d, ret)
	}
	memory, ret := handle.GetMemoryInfo()
	if ret == nvml.ERROR_NOT_SUPPORTED { // the GPU may share the host's memory
		return 0, 0, fmt.Errorf("memory of GPU %v is unknown, because NVML does not report it (set --gpu-mem): %w", d, ret)
	}
	if ret != nvml.SUCCESS {
		return 0, 0, fmt.Errorf("memory of GPU %v: %w", d, ret)
	}
	return gpu.Bytes(min(memory.Free, math.MaxInt64)), gpu.Bytes(min(memory.Total, math.MaxInt64)), nil
}

// Busy returns the fraction of NVML's last sample period in which a kernel ran on a GPU, 0 to 1. NVML does
// not report it for a MIG instance.
func (p *Processes) Busy(d gpu.Device) (float64, error) {
	if err := p.init(); err != nil {
		return 0, err
	}
	handle, ret := p.handle(d)
	if ret == nvml.SUCCESS {
		var rates nvml.Utilization
		if rates, ret = handle.GetUtilizationRates(); ret == nvml.SUCCESS {
			return min(float64(rates.Gpu)/100, 1), nil
		}
	}
	return 0, fmt.Errorf("utilization of GPU %v: %w", d, ret)
}

func (p *Processes) handle(d gpu.Device) (nvml.Device, nvml.Return) {
	if d.MIG != "" {
		return p.api.DeviceGetHandleByUUID(d.MIG)
	}
	return p.api.DeviceGetHandleByIndex(d.Index)
}

func (p *Processes) init() (err error) {
	if p.api == nil {
		p.api, err = open(p.API, p.Simulated)
	}
	return err
}

// Close closes the library if it was opened.
func (p *Processes) Close() {
	if p.api != nil {
		p.api.Shutdown()
		p.api = nil
	}
}
