package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/metrics"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/scale"
	"github.com/gfaas/gfaas/pkg/reason"
)

// Function is an applied function, or a removed one that still has instances.
type Function struct {
	d      *Dispatcher
	name   string
	number int32

	Counts *metrics.Function
	Bodies atomic.Int64 // bytes of memory held by the bodies of its calls
	calls  atomic.Pointer[CallLimits]

	// Dispatcher.mu guards the rest.
	definition function.Function
	since      time.Time      // when the gateway learned of it
	applied    time.Time      // when it was applied; zero means unknown
	removed    bool           // it is no longer applied
	queue      int            // limit on queued calls
	model      int32          // queue.Function.Model
	alone      int            // attempts in the queue that are not batches
	gathered   int            // calls that wait for their batch to be sent
	maxBatch   int            // largest batch that an instance takes; 0 if the function forms none
	spec       queue.Function // as last sent to the policy
	instances  instanceSet    // starting and stopping ones included
	found      [3]int64       // dispatches by kind of start (residency.Start)
	placing    placing
	served     time.Duration // time during which instances were busy, failed starts excluded

	sessions    sessions
	falseMisses int64 // dispatches that missesFalsely counts
	*version
}

// CallLimits holds the limits of a function's calls.
type CallLimits struct {
	Timeout time.Duration // until the answer begins, and then for each pause within it
	Idle    time.Duration // of an upgraded connection; 0 means no limit
	Probes  function.Probes
	Batcher *function.Batcher // nil if calls form no batches
	Served  string            // replaces the model's name in calls; empty means that the name is kept

	// Comments lets callers that wait for a stream get comments meanwhile.
	Comments bool

	Affinity function.Affinity
}

// version is the state of one version of a function. A version begins when the function is
// applied. It ends when the function is removed, or applied again with a definition that
// needs other instances. Counts, and the instances of plans, outlive a version.
type version struct {
	life context.Context // ends with the version
	end  context.CancelFunc

	contract     string // of its latest instance; empty before the first instance is ready
	context      int64  // context length that its latest instance reported, in tokens; 0 means unknown
	costs        costs
	byClass      map[int32]*classCosts    // by class of GPU; empty if all GPUs have the same model
	profileSlope *float64                 // slope of batches according to the profile; nil if it has none
	sentOn       map[int32]queue.Function // by GPU with the weights: the durations that the policy has
	fails        int                      // failed starts in a row
	failure      error                    // error of the latest failed start
	restarts     Backoff                  // for instances that exited on their own
	early        Backoff                  // for instances that scale.min keeps and that exit soon after their start
	delayed      int                      // instances that exited too soon and are not replaced yet
	idle         time.Duration            // overrides scale.idle if it is not 0; negative: idle instances do not stop
	maxMin       int                      // while delayed > 0: the highest scale.min to send to the policy
	scaling      *autoscaling
	unit         scale.Instance // configuration of the instances that its autoscaler starts
}

// Name returns the function's name.
func (f *Function) Name() string { return f.name }

// Calls returns the limits of the function's calls.
func (f *Function) Calls() *CallLimits { return f.calls.Load() }

// Applied returns the function's definition and the context of its version. It returns
// false if the function was removed.
func (f *Function) Applied() (fn function.Function, life context.Context, ok bool) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	return f.definition, f.life, !f.removed
}

