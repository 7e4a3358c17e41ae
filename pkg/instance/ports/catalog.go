package ports

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
)

// Catalog stores the applied functions and the records of instances. Each call is one transaction. Implementations are
// safe for concurrent use by goroutines and by processes.
type Catalog interface {
	// List returns the current state. The result is shared between calls until the state changes; the caller must
	// not modify it.
	List(ctx context.Context) (Listing, error)
	// Watch waits until the state differs from that of the revision last, and returns it within half a second of
	// the change; or it returns ctx's error. No state has the zero revision.
	Watch(ctx context.Context, last Revision) (Listing, error)

	// Apply adds the functions and replaces those with the same names. It fails with function.ClashError if two
	// functions would have a name or alias in common.
	Apply(ctx context.Context, functions ...function.Function) error
	// Change applies change to an existing function in one transaction. It fails with NotFoundError if the function
	// does not exist, and with function.ClashError as Apply does. change must not change the name or use the Catalog.
	// If it returns an error, Change returns that error and changes nothing.
	Change(ctx context.Context, name string, change func(*function.Function) error) error
	// Remove removes functions. It fails with NotFoundError if one does not exist, and with InUseError if one has
	// instances other than the gateway's, which the gateway stops.
	Remove(ctx context.Context, names ...string) error

	// Reserve adds records of instances that are about to start. It fails with ExistsError if an ID is taken, and
	// with NotFoundError if a function does not exist.
	Reserve(ctx context.Context, records ...instance.Record) error
	// Update replaces a record. It fails with NotFoundError if the record does not exist.
	Update(ctx context.Context, record instance.Record) error
	// Forget removes the records with these IDs; a missing record is no error.
	Forget(ctx context.Context, ids ...string) error
}

// Revision identifies a state of one Catalog. Revisions of different Catalogs are unrelated.
type Revision uint64

// Listing is the whole state at one time.
type Listing struct {
	Revision  Revision
	Functions []function.Function // in order of name
	Instances []instance.Record   // in order of ID

	// Applied holds, by name, when each function was last changed by Apply, in seconds. It lacks functions for
	// which that is unknown.
	Applied map[string]time.Time
}

// Function returns the function with that name, or NotFoundError.
func (l Listing) Function(name string) (function.Function, error) {
	for _, fn := range l.Functions {
		if fn.Name == name {
			return fn, nil
		}
	}
	return function.Function{}, &NotFoundError{Kind: "function", Names: []string{name}}
}

// Model returns the function with that name or alias, or NotFoundError.
func (l Listing) Model(name string) (function.Function, error) {
	canonical := function.CanonicalName(name)
	for _, fn := range l.Functions {
		if slices.ContainsFunc(fn.Names(), func(own string) bool { return function.CanonicalName(own) == canonical }) {
			return fn, nil
		}
	}
	return function.Function{}, &NotFoundError{Kind: "function", Names: []string{name}}
}

// CheckApply returns the error that Catalog.Apply and Catalog.Change must return if they add the functions to those
// in existing or replace them, or nil. If a name occurs twice in added, the last one counts.
func CheckApply(existing, added []function.Function) error {
	all := append(slices.Clone(existing), added...)
	slices.Reverse(all)
	seen := map[string]bool{}
	all = slices.DeleteFunc(all, func(fn function.Function) bool {
		old := seen[fn.Name]
		seen[fn.Name] = true
		return old
	})
	slices.Reverse(all)
	return function.CheckNames(all)
}

// CheckReserve returns the error that Catalog.Reserve must return, or nil. taken and applied report whether an ID and a
// function exist.
func CheckReserve(records []instance.Record, taken, applied func(string) bool) error {
	var functions, ids []string
	for _, r := range records {
		functions = append(functions, r.Function)
		ids = append(ids, r.ID)
	}
	if missing := absent(functions, applied); len(missing) > 0 {
		return &NotFoundError{Kind: "function", Names: missing}
	}
	var clash []string
	for i, id := range ids {
		if taken(id) || slices.Contains(ids[:i], id) {
			clash = append(clash, id)
		}
	}
	if len(clash) > 0 {
		return &ExistsError{IDs: clash}
	}
	return nil
}

// CheckRemove returns the error that Catalog.Remove must return, or nil.
func CheckRemove(names []string, applied func(string) bool, records []instance.Record) error {
	if missing := absent(names, applied); len(missing) > 0 {
		return &NotFoundError{Kind: "function", Names: missing}
	}
	var used InUseError
	for _, r := range records {
		if !slices.Contains(names, r.Function) || r.Owner == instance.Gateway {
			continue
		}
		used.IDs = append(used.IDs, r.ID)
		if !slices.Contains(used.Functions, r.Function) {
			used.Functions = append(used.Functions, r.Function)
		}
	}
	if len(used.IDs) > 0 {
		return &used
	}
	return nil
}

// absent returns the names that do not exist, without duplicates, in order.
func absent(names []string, there func(string) bool) []string {
	var out []string
	for _, name := range names {
		if !there(name) && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// Unreadable reports whether an error means that the state itself may be damaged, as opposed to being inaccessible.
func Unreadable(err error) bool {
	var u interface{ Unreadable() bool }
	return errors.As(err, &u) && u.Unreadable()
}

// NotFoundError reports functions or instances that are not in the state.
type NotFoundError struct {
	Kind  string // function or instance
	Names []string
}

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("no such %s: %s", e.Kind, strings.Join(e.Names, ", "))
}

// Hint returns the next step for the user.
func (e *NotFoundError) Hint() string {
	if e.Kind == "function" {
		return "'gfaas ls' lists the applied functions; 'gfaas apply -f FILE' adds a function"
	}
	return "'gfaas ps' lists the instances"
}

// ExistsError reports IDs that are already in use.
type ExistsError struct{ IDs []string }

func (e *ExistsError) Error() string {
	return "already started: " + strings.Join(e.IDs, ", ")
}

// Hint returns the next step for the user.
func (e *ExistsError) Hint() string {
	return "'gfaas down " + strings.Join(e.IDs, " ") + "' stops them"
}

// InUseError reports functions that cannot be removed, with their instances.
type InUseError struct {
	Functions []string
	IDs       []string
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("%s still has instances: %s", strings.Join(e.Functions, ", "), strings.Join(e.IDs, ", "))
}

// Hint returns the next step for the user.
func (e *InUseError) Hint() string {
	return "'gfaas down " + strings.Join(e.Functions, " ") + "' stops them"
}
