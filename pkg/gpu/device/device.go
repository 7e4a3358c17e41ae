// Package device is the port to a GPU's memory: memory that other processes can map, and copies to and
// from it. Adapters implement it; the model daemon uses it.
package device

import (
	"errors"
	"os"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// Device is one GPU with this process's context on it. It is safe for concurrent use.
type Device interface {
	// UUID returns the GPU's UUID as nvidia-smi prints it.
	UUID() string
	// Granularity returns the unit of memory sizes.
	Granularity() gpu.Bytes
	// Alloc allocates memory that other processes can map, rounded up to the granularity. Its contents
	// are undefined. If the GPU is out of memory, Full reports true for the error.
	Alloc(size gpu.Bytes) (Memory, error)
	// Import maps another process's memory of that size, read-only. It does not close the file.
	Import(f *os.File, size gpu.Bytes) (Memory, error)
	// Stage allocates pinned host memory for copies.
	Stage(size gpu.Bytes) (Stage, error)
	// Close releases the context. All memory and stages must have been freed.
	Close() error
}

// Memory is an allocation on a GPU, or a mapping of another process's.
type Memory interface {
	Size() gpu.Bytes
	// Export returns a descriptor with which another process can map the memory. The memory is released
	// once it was freed here, all descriptors are closed and no process has it mapped.
	Export() (*os.File, error)
	Free() error
}

// Stage is pinned host memory for one copy at a time. Copies of different stages overlap.
type Stage interface {
	Buffer() []byte
	// Up starts a copy of the first n bytes of the buffer to m at offset at; Down starts one in the
	// opposite direction. Neither waits.
	Up(m Memory, at gpu.Bytes, n int) error
	Down(m Memory, at gpu.Bytes, n int) error
	// Wait waits for the end of the copy. The buffer must not be used before that.
	Wait() error
	Free() error
}

// ErrFull is the error of a GPU that is out of memory.
var ErrFull = errors.New("the GPU is out of memory")

// Full reports whether an error is ErrFull.
func Full(err error) bool { return errors.Is(err, ErrFull) }
