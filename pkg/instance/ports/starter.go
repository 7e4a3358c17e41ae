package ports

import (
	"context"
	"errors"
	"fmt"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
)

// Starter starts instances of functions and takes over those that run. It keeps
// no list of them: the records do. Implementations are safe for concurrent use.
type Starter interface {
	// Start starts an instance under its slice and returns its record when it is
	// ready to answer. An error, most of them a *StartError, leaves nothing of
	// the instance unless it says so; so does the end of ctx.
	Start(ctx context.Context, fn function.Function, p instance.Placement) (instance.Record, error)
	// Restart starts an instance again that has ended by itself, or is of no use any
	// more, as it was: under its id, slice and turns, with what it printed so far. What
	// of it still runs is stopped first. Note is as in Placement. After an error it is
	// ended, but for what the error says.
	Restart(ctx context.Context, fn function.Function, r instance.Record, note func(instance.Record) error) (instance.Record, error)
	// Adopt takes over an instance that another process started, as its record
	// says. The error is a *GoneError when it does not run or was never ready:
	// then Stop removes what is left of it.
	Adopt(ctx context.Context, r instance.Record) error
	// Wait returns how an instance ended, as soon as it has, whoever started or
	// stopped it, or ctx's error. Any number may wait for one.
	Wait(ctx context.Context, r instance.Record) (instance.State, error)
	// Stop ends an instance and leaves nothing of it. One that is gone already is
	// no error. A record without a handle stands for an instance whose starter
	// was killed: whatever is found of it is ended.
	Stop(ctx context.Context, r instance.Record) error
	// Logs returns what an instance printed, as Runtime has it.
	Logs(ctx context.Context, r instance.Record, o LogOptions) LogLines
}

// StartError says why an instance did not start.
type StartError struct {
	ID  string
	Err error
	Log []byte // the last lines it printed

	// Remains says that undoing failed too: something of the instance may
	// still be there, and Stop is due.
	Remains bool

	// OutOfMemory says that the driver refused GPU memory to one of the instance's
	// processes, which had not reached the instance's own limit.
	OutOfMemory bool
}

func (e *StartError) Error() string {
	return fmt.Sprintf("instance %s: %v%s", e.ID, e.Err, Printed(e.Log))
}

func (e *StartError) Unwrap() error { return e.Err }

// GoneError says that an instance is not there to be taken over.
type GoneError struct {
	ID  string
	Why string
}

func (e *GoneError) Error() string { return fmt.Sprintf("instance %s: %s", e.ID, e.Why) }

// Unavailable says whether an error from below is about something needed that is
// missing, such as the engine or the token daemon.
func Unavailable(err error) bool {
	var u interface{ Unavailable() bool }
	return errors.As(err, &u) && u.Unavailable()
}
