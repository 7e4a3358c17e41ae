package rollout

import (
	"context"
	"fmt"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

const startPoll = 100 * time.Millisecond // interval of checks whether a job has started

// SelectJobs returns the records of the jobs with the given names, as Select does. It returns an error for an
// instance that is not a job, and for a training function without a job.
func SelectJobs(l ports.Listing, names []string, known func(string) bool) ([]instance.Record, error) {
	records, err := Select(l.Instances, names, func(name string) bool {
		_, err := l.Function(name)
		return err == nil || known(name)
	})
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for _, r := range records {
		if !r.Job {
			return nil, &Error{usage: true, Err: fmt.Errorf("instance %s of function %s is not a job: it serves calls until it is stopped", r.ID, r.Function)}
		}
		found[r.ID], found[r.Function] = true, true
	}
	for _, name := range names {
		fn, err := l.Function(name)
		switch {
		case found[name] || err != nil || known(name):
		case fn.Kind != function.Training:
			return nil, &Error{usage: true, Err: fmt.Errorf("function %s is not a job (kind: %s)", name, fn.Kind)}
		default:
			return nil, failf("'gfaas up PLAN.json' starts the jobs of a plan, and 'gfaas scale "+name+"=1' makes gfaas serve start one",
				"function %s has no job", name)
		}
	}
	return records, nil
}

// AwaitJob waits until a job has succeeded or failed, and returns its state. It returns an error if the job is
// removed meanwhile or was never started. The function atWork reports whether a gfaas up is at work.
func (c *Controller) AwaitJob(ctx context.Context, r instance.Record, atWork func() bool) (State, error) {
	tick := time.NewTicker(startPoll)
	defer tick.Stop()
	for r.State == instance.Starting {
		starts := r.Owner == instance.Gateway || atWork()
		now, err := c.find(ctx, r.ID)
		if err != nil {
			return State{}, err
		}
		if r = now; r.State == instance.Starting && !starts {
			return State{}, failf("'gfaas down "+r.ID+"' removes it", "job %s was never started: the command that was starting it has ended", r.ID)
		}
		select {
		case <-ctx.Done():
			return State{}, ctx.Err()
		case <-tick.C:
		}
	}
	end, err := c.Launcher.Wait(ctx, r)
	if err == nil && end.ExitCode < 0 { // the result may be unknown because the job was removed
		_, err = c.find(ctx, r.ID)
	}
	if err != nil {
		return State{}, err
	}
	return StateOf(&r, end), nil
}

// find returns the record of a job. It returns an error if there is none any more.
func (c *Controller) find(ctx context.Context, id string) (instance.Record, error) {
	l, err := c.Catalog.List(ctx)
	if err != nil {
		return instance.Record{}, err
	}
	for _, r := range l.Instances {
		if r.ID == id {
			return r, nil
		}
	}
	return instance.Record{}, fmt.Errorf("job %s was stopped and removed before it was complete", id)
}
