// Package ports has the interfaces through which instances are launched, called and stored. Runtime and Catalog have a
// fake and a conformance suite, which runs on the fake and on the real implementations, in pkg/instance/instancetest.
package ports

import (
	"context"
	"time"

	"github.com/gfaas/gfaas/pkg/instance"
)

// Runtime starts and stops programs as instances. Implementations are safe for concurrent use.
type Runtime interface {
	// Name returns instance.Process, instance.Docker or instance.Swarm.
	Name() string
	// Start starts the instance and returns without waiting until it is ready.
	Start(ctx context.Context, spec instance.Spec) (instance.Handle, error)
	// State returns the instance's state.
	State(ctx context.Context, h instance.Handle) (instance.State, error)
	// Wait waits until the instance ends and returns its final state, or ctx's error. Several callers may wait for the
	// same instance.
	Wait(ctx context.Context, h instance.Handle) (instance.State, error)
	// Find returns the running instances with the given ID, or all instances if it is empty. It serves two cases: the
	// process that started an instance was killed before it stored the handle, or the state was lost. The records have
	// ID, Function, Runtime and Handle. Find ignores instances of other run directories.
	Find(ctx context.Context, id string) ([]instance.Record, error)
	// PID returns the process ID of the instance's first process in the caller's PID namespace, or 0 if it has none there.
	PID(ctx context.Context, h instance.Handle) (int, error)
	// Unlimited returns an error if a ready instance is not held to its slice. It returns nil if the instance is, or if
	// Unlimited cannot determine that.
	Unlimited(ctx context.Context, h instance.Handle) error
	// Stop asks the instance to end, kills it after grace, and removes all of its resources. Stopping an instance
	// that has ended is no error.
	Stop(ctx context.Context, h instance.Handle, grace time.Duration) error
	// Logs returns the instance's output: only the end of a long log, and no lines after Stop. With Follow, the sequence
	// ends when the instance ends.
	Logs(ctx context.Context, h instance.Handle, o LogOptions) LogLines
	// Close releases the runtime's own resources. Instances keep running.
	Close() error
}
