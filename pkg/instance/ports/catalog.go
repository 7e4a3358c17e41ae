package ports

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
)

// Catalog is the state: the applied functions and the records of instances. Each
// call is one transaction: it happens whole or not at all. Implementations are
// safe for concurrent use, within a process and between processes.
type Catalog interface {
	// Look returns the state as it is. While nothing changes nothing is parsed
	// again: what is in it is shared, and not to be changed.
	Look(ctx context.Context) (Listing, error)
	// Watch returns the state as soon as it is another than that of the revision
	// last, within half a second of any change, or ctx's error. The zero revision
	// is of no state.
	Watch(ctx context.Context, last Revision) (Listing, error)

	// Apply adds the functions, in place of those of the same names.
	Apply(ctx context.Context, functions ...function.Function) error
	// Change makes a function that is there what change makes of it, which nobody else
	// changes meanwhile: NotFoundError when it is not there. Change may not give it
	// another name, and is not to use the Catalog; its error is the call's, and then
	// nothing changes.
	Change(ctx context.Context, name string, change func(*function.Function) error) error
	// Remove removes the functions: NotFoundError when one is not there,
	// InUseError when one has instances, but for a gateway's, which stops them.
	Remove(ctx context.Context, names ...string) error

	// Reserve adds records of instances that are about to start: ExistsError
	// when an id is taken, NotFoundError when a function is not there.
	Reserve(ctx context.Context, records ...instance.Record) error
	// Update replaces a record: NotFoundError when it is gone.
	Update(ctx context.Context, record instance.Record) error
	// Forget removes the records with these ids; one that is gone is no error.
	Forget(ctx context.Context, ids ...string) error
}

// Revision tells one state of a Catalog from the next, and means nothing to
// another one.
type Revision uint64

// Listing is all of the state at one time.
type Listing struct {
	Revision  Revision
	Functions []function.Function // by name
	Instances []instance.Record   // by id
}

// Function finds one by its name; NotFoundError when it is not there.
func (l Listing) Function(name string) (function.Function, error) {
	for _, fn := range l.Functions {
		if fn.Name == name {
			return fn, nil
		}
	}
	return function.Function{}, &NotFoundError{Kind: "function", Names: []string{name}}
}

// CheckReserve says why records cannot be added, for a Catalog: a function that
// is not there, an id that is taken, or one that comes twice.
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

// CheckRemove says why functions cannot be removed, for a Catalog: one is not
// there, or has instances among the records.
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

// absent returns the names that are not there, each once, in their order.
func absent(names []string, there func(string) bool) []string {
	var out []string
	for _, name := range names {
		if !there(name) && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

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
