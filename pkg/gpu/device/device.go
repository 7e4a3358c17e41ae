// Package device is the port to a GPU's memory: memory that other processes can map,
// and copying to and from it. Adapters implement it, the model daemon uses it.
package device

import (
	"errors"
	"os"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// Device is one GPU, with this process's context on it. It is safe for concurrent
// use.
type Device interface {
	// UUID is the GPU's, as nvidia-smi prints it.
	UUID() string
	// Granularity is what the size of memory is a multiple of.
	Granularity() gpu.Bytes
	// Alloc takes memory for others to map, rounded up to the granularity.
	// What is in it is anything. When there is none the error is Full.
	Alloc(size gpu.Bytes) (Memory, error)
	// Import maps another process's memory, of that size, for reading alone. The
	// file is not closed.
	Import(f *os.File, size gpu.Bytes) (Memory, error)
	// Stage takes pinned host memory to copy through.
	Stage(size gpu.Bytes) (Stage, error)
	// Close gives the context back. Memory and stages must have been freed.
	Close() error
}

// Memory is memory of a GPU, or a part of it mapped here.
type Memory interface {
	Size() gpu.Bytes
	// Export makes a descriptor by which another process can map it. The memory
	// is the GPU's again when it is freed here, no descriptor is left and nobody
	// has it mapped.
	Export() (*os.File, error)
	Free() error
}

// Stage is pinned host memory, through which one copy at a time goes. Copies of
// different stages overlap.
type Stage interface {
	Buffer() []byte
	// Up starts to copy the first n bytes of the buffer to m; Down those at a place
	// of m into the buffer. Neither waits.
	Up(m Memory, at gpu.Bytes, n int) error
	Down(m Memory, at gpu.Bytes, n int) error
	// Wait waits until the copy has ended. Only then may the buffer be used again.
	Wait() error
	Free() error
}

// ErrFull says that the GPU has no memory left.
var ErrFull = errors.New("the GPU is out of memory")

// Full says whether an error is that.
func Full(err error) bool { return errors.Is(err, ErrFull) }
