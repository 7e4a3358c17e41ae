package dispatch

import (
	"fmt"
	"slices"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/status"
)

// The instances of training functions are jobs. They answer no calls, so the policy does not know them.
// Package instances starts and follows them. Their memory counts as memory of other programs.

// NewJob returns the record of a job that is about to start: its ID, its slice and its GPU. unfinished is the
// number of unfinished jobs by GPU. NewJob chooses the GPU with the fewest, of those with enough memory for
// the function. If there is none, or if the function was removed, it returns an error and a record that
// has only an ID and the name of the function.
func (d *Dispatcher) NewJob(name string, unfinished map[string]int) (instance.Record, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.Function(name)
	d.Instances.lastNumber++
	id := instanceID(name, d.Instances.lastNumber)
	if f == nil || f.removed {
		return instance.Record{ID: id, Function: name}, refusal.UnknownFunction(name)
	}
	best := -1
	for n, g := range d.GPUs.list {
		if d.GPUs.closed[int32(n)] {
			continue
		}
		fits := d.memory.gpus[n].capacity == 0 || int64(f.definition.GPUMem) <= d.memory.gpus[n].capacity
		if fits && (best < 0 || unfinished[g.Name] < unfinished[d.GPUs.list[best].Name]) {
			best = n
		}
	}
	if best < 0 {
		return instance.Record{ID: id, Function: name}, fmt.Errorf("no GPU has %v of memory that other programs do not use", f.definition.GPUMem)
	}
	slice, _ := f.chooser().slice(best)
	r := launch.Intended(f.definition, instance.Placement{ID: id, GPUs: []string{d.GPUs.list[best].Name}, Slice: slice})
	r.Registered, r.Owner = []string{r.ID}, instance.Gateway
	return r, nil
}

// SetJobs replaces the status of jobs.
func (d *Dispatcher) SetJobs(all []status.Instance) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.jobs = all
}

// jobs holds the status of each job.
type jobs []status.Instance

// of returns the jobs of a function.
func (all jobs) of(function string) (own jobs) {
	for _, j := range all {
		if j.Function == function {
			own = append(own, j)
		}
	}
	return own
}

// count returns the number of jobs in one of the states.
func (all jobs) count(states ...string) (n int) {
	for _, j := range all {
		if slices.Contains(states, j.State) {
			n++
		}
	}
	return n
}

// state returns the state that needs the most attention. It returns "" if no job is in one of these states.
func (all jobs) state() string {
	for _, state := range []string{instance.Failed, instance.Running, instance.Starting, instance.Succeeded} {
		if all.count(state) > 0 {
			return state
		}
	}
	return ""
}

// uncallable returns the refusal for a call of a training function, and nil for other functions.
func uncallable(fn *function.Function) *refusal.Error {
	if fn.Kind != function.Training {
		return nil
	}
	return &refusal.Error{Code: refusal.NotCallable, Message: fmt.Sprintf("function %s is a job (kind: %s), which answers no calls", fn.Name, function.Training),
		Hint: "'gfaas ps " + fn.Name + "' shows its state, and 'gfaas wait " + fn.Name + "' waits until it is complete"}
}

// Uncallable returns the refusal for all calls of the function if it is a training function, and
// otherwise nil.
func (f *Function) Uncallable() *refusal.Error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	return uncallable(&f.definition)
}