// define stores a definition and configures the autoscaler. Locked.
func (f *Function) define(fn function.Function) {
	if most := fn.MaxBatch(); f.definition.Name == "" || most != f.definition.MaxBatch() {
		f.scaling = nil // other rows of the profile apply
		if rows := f.d.settings.Profile[fn.Name]; len(rows) > 0 && len(scale.Reachable(rows, most)) == 0 {
			f.d.log.Warn("the profile's rows are not used, because batches of their size reach no instance; set batcher or inflight", "function", fn.Name, "largest_batch", most)
		}
	}
	if why := f.d.cfg.whyUnsupported(fn); why != "" {
		f.d.log.Warn("the gateway cannot start a function", "function", fn.Name, "why", why)
	}
	f.definition, f.queue = fn, cmp.Or(fn.Queue, f.d.cfg.Queue)
	limits := &CallLimits{Timeout: cmp.Or(fn.Timeout, f.d.cfg.Timeout), Idle: fn.Scale.Idle, Probes: fn.Probed(), Batcher: fn.Batcher,
		Served: fn.Served, Comments: bool(fn.LoadingComments), Affinity: fn.Affinity}
	f.sessions.configure(fn.Affinity)
	if fn.KeepUpgraded {
		limits.Idle = 0
	}
	f.calls.Store(limits)
	f.setMaxBatch()
	if f.scaling != nil {
		f.scaling.configure(f.d.policy.now(), fn)
		return
	}
	f.scaling = f.chooser().newAutoscaling(f.d.log)
	if row := f.chooser().unit(); row != nil {
		f.unit = *row
	} else if _, scales := scale.KindOf(f.d.cfg.Scaler); scales && len(f.d.settings.Profile[f.name]) > 0 {
		f.d.log.Warn("the function is not scaled: no row of the profile has its slo, and the sm and quota of its file", "function", f.name)
	}
}

// renew ends the current version of the function and begins another. Locked.
func (f *Function) renew() {
	if f.version != nil {
		f.end()
	}
	f.placing.endClearing()
	f.placing = placing{f: f}
	f.version = &version{}
	f.life, f.end = context.WithCancel(f.d.life)
}

// isVersion reports whether a gateway's instance belongs to the version that fn defines.
func isVersion(r *instance.Record, fn function.Function) bool {
	now := launch.Intended(fn, instance.Placement{})
	return (r.Definition == "" || r.Definition == now.Definition) && r.Slice == sliceBy(fn, r.Slice)
}

// respec sends the function's current spec to the policy. Locked.
func (f *Function) respec() {
	f.spec = f.newSpec()
	f.d.policy.step(functionSet(f, f.spec, false))
	f.relearnClasses()
	f.relearnShared()
}

// respecFor sends another spec to the policy for one step, and then the current one.
// Locked.
func (f *Function) respecFor(spec queue.Function) {
	f.spec = f.newSpec()
	f.d.policy.step(functionSet(f, spec, false))
	f.d.policy.step(functionSet(f, f.spec, false))
}

// StopIdle stops the function's instances that run no call, however briefly they have been
// idle.
func (f *Function) StopIdle() {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.removed {
		return
	}
	now := f.spec
	now.Min, now.Idle = 0, 1
	f.respecFor(now)
}

// longestIdle limits how long KeepIdle keeps idle instances. A longer time means that they do not stop.
const longestIdle = 10 * 365 * 24 * time.Hour

// KeepIdle replaces scale.idle with d for the function's current version. With 0, idle instances stop now and
// scale.idle applies again; with a negative time, instances do not stop because they are idle. It has no effect
// if the function has an autoscaler.
func (f *Function) KeepIdle(d time.Duration) {
	switch {
	case d == 0:
		f.StopIdle()
	case d > longestIdle:
		d = -1
	}
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if !f.removed && f.idle != d {
		f.idle = d
		f.respec()
	}
}

// NotLoaded returns the refusal for a probe if no instance can answer it, and otherwise
// nil.
func (f *Function) NotLoaded() *refusal.Error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.instances.warm() == nil {
		return RefuseProbe(f)
	}
	return nil
}

// probeRetry is the time after which a client may send a refused probe again.
const probeRetry = 10 * time.Second

// RefuseProbe returns the refusal for a probe of a function without a ready instance.
func RefuseProbe(f *Function) *refusal.Error {
	return &refusal.Error{Code: refusal.NotLoaded, Retry: probeRetry,
		Message: "function " + f.name + " has no ready instance, and a probe does not start one", Hint: `"probes" in function.yaml defines which requests are probes`}
}

