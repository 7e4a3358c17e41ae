package ports

import (
	"context"
	"errors"
	"fmt"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
)

// Starter starts instances of functions and adopts running ones. It keeps no list of instances; the list is the records in
// a Catalog. Implementations are safe for concurrent use.
type Starter interface {
	// Start starts an instance under its slice and returns its record when it is ready. After an error, which is usually a
	// *StartError, or after the end of ctx, Start has removed the instance, unless StartError.Remains is set.
	Start(ctx context.Context, fn function.Function, p instance.Placement) (instance.Record, error)
	// Restart starts an instance that has ended or is unusable again. It first stops all remaining processes of the
	// instance. The instance keeps its ID, slice, turns and earlier output. note is as in Placement.Note. After an error
	// the instance has ended, unless StartError.Remains is set.
	Restart(ctx context.Context, fn function.Function, r instance.Record, note func(instance.Record) error) (instance.Record, error)
	// Adopt takes over an instance that another process started. It fails with *GoneError if the instance is not
	// running or was never ready; the caller then calls Stop to remove its resources.
	Adopt(ctx context.Context, r instance.Record) error
	// Wait waits until an instance ends and returns its final state, regardless of the process that started or stopped it. It
	// returns ctx's error if ctx ends first. Several callers may wait for the same instance.
	Wait(ctx context.Context, r instance.Record) (instance.State, error)
	// Stop ends an instance and removes all of its resources. Stopping an instance that has ended is no error. A
	// record without a handle (Record.Handle) belongs to a start that was interrupted; Stop then searches for the instance.
	Stop(ctx context.Context, r instance.Record) error
	// Logs returns an instance's output, as Runtime.Logs does.
	Logs(ctx context.Context, r instance.Record, o LogOptions) LogLines
}

// StartError reports that an instance could not be started.
type StartError struct {
	ID  string
	Err error
	Log []byte // last lines of the instance's output

	// Remains reports that the cleanup failed as well: parts of the instance may exist, and the caller must call Stop.
	Remains bool

	// OutOfMemory reports that the driver refused GPU memory to the instance although it was within its limit.
	OutOfMemory bool
}

func (e *StartError) Error() string {
	return fmt.Sprintf("instance %s: %v%s", e.ID, e.Err, Printed(e.Log))
}

func (e *StartError) Unwrap() error { return e.Err }

// GoneError reports an instance that cannot be adopted because it does not run or was never ready.
type GoneError struct {
	ID  string
	Why string // the reason, as a clause that follows "instance ID: "
}

func (e *GoneError) Error() string { return fmt.Sprintf("instance %s: %s", e.ID, e.Why) }

// Hint returns the next step for the user if err or an error in its chain has one, and otherwise "".
func Hint(err error) string {
	var h interface{ Hint() string }
	if errors.As(err, &h) {
		return h.Hint()
	}
	return ""
}

// Unavailable reports whether the cause of an error is a missing dependency, such as Docker or the token daemon.
func Unavailable(err error) bool {
	var u interface{ Unavailable() bool }
	return errors.As(err, &u) && u.Unavailable()
}
