package instances

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/dispatch"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/status"
)

// jobs starts the jobs of training functions, follows all jobs, and stops those that are not wanted any
// longer. The gateway starts as many jobs of a function as its scale.min. A job that is complete or has
// failed counts, so that it is not started again, until its record is removed (gfaas down) or its function
// changes. A job is restarted by its supervisor or Docker, and continues if the gateway ends.
type jobs struct {
	*Manager

	mu       sync.Mutex
	tracked  map[string]trackedJob
	starting map[string]instance.Record // by ID
	removing map[string]bool            // by ID
	refused  map[string]context.Context // by function: the version about which a warning was logged
}

// trackedJob is a job that has started.
type trackedJob struct {
	record instance.Record
	state  string // instance.Running, Succeeded or Failed
}

func newJobs(m *Manager) *jobs {
	return &jobs{Manager: m, tracked: map[string]trackedJob{}, starting: map[string]instance.Record{}, removing: map[string]bool{},
		refused: map[string]context.Context{}}
}

// reconcile compares the jobs with the state. It removes jobs that the previous gateway was starting.
func (j *jobs) reconcile() {
	j.mu.Lock()
	defer j.mu.Unlock()
	// With the lock held: in an older state, a job that has started since would seem to be abandoned.
	ctx, cancel := context.WithTimeout(j.life, stateTimeout)
	defer cancel()
	l, err := j.cfg.Catalog.List(ctx)
	if err != nil {
		if j.life.Err() == nil {
			j.log.Error("cannot read the state", "err", err)
		}
		return
	}
	listed := map[string]bool{}
	byFunction := map[string][]instance.Record{} // own and others', without those that are being removed
	for _, r := range l.Instances {
		if !r.Job {
			continue
		}
		listed[r.ID] = true
		_, starting := j.starting[r.ID]
		fn, err := l.Function(r.Function)
		own := r.Owner == instance.Gateway
		switch {
		case j.removing[r.ID]:
		case own && (err != nil || !sameDefinition(r, fn)) && !starting: // a start notices the change itself
			j.remove(r, "its function was changed or removed")
		case own && r.State == instance.Starting && !starting:
			j.remove(r, "the gateway that was starting it has ended")
		default:
			byFunction[r.Function] = append(byFunction[r.Function], r)
			j.track(r)
		}
	}
	for id := range j.tracked {
		if !listed[id] {
			delete(j.tracked, id)
		}
	}
	for _, r := range j.starting {
		if !listed[r.ID] {
			byFunction[r.Function] = append(byFunction[r.Function], r)
		}
	}
	for _, fn := range l.Functions {
		if fn.Kind == function.Training {
			j.adjust(fn, byFunction[fn.Name])
		}
	}
	j.publish()
}

// sameDefinition reports whether a job was started from the function as it is. A new memory limit does not
// make it another job.
func sameDefinition(r instance.Record, fn function.Function) bool {
	return r.Definition == "" || r.Definition == launch.Intended(fn, instance.Placement{}).Definition
}

// adjust starts the jobs that a function lacks, or stops unfinished ones beyond its scale.min. Locked.
func (j *jobs) adjust(fn function.Function, have []instance.Record) {
	for range fn.Scale.Min - len(have) {
		if !j.start(fn) {
			return
		}
	}
	slices.SortFunc(have, func(a, b instance.Record) int {
		return cmp.Compare(b.Handle.Started.UnixNano(), a.Handle.Started.UnixNano())
	})
	for _, r := range have[:max(0, min(len(have), len(have)-fn.Scale.Min))] {
		if t, ok := j.tracked[r.ID]; ok && r.Owner == instance.Gateway && t.state == instance.Running {
			j.remove(r, "its function needs fewer jobs")
		}
	}
}

// start starts a task that starts a job. It returns false if the gateway does not know the function or
// cannot start its jobs. Locked.
func (j *jobs) start(fn function.Function) bool {
	f := j.dispatcher.Function(fn.Name)
	if f == nil {
		return false
	}
	now, life, ok := f.Applied()
	if !ok {
		return false
	}
	why := j.dispatcher.Unsupported(now)
	if why == "" && now.Spans() {
		why = "it spans several GPUs, and only gfaas up starts such instances, from a plan"
	}
	if why != "" {
		if j.refused[fn.Name] != life {
			j.refused[fn.Name] = life
			j.log.Warn("job not started: "+why, "function", fn.Name)
		}
		return false
	}
	r, err := j.dispatcher.NewJob(fn.Name, j.unfinished())
	j.starting[r.ID] = r
	j.tasks.Go(func() { j.startUntilSuccess(life, now, r, err) })
	return true
}

