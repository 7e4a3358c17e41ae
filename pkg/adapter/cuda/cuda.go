// Package cuda holds GPU memory that other processes can map: it makes the few
// calls of the CUDA driver for that.
//
// The driver is opened when it is asked for, by dlopen in a shim of C: a machine
// without one can run the program, and tests give it the simulated driver by its
// path. The shim is cgo, as NVML's library needs it anyway: the types are
// hook/cuda.h's, by which the preload library and the simulated driver are built
// too, and the C compiler checks every call against them. What uses this package is
// no static program.
package cuda

import (
	"fmt"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/gpu/device"
)

// UnavailableError says that there is no driver, or no GPU, that could be used.
type UnavailableError struct{ Err error }

func (e *UnavailableError) Error() string { return fmt.Sprintf("CUDA cannot be used: %v", e.Err) }

func (e *UnavailableError) Unwrap() error { return e.Err }

// Unavailable reports true.
func (e *UnavailableError) Unavailable() bool { return true }

// Hint is what to do about it.
func (e *UnavailableError) Hint() string {
	return "install the NVIDIA driver, or use the simulated one with --gpu sim"
}

// within says what is wrong with a copy of n bytes at a place of m, if anything.
func within(m device.Memory, at gpu.Bytes, n, buffer int) error {
	if n < 0 || n > buffer || at < 0 || gpu.Bytes(n) > m.Size()-at {
		return fmt.Errorf("copy %d bytes at %d: there are %d, and a buffer of %d", n, int64(at), int64(m.Size()), buffer)
	}
	return nil
}
