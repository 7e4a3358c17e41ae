package rollout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// cleanupTime limits the time to undo a rollout that failed or was interrupted.
const cleanupTime = time.Minute

// spareFiles is the number of file descriptors that undo needs at a time.
const spareFiles = 6

// rollout applies steps. It starts all of their instances, or none.
type rollout struct {
	*Controller
	list []Assignment // instances to start

	spare []*os.File // reserved descriptors; undo closes them first, so that it works even when the process has run out

	mu      sync.Mutex
	started []instance.Record
	remains []instance.Record // failed starts whose resources could not be removed yet
}

// Apply performs the steps and starts at most parallel instances at a time. If a start fails or ctx ends, it
// stops the instances that it has started. Instances that it has stopped stay stopped.
func (c *Controller) Apply(ctx context.Context, steps []Step, parallel int) error {
	u := &rollout{Controller: c}
	if err := u.clear(ctx, steps); err != nil {
		return err
	}
	if err := u.change(ctx, steps); err != nil {
		return err
	}
	if len(u.list) == 0 {
		return ctx.Err()
	}
	var records []instance.Record
	for _, a := range u.list {
		records = append(records, a.record())
	}
	if err := u.openSpare(); err != nil {
		return err
	}
	defer u.closeSpare()
	// The catalog must contain the intended instances before any starts, so that gfaas down finds them if this
	// process is killed.
	if err := c.Catalog.Reserve(ctx, records...); err != nil {
		return err
	}
	err := u.startAll(ctx, parallel)
	if err == nil {
		return nil
	}
	return errors.Join(err, u.undo(ctx))
}

// openSpare reserves file descriptors for undo. It returns an error if there are too few.
func (u *rollout) openSpare() error {
	for len(u.spare) < spareFiles {
		f, err := os.Open(os.DevNull)
		if err != nil {
			u.closeSpare()
			return err
		}
		u.spare = append(u.spare, f)
	}
	return nil
}

func (u *rollout) closeSpare() {
	for _, f := range u.spare {
		_ = f.Close()
	}
	u.spare = nil
}

// clear stops the instances of the steps that replace and stop, and removes the remains of ended instances
// that will start again. It removes them from the catalog before any instance starts, so that the next rollout
// knows that they have stopped if this process is killed.
func (u *rollout) clear(ctx context.Context, steps []Step) error {
	var old []instance.Record
	for _, s := range steps {
		switch s.Action {
		case ActionReplace:
			u.Note("replacing %s: %s", s.ID, s.Why)
		case ActionStop:
			u.Note("stopping %s: %s", s.ID, s.Why)
		case ActionStart:
		default:
			continue
		}
		if s.old.ID != "" {
			old = append(old, s.old)
		}
		if s.Action != ActionStop {
			u.list = append(u.list, s.assignment)
		}
	}
	return u.Remove(ctx, old)
}

// change changes the slices of running instances. It shrinks slices first, to make room for growing ones.
func (u *rollout) change(ctx context.Context, steps []Step) error {
	var changes []Step
	for _, s := range steps {
		if s.Action == ActionChange {
			changes = append(changes, s)
		}
	}
	slices.SortStableFunc(changes, func(a, b Step) int {
		growth := func(s Step) float64 { return s.assignment.Slice.QuotaRequest - s.old.Slice.QuotaRequest }
		return cmp.Compare(growth(a), growth(b))
	})
	for _, s := range changes {
		u.Note("changing %s: %s", s.ID, s.Why)
		if err := u.Launcher.Change(ctx, s.ID, s.assignment.change(*s.registered)); err != nil {
			return err
		}
		s.old.Slice, s.old.Turns, s.old.RPS, s.old.Batch = s.assignment.Slice, s.assignment.Turns, s.assignment.RPS, s.assignment.Batch
		if err := u.Catalog.Update(ctx, s.old); err != nil {
			return fmt.Errorf("instance %s: %w", s.ID, err)
		}
	}
	return nil
}

func (u *rollout) startAll(ctx context.Context, parallel int) error {
	bar := u.Progress(len(u.list), "starting", "instances")
	defer func() { _ = bar.Finish() }()
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, a := range u.list {
		group.Go(func() error {
			if err := inner.Err(); err != nil {
				return err
			}
			err := u.start(inner, a)
			if err == nil {
				_ = bar.Add(1)
			}
			return err
		})
	}
	err := group.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (u *rollout) start(ctx context.Context, a Assignment) error {
	a.Placement.Note = func(r instance.Record) error { return u.Catalog.Update(ctx, r) }
	r, err := u.Launcher.Start(ctx, a.Function, a.Placement)
	if err != nil {
		if start, ok := errors.AsType[*ports.StartError](err); ok && start.Remains {
			u.mu.Lock()
			u.remains = append(u.remains, r)
			u.mu.Unlock()
		}
		return err
	}
	u.mu.Lock()
	u.started = append(u.started, r)
	u.mu.Unlock()
	if err := u.Catalog.Update(ctx, r); err != nil {
		return fmt.Errorf("instance %s: %w", r.ID, err)
	}
	if r.Job {
		u.Debug("job %s is running", r.ID)
	} else {
		u.Debug("instance %s is ready at %s", r.ID, r.Handle.Address)
	}
	return nil
}

// undo stops the started instances and the remains of failed starts, and removes the stopped ones from the
// catalog. The others stay in the catalog for gfaas down. It continues after the end of ctx.
func (u *rollout) undo(ctx context.Context) error {
	u.closeSpare()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	running := slices.Concat(u.started, u.remains)
	errs := make([]error, len(running))
	inParallel(len(running), maxStops, func(i int) { errs[i] = u.Launcher.Stop(ctx, running[i]) })
	var stopped []string
	for _, a := range u.list {
		i := slices.IndexFunc(running, func(r instance.Record) bool { return r.ID == a.ID })
		if i < 0 || errs[i] == nil {
			stopped = append(stopped, a.ID)
		}
	}
	return errors.Join(append(errs, u.Catalog.Forget(ctx, stopped...))...)
}
