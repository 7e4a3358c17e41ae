package devices

import (
	"fmt"
	"os"
	"sync"

	"github.com/gfaas/gfaas/pkg/adapter/nvml"
	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/gpu"
)

// Occupancy queries the drivers for the utilization and the memory use of GPUs, real and simulated. It is safe for concurrent use.
type Occupancy struct {
	simulated string // path of the simulated management library; empty if it cannot be used
	mu        sync.Mutex
	library   nvml.Processes
}

// NewOccupancy returns an Occupancy. It opens no library yet.
func NewOccupancy() *Occupancy {
	path := SimulatedNVML()
	return &Occupancy{simulated: path, library: nvml.Processes{Simulated: path}}
}

// Close closes the library.
func (o *Occupancy) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.library.Close()
}

// device returns the GPU with a name. readable is false for a simulated GPU whose management
// library cannot be used.
func (o *Occupancy) device(name string) (d gpu.Device, readable bool, err error) {
	if d, err = gpu.ParseDevice(name); err == nil && !d.Simulated && o.simulated != "" {
		err = fmt.Errorf("GPU %s: no NVIDIA driver found", name)
	}
	return d, !d.Simulated || o.simulated != "", err
}

// Processes returns the memory of each process on a GPU by PID, including its contexts.
func (o *Occupancy) Processes(name string) (map[int]gpu.Bytes, error) {
	d, readable, err := o.device(name)
	if err != nil {
		return nil, err
	}
	if !readable {
		return simgpu.ProcessMemory(simgpu.Dir(), d.Index)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.library.Memory(d)
}

// Free returns the free and the total memory of a GPU.
func (o *Occupancy) Free(name string) (free, total gpu.Bytes, err error) {
	d, readable, err := o.device(name)
	if err != nil {
		return 0, 0, err
	}
	if !readable {
		return simulatedFree(d.Index)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.library.Free(d)
}

// Busy returns the fraction of the time in which a kernel ran on a GPU lately, 0 to 1. It fails for a
// simulated GPU whose management library cannot be used.
func (o *Occupancy) Busy(name string) (float64, error) {
	d, readable, err := o.device(name)
	if err == nil && !readable {
		err = fmt.Errorf("utilization of GPU %s: the simulated management library cannot be used", name)
	}
	if err != nil {
		return 0, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.library.Busy(d)
}

// Beyond returns a message about a memory limit that exceeds the GPU's memory. It returns "" if the limit
// does not, or if the driver does not report the GPU's memory.
func (o *Occupancy) Beyond(name string, limit gpu.Bytes) string {
	if limit == 0 {
		return ""
	}
	_, total, err := o.Free(name)
	if err != nil || total == 0 || limit <= total {
		return ""
	}
	return fmt.Sprintf("the memory limit %v has no effect: it exceeds the memory of GPU %s, %v", limit, name, total)
}

// simulatedFree returns the free and the total memory of a simulated GPU without the management library, by
// adding up the memory of its processes.
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
