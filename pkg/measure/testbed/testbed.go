// Package testbed is the port through which package measure reaches GPUs: it
// starts instances of functions there, loads them and observes them.
//
// One instance runs on a group of GPUs at a time, so that instances do not
// distort each other's results, unless their joint performance is measured. The commands implement the port with the adapters
// of the real system; package testbedtest has a fake.
package testbed

import (
	"context"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/load"
)

// GPUs is a group of GPUs on which one configuration is measured at a time.
type GPUs interface {
	// Start starts an instance and returns when it is ready. The caller must
	// have stopped the previous one with the same Options.Number. Instances with
	// different numbers may start and run at the same time. A failed Start leaves no process and no
	// registration; its error includes the last lines that the instance printed.
	Start(ctx context.Context, fn function.Function, options Options) (Instance, error)
	// OtherUsers returns the names of other users of the GPUs now, sorted.
	OtherUsers(ctx context.Context) []string
	// Meter starts measuring the activity of the GPUs.
	Meter() Meter
}

// Options are the conditions under which an instance runs.
type Options struct {
	Slice gpu.Slice
	// Number distinguishes the instances that run at the same time, from 0.
	Number int
	// Parks moves the instance's GPU memory to the host while it is idle.
	Parks bool
}

// Meter measures the activity of GPUs until it is closed.
type Meter interface {
	// Sample adds a sample of the current activity.
	Sample()
	// Close ends the measurement and returns its result.
	Close() Activity
}

// Activity is the mean activity of whole GPUs. A field is 0 if its value is unknown.
type Activity struct {
	UtilPct      float64 // percentage of the time in which a kernel ran
	OccupancyPct float64 // active warps, as a percentage of the warps that the SMs can hold
	PowerW       float64
}

// Instance is a running instance under measurement.
type Instance interface {
	// Target prepares the body of the requests and returns a function that sends
	// one request and reads the whole answer; an unsuccessful answer is an error.
	// Target returns a *BodyError if no instance would accept such a body.
	Target(ctx context.Context, r Request) (load.Sender, error)
	// GPUMemMiB returns the memory that the instance holds in MiB, or 0 if it is
	// unknown. Of several GPUs, the one on which the instance holds most counts.
	GPUMemMiB(ctx context.Context) float64
	// ImportedMiB returns the memory of other processes that the instance has
	// mapped on that GPU, such as weights of the model daemon, in MiB.
	ImportedMiB(ctx context.Context) float64
	// Parked returns the memory that the instance holds on all its GPUs and the
	// part of it that is parked on the host, in MiB; 0 if unknown.
	Parked(ctx context.Context) (used, parked float64)
	// CheckRunning returns nil while the instance runs, and the reason after it ended.
	CheckRunning(ctx context.Context) error
	// Output returns the lines that the instance has printed, and further ones until it ends.
	Output(ctx context.Context) ports.LogLines
	// LastLines returns the last lines that the instance printed.
	LastLines(ctx context.Context) string
	// Stop ends the instance and removes its registration.
	Stop(ctx context.Context) error
}

// Request is the content of each request of a trial.
type Request struct {
	Batch int    // encoded as the function's contract requires
	Body  []byte // body for a batch of one; if empty, the contract's default body is sent
}

// BodyError reports a body that requests cannot carry, for any instance.
type BodyError struct{ Err error }

func (e *BodyError) Error() string { return e.Err.Error() }
func (e *BodyError) Unwrap() error { return e.Err }

// Hint returns the next step for the user.
func (e *BodyError) Hint() string { return "give a file with the body of one request in --body" }
