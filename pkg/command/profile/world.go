package profile

import (
	"context"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
)

// world is what the command needs of the machine it runs on. Tests put a fake
// in its place.
type world struct {
	// DefaultGPU is the GPU to measure on when none was named.
	DefaultGPU func() string
	// RunDir holds the locks of GPUs under measurement.
	RunDir func() string
	// Open readies the machine to start instances on those GPUs, which this
	// run has locked. An instance may take startTimeout to be ready.
	Open func(ctx context.Context, gpus []string, startTimeout time.Duration) (machine, error)
}

// machine starts instances to measure.
type machine interface {
	// Start starts an instance on those GPUs and returns when it is ready; the
	// one before must have been stopped. A failed Start leaves nothing behind,
	// and its error shows the last log lines.
	Start(ctx context.Context, fn function.Function, gpus []string, slice gpu.Slice) (subject, error)
	// Others are the instances that run on the machine's GPUs now.
	Others(ctx context.Context) []string
}

// subject is an instance under measurement.
type subject interface {
	// Invoke sends one request and reads the whole answer; anything but
	// success is an error. It is safe for concurrent use.
	Invoke(ctx context.Context, r request) error
	// GPUMemMiB is the memory the instance holds now, on the GPU where it
	// holds most; 0 when nobody knows.
	GPUMemMiB(ctx context.Context) float64
	// LastLines are the last lines the instance printed.
	LastLines(ctx context.Context) string
	// Stop ends the instance and leaves nothing of it behind.
	Stop(ctx context.Context) error
}

// request is what every request of a trial carries.
type request struct {
	Batch int    // sent as the header BatchHeader
	Body  []byte // may be empty
}

// BatchHeader tells a function under the http contract how many inputs one
// request stands for.
const BatchHeader = "X-Gfaas-Batch"
