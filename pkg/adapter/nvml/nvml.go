// Package nvml queries GPUs with NVIDIA's management library: which GPUs there are (NVML), the memory of
// their processes (Processes), and their utilisation and power (Meter). It opens the library on first
// use, so programs also run on hosts without it. If its path is given, the simulated driver's library is
// used instead. One process can use only one of the two libraries.
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
	MIG    bool      // MIG mode: processes use its MIG instances
}

// unavailable returns the error of a library that cannot be used.
func unavailable(err error) error {
	return &ports.UnavailableError{
		Err:    fmt.Errorf("cannot use NVML: %w", err),
		Remedy: "install the NVIDIA driver, with its libnvidia-ml.so.1",
	}
}

// NVML lists the GPUs of this node.
type NVML struct {
	// API is the library to call. If nil, it is libnvidia-ml.so.1.
	API nvml.Interface
	// Simulated is the path of the simulated driver's library. If set, it replaces the real
	// library.
	Simulated string
}

// Devices opens the library, queries all GPUs and closes the library. An error that is Unavailable
// means that they cannot be queried.
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
	var devices []Device
	for i := range count {
		d, err := device(api, i)
		if err != nil {
			return nil, fmt.Errorf("GPU %d: %w", i, err)
		}
		d.Driver = driver
		devices = append(devices, d)
	}
	return devices, nil
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
	// The driver does not support these calls on GPUs that share the host's memory or lack
	// MIG.
	if mem, ret := handle.GetMemoryInfo(); ret == nvml.SUCCESS {
		d.Mem = gpu.Bytes(mem.Total)
	}
	if mode, _, ret := handle.GetMigMode(); ret == nvml.SUCCESS {
		d.MIG = mode == nvml.DEVICE_MIG_ENABLE
	}
	return d, nil
}
