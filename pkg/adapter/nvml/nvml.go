// Package nvml queries GPUs with NVIDIA's management library (NVML). Type NVML lists the GPUs of a node,
// Processes queries the memory of processes, and Meter measures utilization and power. The package opens
// the library on first use, so programs also run on hosts without it. The package can also open the
// library of the simulated driver, if its path is given. The first library that a process opens, real or
// simulated, is the only one that it can use.
package nvml

import (
	"context"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// Device describes a GPU.
type Device struct {
	Index  int
	Name   string
	UUID   string
	Mem    gpu.Bytes // 0 if the driver does not report it
	Driver string    // the driver's version
	MIG    bool      // MIG mode is on: processes can use only the GPU's MIG instances
}

// unavailable returns the *ports.UnavailableError for a library that cannot be opened.
func unavailable(err error) error {
	return &ports.UnavailableError{
		Err:    fmt.Errorf("cannot use NVML: %w", err),
		Remedy: "install the NVIDIA driver, with its libnvidia-ml.so.1",
	}
}

// NVML lists the GPUs of this node.
type NVML struct {
	// API is the library to call. If it is nil, Devices opens the library at Simulated or, if that is
	// empty, libnvidia-ml.so.1.
	API nvml.Interface
	// Simulated is the path of the simulated driver's library, or empty for the real library.
	Simulated string
}

// Devices opens the library, queries all GPUs and closes the library. If the library cannot be opened,
// the error is a *ports.UnavailableError.
func (n NVML) Devices(context.Context) ([]Device, error) {
	api, err := open(n.API, n.Simulated)
	if err != nil {
		return nil, err
	}
	defer api.Shutdown()
	driver, ret := api.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("query the version of the NVIDIA driver: %w", ret)
	}
	count, ret := api.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("query the number of GPUs: %w", ret)
	}
	var devices []Device
	for i := range count {
		d, err := device(api, i)
		if err != nil {
			return nil, fmt.Errorf("query GPU %d: %w", i, err)
		}
		d.Driver = driver
		devices = append(devices, d)
	}
	return devices, nil
}

// device queries the GPU with the given index.
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
	// The driver does not support GetMemoryInfo on GPUs that share the host's memory, or GetMigMode on
	// GPUs without MIG.
	if mem, ret := handle.GetMemoryInfo(); ret == nvml.SUCCESS {
		d.Mem = gpu.Bytes(mem.Total)
	}
	if mode, _, ret := handle.GetMigMode(); ret == nvml.SUCCESS {
		d.MIG = mode == nvml.DEVICE_MIG_ENABLE
	}
	return d, nil
}
