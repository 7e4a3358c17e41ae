// Package ports says what launching, calling and remembering instances needs of
// the outside. Each port has a fake and a conformance suite, for the fake and for
// the real thing, in pkg/instance/instancetest.
package ports

import (
	"context"
	"time"

	"github.com/gfaas/gfaas/pkg/instance"
)

// Runtime starts and stops programs as instances. Implementations are safe for
// concurrent use.
type Runtime interface {
	// Name is instance.Process or instance.Docker.
	Name() string
	// Start starts the instance and returns without waiting for it to be ready.
	Start(ctx context.Context, spec instance.Spec) (instance.Handle, error)
	// State tells whether the instance still runs.
	State(ctx context.Context, h instance.Handle) (instance.State, error)
	// Wait returns how the instance ended, as soon as it has, or ctx's error.
	// Any number may wait for one.
	Wait(ctx context.Context, h instance.Handle) (instance.State, error)
	// Find returns the instances of that id that run, or all with an empty one,
	// for when their starter was killed before it wrote a handle down, or what was
	// written is lost. Of their records there are ID, Function, Runtime and Handle.
	// Those of another run directory are not found.
	Find(ctx context.Context, id string) ([]instance.Record, error)
	// PID is the number of the instance's first process on this machine; 0 where
	// it has none, or one that cannot be seen from here.
	PID(ctx context.Context, h instance.Handle) (int, error)
	// Unlimited says why nothing would hold an instance that is ready to its
	// slice, nil if something does or it cannot be seen from here.
	Unlimited(ctx context.Context, h instance.Handle) error
	// Stop asks the instance to end, ends it after grace, and leaves nothing
	// of it behind. Stopping what is gone already is no error.
	Stop(ctx context.Context, h instance.Handle, grace time.Duration) error
	// Logs returns what the instance printed: of a long log the end, and nothing
	// once it was stopped. Following it ends when the instance has.
	Logs(ctx context.Context, h instance.Handle, o LogOptions) LogLines
	// Close gives back what the runtime itself holds. Instances live on.
	Close() error
}
