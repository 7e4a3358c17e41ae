package devices

import (
	"fmt"
	"os"
	"sync"

	"github.com/gfaas/gfaas/pkg/adapter/nvml"
	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/gpu"
)

// Occupancy asks drivers how the memory of GPUs, real and simulated, is used. It is
// safe for concurrent use.
type Occupancy struct {
	simulated string // path of the simulated management library; empty where it cannot be asked
	mu        sync.Mutex
	library   nvml.Processes
}

// NewOccupancy returns an Occupancy. It opens nothing yet.
func NewOccupancy() *Occupancy {
	path := SimulatedNVML()
	return &Occupancy{simulated: path, library: nvml.Processes{Simulated: path}}
}

// Close closes what was opened.
func (o *Occupancy) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.library.Close()
}

// Processes returns the memory that each process has of a GPU, its contexts included, by
// process number.
func (o *Occupancy) Processes(name string) (map[int]gpu.Bytes, error) {
	d, err := gpu.ParseDevice(name)
	if err != nil {
		return nil, err
	}
	if d.Simulated && o.simulated == "" {
		return simgpu.ProcessMemory(simgpu.Dir(), d.Index)
	}
	if !d.Simulated && o.simulated != "" {
		return nil, fmt.Errorf("GPU %s: no NVIDIA driver found", name)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.library.Memory(d)
}

// Free returns how much memory of a GPU is free, and how much it has in all.
func (o *Occupancy) Free(name string) (free, total gpu.Bytes, err error) {
	d, err := gpu.ParseDevice(name)
	if err != nil {
		return 0, 0, err
	}
	if d.Simulated && o.simulated == "" {
		return simulatedFree(d.Index)
	}
	if !d.Simulated && o.simulated != "" {
		return 0, 0, fmt.Errorf("GPU %s: no NVIDIA driver found", name)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.library.Free(d)
}

// Beyond returns a text about a memory limit that is more than a GPU has. It is empty if
// the limit is not, or if the driver does not say how much the GPU has.
func (o *Occupancy) Beyond(name string, limit gpu.Bytes) string {
	if limit == 0 {
		return ""
	}
	_, total, err := o.Free(name)
	if err != nil || total == 0 || limit <= total {
		return ""
	}
	return fmt.Sprintf("the memory limit %v is more than GPU %s has, %v: it limits nothing", limit, name, total)
}

// simulatedFree is Free where the simulated management library cannot be asked: it adds
// up what processes have.
func simulatedFree(index int) (free, total gpu.Bytes, err error) {
	total, err = simulatedMemory(os.Getenv("GFAAS_SIM_GPU"))
	if err != nil {
		return 0, 0, err
	}
	processes, err := simgpu.ProcessMemory(simgpu.Dir(), index)
	if err != nil {
		return 0, 0, err
	}
	free = total
	for _, used := range processes {
		free -= used
	}
	return max(free, 0), total, nil
}
