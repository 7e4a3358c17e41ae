package cuda

// #cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -Werror -I${SRCDIR}/../../../hook
// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/gpu/device"
)

// Library is the file name of the NVIDIA driver.
const Library = "libcuda.so.1"

// driver implements device.Device.
type driver struct {
	shim *C.shim
	uuid string
}

// Open opens the driver at a path, or searches for a file name as the dynamic loader does, and creates a
// context on a device. It sets CUDA_VISIBLE_DEVICES, which the driver reads only once, so a process can
// use only one device. Its error is a *ports.UnavailableError.
func Open(library string, of gpu.Device) (device.Device, error) {
	if err := errors.Join(
		os.Setenv("CUDA_VISIBLE_DEVICES", of.Visible()),
		os.Setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), // the order of NVML and nvidia-smi
	); err != nil {
		return nil, unavailable(err)
	}
	path := C.CString(library)
	defer C.free(unsafe.Pointer(path))
	var message *C.char
	d := &driver{shim: C.shim_open(path, &message)}
	if d.shim == nil {
		defer C.free(unsafe.Pointer(message))
		return nil, unavailable(errors.New(C.GoString(message)))
	}
	var id [16]byte
	C.shim_uuid(d.shim, (*C.uchar)(unsafe.Pointer(&id[0])))
	d.uuid = fmt.Sprintf("GPU-%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
	return d, nil
}

// result converts the result of a driver call to an error.
func result(operation string, r C.CUresult) error {
	switch r {
	case C.CUDA_SUCCESS:
		return nil
	case C.CUDA_ERROR_OUT_OF_MEMORY:
		return fmt.Errorf("%s: %w", operation, device.ErrFull)
	}
	return fmt.Errorf("%s: %s", operation, C.GoString(C.shim_text(r)))
}

func (d *driver) UUID() string { return d.uuid }

func (d *driver) Granularity() gpu.Bytes { return gpu.Bytes(C.shim_grain(d.shim)) }

func (d *driver) Close() error { return result("release the context", C.shim_close(d.shim)) }

// memory implements device.Memory.
type memory struct {
	shim *C.shim
	c    C.shim_memory
}

func (d *driver) Alloc(size gpu.Bytes) (device.Memory, error) {
	if size <= 0 {
		return nil, fmt.Errorf("allocate %d bytes: expected more than 0", int64(size))
	}
	m := &memory{shim: d.shim}
	if err := result("allocate GPU memory", C.shim_alloc(d.shim, C.size_t(size), &m.c)); err != nil {
		return nil, err
	}
	return m, nil
}

func (d *driver) Import(f *os.File, size gpu.Bytes) (device.Memory, error) {
	m := &memory{shim: d.shim}
	if err := result("map GPU memory", C.shim_import(d.shim, C.int(f.Fd()), C.size_t(size), &m.c)); err != nil {
		return nil, err
	}
	return m, nil
}

func (m *memory) Size() gpu.Bytes { return gpu.Bytes(m.c.size) }

func (m *memory) Export() (*os.File, error) {
	var fd C.int
	if err := result("export GPU memory", C.shim_export(m.shim, &m.c, &fd)); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "gpu memory"), nil
}

func (m *memory) Free() error { return result("free GPU memory", C.shim_free(m.shim, &m.c)) }

// stage implements device.Stage.
type stage struct {
	shim *C.shim
	c    C.shim_stage
	size int
}

func (d *driver) Stage(size gpu.Bytes) (device.Stage, error) {
	s := &stage{shim: d.shim, size: int(size)}
	if err := result("pin host memory", C.shim_stage_make(d.shim, C.size_t(size), &s.c)); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *stage) Buffer() []byte { return unsafe.Slice((*byte)(s.c.buffer), s.size) }

// place returns the device address of a copy of n bytes at offset at. It fails if the copy exceeds m or
// the stage.
func (s *stage) place(m device.Memory, at gpu.Bytes, n int) (C.CUdeviceptr, error) {
	own, ok := m.(*memory)
	if !ok || own.shim != s.shim {
		return 0, errors.New("copy: the memory belongs to another device")
	}
	return own.c.at + C.CUdeviceptr(at), within(m, at, n, s.size)
}

func (s *stage) Up(m device.Memory, at gpu.Bytes, n int) error {
	to, err := s.place(m, at, n)
	if err != nil || n == 0 {
		return err
	}
	return result("copy to the GPU", C.shim_up(s.shim, &s.c, to, C.size_t(n)))
}

func (s *stage) Down(m device.Memory, at gpu.Bytes, n int) error {
	from, err := s.place(m, at, n)
	if err != nil || n == 0 {
		return err
	}
	return result("copy from the GPU", C.shim_down(s.shim, &s.c, from, C.size_t(n)))
}

func (s *stage) Wait() error { return result("copy", C.shim_wait(s.shim, &s.c)) }

func (s *stage) Free() error { return result("free pinned memory", C.shim_stage_free(s.shim, &s.c)) }
