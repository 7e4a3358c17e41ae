// Package rollout reconciles the instances of one host with a plan.
//
// Controller.Inventory lists the instances from the catalog, the registrations and the runtimes.
// Controller.Steps compares them with Assignments, the plan's instances on this node, and returns Steps.
// Controller.Apply performs the steps: it starts, replaces, changes and stops instances. Apply starts all of
// its instances or none.
//
// The package also lists instances for gfaas ps (Entry), changes slices (Change), scales functions through the
// gateway (Scale), and stops the remains of killed gfaas-profile runs (StopMeasured). The commands gfaas and
// gfaas-profile use it.
package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/launch"
)

// Controller starts, changes and stops the instances of one host. At most one controller at a time may do so
// for a run directory; the callers ensure that with host.Exclusive.
type Controller struct {
	Catalog  ports.Catalog
	Launcher *launch.Launcher

	// Note and Debug print a message for the user. Progress shows how many of total units are finished. All
	// are called from several goroutines.
	Note, Debug func(format string, args ...any)
	Progress    func(total int, what, units string) Progress
}

// Progress shows the progress of an operation.
type Progress interface {
	Add(n int) error
	Finish() error
}

// Error is an error with the next step for the user.
type Error struct {
	Err    error
	Remedy string
	usage  bool // the arguments are wrong
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Hint returns the next step for the user.
func (e *Error) Hint() string { return e.Remedy }

// Usage reports whether the arguments are wrong. It selects the exit status.
func (e *Error) Usage() bool { return e.usage }

func failf(remedy, format string, args ...any) error {
	return &Error{Err: fmt.Errorf(format, args...), Remedy: remedy}
}

// maxStops limits how many instances are stopped at a time.
const maxStops = 32

// Remove stops instances and removes the records of the stopped ones from the catalog, even if ctx ends in the
// meantime. Instances that it could not stop stay in the catalog.
func (c *Controller) Remove(ctx context.Context, records []instance.Record) error {
	stopped, err := c.Stop(ctx, records)
	if len(stopped) == 0 {
		return err
	}
	return errors.Join(err, c.Catalog.Forget(context.WithoutCancel(ctx), stopped...))
}

// Stop stops instances and returns the IDs of the stopped ones.
func (c *Controller) Stop(ctx context.Context, records []instance.Record) (stopped []string, err error) {
	if len(records) == 0 {
		return nil, nil
	}
	bar := c.Progress(len(records), "stopping", "instances")
	defer func() { _ = bar.Finish() }()
	errs := make([]error, len(records))
	inParallel(len(records), maxStops, func(i int) {
		if errs[i] = ctx.Err(); errs[i] == nil {
			errs[i] = c.Launcher.Stop(ctx, records[i])
		}
		_ = bar.Add(1)
	})
	for i, r := range records {
		if errs[i] == nil {
			stopped = append(stopped, r.ID)
		}
	}
	return stopped, errors.Join(errs...)
}

// inParallel calls do with each number below n, at most limit at a time.
func inParallel(n, limit int, do func(i int)) {
	var group errgroup.Group
	group.SetLimit(limit)
	for i := range n {
		group.Go(func() error { do(i); return nil })
	}
	_ = group.Wait() // no error occurs
}

// maxQueries limits the number of concurrent queries to runtimes.
const maxQueries = 16

// States of an instance that do not occur in its record.
const (
	StateExited  = "exited"  // its process or container has ended
	StateUnknown = "unknown" // its runtime does not answer
	StateLost    = "lost"    // it runs, but is missing from the catalog
	StateFaulted = "faulted" // it runs, and its CUDA calls fail
)

// State is the state of an instance according to its runtime.
type State struct {
	// Name is the state from the record, StateExited or StateUnknown. For a job, it is instance.Starting,
	// Running, Restarting, Succeeded or Failed, or StateUnknown.
	Name     string
	Restarts int    // by the runtime
	ExitCode *int   // of a job that has succeeded or failed; nil if it is unknown
	Detail   string // how the last run of a job ended; empty if none has ended
}

// Over reports whether a job has succeeded or failed.
func (s State) Over() bool { return s.Name == instance.Succeeded || s.Name == instance.Failed }

// StateOf returns the state of the instance of a record, given its runtime's answer.
func StateOf(r *instance.Record, now instance.State) State {
	s := State{Name: r.State, Restarts: now.Restarts}
	switch {
	case !r.Job && !now.Running:
		s.Name = StateExited
	case !r.Job:
	case now.Restarting:
		s.Name, s.Detail = instance.Restarting, now.Detail
	case now.Running:
		s.Name = instance.Running
	default:
		s.Name, s.Detail = instance.Failed, now.Detail
		if now.ExitCode == 0 {
			s.Name = instance.Succeeded
		}
		if now.ExitCode >= 0 {
			s.ExitCode = &now.ExitCode
		}
	}
	return s
}

// States queries the runtimes of instances. It prints a note about the first error.
func (c *Controller) States(ctx context.Context, records []instance.Record) ([]State, error) {
	states := make([]State, len(records))
	var once sync.Once
	inParallel(len(records), maxQueries, func(i int) {
		r := &records[i]
		if states[i].Name = r.State; r.Handle.Runtime == "" {
			return
		}
		now, err := c.Launcher.State(ctx, r.Handle)
		switch {
		case err != nil:
			states[i].Name = StateUnknown
			once.Do(func() { c.Note("note: %s: %v", r.Runtime, err) })
		default:
			states[i] = StateOf(r, now)
		}
	})
	return states, ctx.Err()
}

// Select returns the records with the given names. A name is an ID, or a function, which selects all of its
// instances. Select returns an error for a name without a record, unless known reports true for it.
func Select(records []instance.Record, names []string, known func(string) bool) ([]instance.Record, error) {
	var out []instance.Record
	found := map[string]bool{}
	for _, r := range records {
		if slices.Contains(names, r.ID) || slices.Contains(names, r.Function) {
			out = append(out, r)
		}
		found[r.ID], found[r.Function] = true, true
	}
	var missing []string
	for _, name := range names {
		if !found[name] && !known(name) && !slices.Contains(missing, name) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return nil, &ports.NotFoundError{Kind: "function or instance", Names: missing}
	}
	return out, nil
}

// contains reports whether the records include an ID.
func contains(records []instance.Record, id string) bool {
	return slices.ContainsFunc(records, func(r instance.Record) bool { return r.ID == id })
}

// CheckUnstarted returns an error if gfaas has started an instance that another engine is supposed to start.
func CheckUnstarted(list []Assignment, existing []instance.Record) error {
	for _, a := range list {
		if contains(existing, a.ID) {
			return failf("'gfaas down "+a.ID+"' stops it", "cannot register instance %s for another engine: gfaas has started it", a.ID)
		}
	}
	return nil
}

// UnregisterOthers removes the registrations of instances that are neither in the list nor started by gfaas.
func (c *Controller) UnregisterOthers(ctx context.Context, list []Assignment, existing []instance.Record) error {
	registrations, err := c.Launcher.Registrations(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range registrations {
		named := slices.ContainsFunc(list, func(a Assignment) bool { return a.ID == r.Instance })
		started := slices.ContainsFunc(existing, func(h instance.Record) bool { return slices.Contains(h.Registered, r.Instance) || h.ID == r.Instance })
		if !named && !started && !IsMeasured(r.Instance) {
			errs = append(errs, c.Launcher.Unregister(ctx, r.Instance))
		}
	}
	return errors.Join(errs...)
}
