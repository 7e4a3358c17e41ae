// Package bolt keeps gfaas's state, the applied functions and the instances
// that were started, in one bbolt file that nobody holds open between
// operations.
package bolt

import (
	"context"
	"fmt"
	"strings"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
)

// Store is the state. Each call is one transaction: it happens whole or not
// at all. Implementations are safe for concurrent use, within a process and
// between processes; each passes the suite in storetest.
type Store interface {
	// Functions returns the applied functions by name.
	Functions(ctx context.Context) ([]function.Function, error)
	// Apply adds the functions, in place of those of the same names.
	Apply(ctx context.Context, functions ...function.Function) error
	// Remove removes the functions: NotFoundError when one is not there,
	// InUseError when one has instances.
	Remove(ctx context.Context, names ...string) error

	// Instances returns the records by id.
	Instances(ctx context.Context) ([]instance.Record, error)
	// Reserve adds records of instances that are about to start: ExistsError
	// when an id is taken, NotFoundError when a function is not there.
	Reserve(ctx context.Context, records ...instance.Record) error
	// Update replaces a record: NotFoundError when it is gone.
	Update(ctx context.Context, record instance.Record) error
	// Forget removes the records with these ids; one that is gone is no error.
	Forget(ctx context.Context, ids ...string) error
}

// LockedError says that another process kept the state file for longer than
// the time to wait for it.
type LockedError struct{ Path string }

func (e *LockedError) Error() string {
	return fmt.Sprintf("state file %s is locked by another process", e.Path)
}

// Locked marks the error for the exit status.
func (e *LockedError) Locked() bool { return true }

// Hint says what to do about it.
func (e *LockedError) Hint() string { return "try again; 'fuser " + e.Path + "' tells who holds it" }

// FileError is a state file that cannot be used.
type FileError struct {
	Path string
	Err  error
}

func (e *FileError) Error() string { return fmt.Sprintf("state file %s: %v", e.Path, e.Err) }
func (e *FileError) Unwrap() error { return e.Err }

// Hint says what to do about it.
func (e *FileError) Hint() string { return "set GFAAS_STATE to a file of yours" }

// NotFoundError names what is not in the state.
type NotFoundError struct {
	Kind  string // function or instance
	Names []string
}

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("no such %s: %s", e.Kind, strings.Join(e.Names, ", "))
}

// Hint says what to do about it.
func (e *NotFoundError) Hint() string {
	if e.Kind == "function" {
		return "'gfaas ls' lists what is applied; 'gfaas apply -f FILE' adds to it"
	}
	return "'gfaas ps' lists what runs"
}

// ExistsError names instances that are there already.
type ExistsError struct{ IDs []string }

func (e *ExistsError) Error() string {
	return "already started: " + strings.Join(e.IDs, ", ")
}

// Hint says what to do about it.
func (e *ExistsError) Hint() string {
	return "'gfaas down " + strings.Join(e.IDs, " ") + "' stops them"
}

// InUseError names the instances that keep functions from being removed.
type InUseError struct {
	Functions []string
	IDs       []string
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("%s still has instances: %s", strings.Join(e.Functions, ", "), strings.Join(e.IDs, ", "))
}

// Hint says what to do about it.
func (e *InUseError) Hint() string {
	return "'gfaas down " + strings.Join(e.Functions, " ") + "' stops them"
}
