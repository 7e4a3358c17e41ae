package profile

import (
	"context"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/nvml"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/load"
)

// world is what the command needs of the machine it runs on. Tests put a fake
// in its place.
type world struct {
	// defaultGPU is the GPU to measure on when none was named.
	defaultGPU func() string
	// runDir holds the locks of GPUs under measurement.
	runDir func() string
	// open readies the machine to start instances on those GPUs, which this
	// run has locked: a machine for each lane. An instance may take
	// startTimeout to be ready.
	open func(ctx context.Context, lanes [][]string, startTimeout time.Duration) ([]machine, error)
}

// machine starts instances to measure, on the GPUs of a lane.
type machine interface {
	// Start starts an instance on those GPUs and returns when it is ready; the
	// one before must have been stopped. A failed Start leaves nothing behind,
	// and its error shows the last log lines.
	Start(ctx context.Context, fn function.Function, gpus []string, how start) (subject, error)
	// Others are what else runs on the machine's GPUs now, sorted.
	Others(ctx context.Context) []string
	// Meter begins to measure what the GPUs do.
	Meter() meter
}

// meter measures GPUs until it is closed.
type meter interface {
	Look() // adds what they do now
	Close() nvml.Figures
}

// subject is an instance under measurement.
type subject interface {
	// Target readies what every request of a trial carries and returns what
	// sends one and reads the whole answer; anything but success is an error.
	// A *bodyError says that no instance would take it.
	Target(ctx context.Context, r request) (load.Target, error)
	// GPUMemMiB is the memory the instance holds now, on the GPU where it
	// holds most; 0 when nobody knows.
	GPUMemMiB(ctx context.Context) float64
	// Parked is the memory the instance holds, on all its GPUs together, and
	// what of it waits on the host, in MiB; 0 when nobody knows.
	Parked(ctx context.Context) (used, parked float64)
	// Ended is nil while the instance runs, and says how it ended when it has.
	Ended(ctx context.Context) error
	// LastLines are the last lines the instance printed.
	LastLines(ctx context.Context) string
	// Stop ends the instance and leaves nothing of it behind.
	Stop(ctx context.Context) error
}

// request is what every request of a trial carries.
type request struct {
	batch int    // put where the function's contract wants it
	body  []byte // of one request; empty is one that the contract allows to make up
}

// bodyError says that requests cannot carry what they should: the whole run
// would fail.
type bodyError struct{ err error }

func (e *bodyError) Error() string { return e.err.Error() }
func (e *bodyError) Unwrap() error { return e.err }
func (e *bodyError) Hint() string  { return "--body names a file with the body of one request" }