// refusal returns the answer to a call that the policy rejected with the given code.
// Locked.
func (f *Function) refusal(code reason.Code) *refusal.Error {
	switch code {
	case queue.TooLarge:
		if inUse := f.d.memory.inUse(f); inUse != nil {
			return inUse
		}
		return &refusal.Error{Code: refusal.LargerThanGPU, Message: fmt.Sprintf("function %s needs %v of GPU memory, and no GPU has that much", f.name, f.definition.GPUMem)}
	case queue.QueueFull:
		slots := max(len(f.d.GPUs.list)*f.d.cfg.Concurrency, 1)
		return &refusal.Error{Code: refusal.QueueFull, Retry: max(time.Duration(f.queue)*f.spec.Warm/time.Duration(slots), time.Second),
			Message: fmt.Sprintf("the queue is full: %d calls of function %s wait", f.queue, f.name)}
	case queue.TooLate:
		return &refusal.Error{Code: refusal.QueueTimeout, Message: "no instance was free within " + f.d.cfg.QueueTimeout.String()}
	case queue.StartFailed:
		return startFailed(f, f.failure)
	}
	return refusal.UnknownFunction(f.name)
}

// startFailed returns the refusal for a call whose instance could not be started.
func startFailed(f *Function, cause error) *refusal.Error {
	if _, ok := errors.AsType[*ports.NotFoundError](cause); ok { // the function was removed while the call waited
		return refusal.UnknownFunction(f.name)
	}
	e := &refusal.Error{Code: refusal.StartFailed, Message: fmt.Sprintf("cannot start an instance of function %s", f.name)}
	if cause != nil {
		e.Message += ": " + cause.Error()
		e.Hint = ports.Hint(cause)
	}
	return e
}

// Records returns the records of the function's instances in order of ID, without instances
// that have no process or container yet. If id is not empty, it returns only that record.
func (f *Function) Records(id string) (records []instance.Record) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	for _, i := range f.instances {
		if i.record.Handle.Runtime != "" && (id == "" || i.record.ID == id) {
			records = append(records, *i.record)
		}
	}
	slices.SortFunc(records, compareByID)
	return records
}

// delayReplacement delays the replacement of an instance that scale.min keeps and that exited within
// steady of its start. Each such exit doubles the delay (Backoff). Otherwise, an instance that exits
// as soon as it is ready would keep the GPU busy with starts. Locked.
func (f *Function) delayReplacement(i *Instance) {
	v := i.version
	if !i.own || i.unneeded() || f.definition.Scale.Min == 0 {
		return
	}
	ran := time.Since(i.record.Handle.Started)
	wait := v.early.Next(ran)
	if ran >= steady {
		return
	}
	f.d.log.Warn("an instance ended soon after its start; its replacement is delayed", "instance", i.record.ID, "function", f.name, "in", wait.String())
	v.delayed++
	v.maxMin = f.instances.countAlive()
	f.respec()
	time.AfterFunc(wait, func() {
		f.d.mu.Lock()
		defer f.d.mu.Unlock()
		if v.delayed--; v.delayed == 0 && f.version == v {
			f.respec()
		}
	})
}

// replace starts one more instance if the function has fewer than wanted.
// Locked.
func (f *Function) replace(wanted int) {
	have := f.instances.countAlive()
	if have >= wanted || f.d.Draining.IsSet() {
		return
	}
	if f.placing.byPlacer() {
		f.placing.startOne()
		return
	}
	spec := f.newSpec()
	spec.Min = max(spec.Min, int32(have+1))
	f.respecFor(spec)
}

// Backoff computes the pause before a restart: 1 s, then 2 s, 4 s and so on up to a minute,
// and 1 s again after a run of at least steady.
type Backoff struct{ tries int }

const steady = instance.SteadyRun

// Next returns the pause before the next start, given how long the last run lasted.
func (b *Backoff) Next(ran time.Duration) time.Duration {
	if ran >= steady {
		b.tries = 0
	}
	b.tries++
	return instance.RestartPause(b.tries)
}