// startUntilSuccess starts a job, given the result of NewJob, and tries again after a failure until life,
// that of the version of its function, ends.
func (j *jobs) startUntilSuccess(life context.Context, fn function.Function, r instance.Record, err error) {
	var backoff dispatch.Backoff
	for {
		started := r
		if err == nil {
			started, err = j.launch(life, r, fn, dispatch.Sharing{})
		}
		if err == nil {
			j.log.Info("job started", "function", r.Function, "instance", r.ID, "gpu", r.GPUs[0])
			j.update(started)
			break
		}
		if life.Err() != nil {
			break
		}
		wait := backoff.Next(0)
		j.log.Error("cannot start a job", "function", fn.Name, "err", err, "retry", wait.String())
		if !pause(life, wait) {
			break
		}
		j.mu.Lock()
		delete(j.starting, r.ID)
		r, err = j.dispatcher.NewJob(fn.Name, j.unfinished())
		j.starting[r.ID] = r
		j.mu.Unlock()
	}
	j.mu.Lock()
	delete(j.starting, r.ID)
	j.mu.Unlock()
	if j.life.Err() != nil {
		return
	}
	j.reconcile() // the last change of the state may have been handled before the start ended
}

// unfinished counts the unfinished jobs of each GPU. Locked.
func (j *jobs) unfinished() map[string]int {
	n := map[string]int{}
	for _, r := range j.starting {
		for _, gpu := range r.GPUs {
			n[gpu]++
		}
	}
	for _, t := range j.tracked {
		for _, gpu := range t.record.GPUs {
			if t.state == instance.Running {
				n[gpu]++
			}
		}
	}
	return n
}

// remove starts a task that stops one of the gateway's own jobs and removes its record. Locked.
func (j *jobs) remove(r instance.Record, why string) {
	j.log.Info("job stopped: "+why, "instance", r.ID, "function", r.Function)
	j.removing[r.ID] = true
	j.tasks.Go(func() {
		j.discard(r)
		j.mu.Lock()
		defer j.mu.Unlock()
		delete(j.removing, r.ID)
	})
}

// track starts to follow a job that has started, unless it is followed already. Locked.
func (j *jobs) track(r instance.Record) {
	if t, ok := j.tracked[r.ID]; r.State != instance.Running || ok && t.record.Handle == r.Handle {
		return
	}
	j.tracked[r.ID] = trackedJob{r, instance.Running}
	j.tasks.Go(func() { j.follow(r) })
}

// follow waits for the end of a job.
func (j *jobs) follow(r instance.Record) {
	if end, ended := j.awaitEnd(r); ended {
		j.ended(r, end)
	}
}

// ended records the end of a job.
func (j *jobs) ended(r instance.Record, end instance.State) {
	j.mu.Lock()
	defer j.mu.Unlock()
	t, ok := j.tracked[r.ID]
	if !ok || t.record.Handle != r.Handle || j.removing[r.ID] {
		return
	}
	t.state = instance.Succeeded
	if end.ExitCode != 0 {
		t.state = instance.Failed
	}
	j.tracked[r.ID] = t
	j.log.Info("job "+t.state, "instance", r.ID, "function", r.Function, "how", end.Detail, "restarts", end.Restarts)
	j.publish()
}

// publish sends the status of all jobs to the dispatcher. Locked.
func (j *jobs) publish() {
	var all []status.Instance
	for _, r := range j.starting {
		if len(r.GPUs) > 0 {
			all = append(all, dispatch.StatusOf(r, instance.Starting))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(j.tracked)) {
		if _, starting := j.starting[id]; !starting {
			all = append(all, dispatch.StatusOf(j.tracked[id].record, j.tracked[id].state))
		}
	}
	j.dispatcher.SetJobs(all)
}
