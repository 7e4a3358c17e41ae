// Package nvml asks NVIDIA's management library what GPUs this machine has.
// The library comes with the driver and is opened when it is asked, so a
// machine without either can run all of this. The simulated driver has one too,
// which is asked in the same way where its path is given; a process can ask one of
// the two.
package nvml

import (
	"context"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// Device is one GPU.
type Device struct {
	Index  int
	Name   string
	UUID   string
	Mem    gpu.Bytes // 0 when the driver does not say
	Driver string    // the driver's version
	MIG    bool      // partitioned: it is used through its MIG instances
}

// Lister lists the GPUs; an error that is Unavailable says that there is no
// way to ask. NVML is the real one, Fake one for tests.
type Lister interface {
	Devices(ctx context.Context) ([]Device, error)
}

// UnavailableError says that the library cannot be asked.
type UnavailableError struct{ Err error }

func (e *UnavailableError) Error() string { return fmt.Sprintf("NVML cannot be asked: %v", e.Err) }

func (e *UnavailableError) Unwrap() error { return e.Err }

// Unavailable reports true.
func (e *UnavailableError) Unavailable() bool { return true }

// Hint is what to do about it.
func (e *UnavailableError) Hint() string {
	return "install the NVIDIA driver, with its libnvidia-ml.so.1"
}

// NVML is the Lister of this machine.
type NVML struct {
	// API is what is called; nil is libnvidia-ml.so.1.
	API nvml.Interface
	// Simulated is the path of the simulated driver's library, which then takes the
	// place of the machine's.
	Simulated string
}

// Devices opens the library, asks, and closes it.
func (n NVML) Devices(context.Context) ([]Device, error) {
	api, err := open(n.API, n.Simulated)
	if err != nil {
		return nil, err
	}
	defer api.Shutdown()
	driver, ret := api.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("version of the NVIDIA driver: %w", ret)
	}
	count, ret := api.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("number of GPUs: %w", ret)
	}
	var out []Device
	for i := range count {
		d, err := device(api, i)
		if err != nil {
			return nil, fmt.Errorf("GPU %d: %w", i, err)
		}
		d.Driver = driver
		out = append(out, d)
	}
	return out, nil
}

func device(api nvml.Interface, index int) (Device, error) {
	d := Device{Index: index}
	handle, ret := api.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return d, ret
	}
	if d.Name, ret = handle.GetName(); ret != nvml.SUCCESS {
		return d, ret
	}
	if d.UUID, ret = handle.GetUUID(); ret != nvml.SUCCESS {
		return d, ret
	}
	// Devices that share the host's memory, or know no MIG, say that these are
	// not supported.
	if mem, ret := handle.GetMemoryInfo(); ret == nvml.SUCCESS {
		d.Mem = gpu.Bytes(mem.Total)
	}
	if mode, _, ret := handle.GetMigMode(); ret == nvml.SUCCESS {
		d.MIG = mode == nvml.DEVICE_MIG_ENABLE
	}
	return d, nil
}

// Fake is a Lister that answers what it is told to.
type Fake struct {
	List []Device
	Err  error
}

// Devices returns List and Err.
func (f Fake) Devices(context.Context) ([]Device, error) { return f.List, f.Err }
