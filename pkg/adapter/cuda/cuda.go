// Package cuda allocates GPU memory that other processes can map, and parks the GPU memory of processes
// (Park, Unpark) with the driver's checkpoints. It implements gpu/device.Device for pkg/daemon/model.
//
// A shim in C opens the driver with dlopen on first use. So programs also run on hosts without a driver,
// and tests can open the simulated driver by its path. The shim uses the types of hook/cuda.h, like the
// preload library and the simulated driver, so that the C compiler checks all calls. Programs that use
// this package need cgo and are not static.
package cuda

import (
	"fmt"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/gpu/device"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// unavailable returns the error of a host without a usable driver or GPU.
func unavailable(err error) error {
	return &ports.UnavailableError{
		Err:    fmt.Errorf("CUDA cannot be used: %w", err),
		Remedy: "install the NVIDIA driver, or use the simulated one with --gpu sim",
	}
}

// within returns an error if a copy of n bytes at offset at exceeds m or the buffer.
func within(m device.Memory, at gpu.Bytes, n, buffer int) error {
	if n < 0 || n > buffer || at < 0 || gpu.Bytes(n) > m.Size()-at {
		return fmt.Errorf("copy %d bytes at offset %d: out of range, the memory has %d bytes and the buffer %d", n, int64(at), int64(m.Size()), buffer)
	}
	return nil
}
