package queue

import (
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/reason"
)

// engine implements Policy for all kinds. It passes each event to the part that it concerns, and
// then dispatches invocations. Its order chooses the next function, and its pool the instance and
// GPU. The parts are layers, of which each knows those below it only: registry, dispatcher, starts,
// timeouts and backlog.
type engine struct {
	registry
	batching
	paused       bool          // remaining decisions are left to the next step
	unadvanced   bool          // events other than confirmed stops were applied since lastAdvanced
	lastAdvanced time.Duration // time of the last order.advanced
	chosen       choice        // scratch for step
	lastWake     time.Duration // time of the last Wake
}

func newEngine(c Config) *engine {
	v := &view{config: c, queues: newWaiting(0)}
	b := &backlog{view: v, order: kindOf(c.Policy).order(v)}
	e := &engine{lastWake: Never, batching: batching{first: noNeed, second: noNeed}}
	e.dispatcher = dispatcher{backlog: b, starts: starts{backlog: b}, timeouts: timeouts{view: v}, held: newHolds(), evictReason: evictionOrder}
	e.bound.exact = noExact
	if c.Policy == "batch" {
		e.sequences = &batches{}
	}
	shape := residency.Config{Pool: c.Pool, Starting: e.timeouts.starting,
		Tenants: residency.TenantLimits{Instances: c.Limits.Processes, Mem: c.Limits.Mem}}
	b.order.shape(&shape)
	e.binds = !OneAtATime(c.Policy) && !shape.UsesClear && c.Policy != "batch"
	e.withoutSlot = !OneAtATime(c.Policy) && !shape.UsesClear
	if shape.NoHost {
		e.evictReason = leastRecentlyUsed
	}
	e.prefetch, e.swap = c.Prefetch && c.Follows(), c.Swap && c.Follows()
	if c.Utilization > 0 && !OneAtATime(c.Policy) && !shape.UsesClear {
		e.adaptive = &adaptive{threshold: c.Utilization}
	}
	b.pool = residency.New(shape)
	v.pool, v.evict = b.pool, b.pool
	e.runs.pool = b.pool
	b.plans = plans{view: v, pool: b.pool, runs: &e.runs}
	return e
}

// Step implements Policy.
func (e *engine) Step(now time.Duration, events []Event, actions []Action) []Action {
	actions = e.step(now, events, actions)
	return e.appendWake(e.wake(), timer, actions)
}

// appendWake adds a Wake, unless the last one was for the same time.
func (e *engine) appendWake(at time.Duration, code reason.Code, actions []Action) []Action {
	if at == e.lastWake && !e.paused {
		return actions
	}
	e.lastWake = at
	return append(actions, Action{Kind: Wake, GPU: none, Instance: residency.None, At: at, Reason: Reason{Code: code}})
}

// step performs Step without the Wake. If a dispatched invocation has to wait for room, step sets
// paused and leaves the other decisions to the next step at the same instant. By then, a driver
// whose instances move and stop in no time has confirmed the moves, so the next decisions use the
// freed memory.
func (e *engine) step(now time.Duration, events []Event, actions []Action) []Action {
	e.now, e.paused = now, false
	e.batching.changedState()
	firstNew := len(actions)
	for i := range events {
		actions = e.apply(events[i:], actions)
	}
	if len(e.starts.closing) > 0 {
		actions = e.closeFunctions(actions)
	}
	if len(e.timeouts.deadlines) > 0 {
		actions = e.expire(actions)
	}
	if len(e.starts.failing) > 0 {
		e.starts.retry()
	}
	if e.unadvanced || now != e.lastAdvanced {
		e.order.advanced(now)
		e.unadvanced, e.lastAdvanced = false, now
	}
	if e.sequences != nil {
		actions = e.continueBatches(actions)
	}
	if len(e.bound.entries) > 0 {
		actions = e.serveBound(actions)
	}
	if len(e.plans.functions) > 0 {
		actions = e.dispatchPlanned(actions)
	}
	if len(e.begun) > 0 {
		actions = e.fillBegun(actions)
	}
	if len(e.shared) > 0 && e.queues.total > 0 && OneAtATime(e.config.Policy) {
		actions = e.joinFirst(actions)
	}
	held := e.held.len()
	for e.queues.total > 0 && (e.pool.AnyFree() || e.order.reserves()) {
		if e.paused = e.held.len() > held; e.paused {
			break
		}
		c := &e.chosen
		if !e.order.next(now, c) {
			break // every function should wait
		}
		if c.assigned {
			actions = append(actions, Action{Kind: Assign, Function: c.function, GPU: c.at.GPU, Instance: residency.None,
				ID: c.member.id, Arrived: c.member.at, Reason: c.reason})
			continue
		}
		at, ok := c.at, c.placed
		if !ok {
			at, ok = e.pool.Best(c.function, c.only, c.except)
		}
		if ok && len(e.bound.entries) > 0 && e.bound.inQueue(c.function) {
			if at, ok = e.boundPlace(c.function, at); !ok {
				e.setAside(c.function)
				continue
			}
		}
		if (!ok || len(e.shared) > 0) && !c.popped && (e.mayYield(c.function, at, ok) || e.yields(c.function)) {
			e.setAside(c.function)
			continue
		}
		if !ok {
			break // the invocation waits, and no other overtakes it (R10)
		}
		actions = e.start(c, at, actions)
		e.noLongerNeeds(c.function)
	}
	e.paused = e.paused || e.anyBatches && e.held.len() > held // batches may begin where the memory becomes free
	if !e.paused {
		actions = e.finishStep(actions)
	}
	if len(e.rejects) > 0 {
		actions = append(actions, e.rejects...)
		e.rejects = e.rejects[:0]
	}
	if len(e.timeouts.arrivals) > 0 {
		e.timeouts.addFresh(actions[firstNew:])
	}
	return actions
}

// apply applies the first of the events.
func (e *engine) apply(events []Event, actions []Action) []Action {
	ev := events[0]
	if lost, ok := ev.(*Lost); ok {
		if instance := e.pool.Index(lost.Instance); instance >= 0 && e.pool.IsStopping(instance) {
			return e.instanceStopped(instance, actions)
		}
	}
	e.unadvanced = true
	switch ev := ev.(type) {
	case *Completed:
		return e.finish(&ev.Execution, nil, actions)
	case *Failed:
		return e.finish(&ev.Execution, ev, actions)
	case *Arrived:
		return e.arrived(ev, actions)
	case *Cancelled:
		if e.known(ev.Function) {
			e.remove(ev.Function, ev.ID)
		}
		return e.appendChanges(actions, "")
	case *Started:
		if r := e.runs.find(ev.Instance, ev.ID); r != nil && e.pool.IsStarting(r.instance) {
			e.pool.Started(r.instance, e.now)
			e.runs.setExecutes(r.instance, e.now)
			e.starts.succeeded(r.function)
		}
	case *Sized:
		if r := e.runs.find(ev.Instance, ev.ID); r != nil && !r.waitsForRoom && ev.Times > 0 {
			e.resize(r, ev.Times)
		}
	case *Used:
		if e.adaptive != nil && e.open(ev.GPU) {
			e.pool.SetSlots(ev.GPU, e.adaptive.sample(ev.GPU, ev.Busy))
		}
	case *FunctionSet:
		e.growFunctions(ev.Function, events)
		if e.functions[ev.Function] != (Function{}) {
			e.renew(ev.Function, ev.Renew)
		}
		return e.setFunction(ev.Function, ev.Spec, actions)
	case *Learned:
		if e.known(ev.Function) {
			f := e.functions[ev.Function]
			if ev.Only != 0 {
				e.classes = true
				e.pool.SetDurationsOn(ev.Function, ev.Only-1, ev.Spec.durations())
				return e.setFunction(ev.Function, f, actions)
			}
			if ev.Class != 0 {
				e.classes = true
				e.pool.SetDurations(ev.Function, ev.Class, ev.Spec.durations())
				return e.setFunction(ev.Function, f, actions)
			}
			f.Warm, f.Cold, f.Load, f.BatchSlope, f.MeasuredMem = ev.Spec.Warm, ev.Spec.Cold, ev.Spec.Load, ev.Spec.BatchSlope, ev.Spec.MeasuredMem
			return e.setFunction(ev.Function, f, actions)
		}
	case *FunctionRemoved:
		if e.known(ev.Function) && !e.starts.isClosing(ev.Function) {
			return e.functionRemoved(ev.Function, actions)
		}
	case *GPUSet:
		e.setGPU(ev)
		return e.appendChanges(actions, "")
	case *GPURemoved:
		return e.gpuRemoved(ev.GPU, actions)
	case *Adopted:
		return e.adopt(ev, actions)
	case *StartRequested:
		return e.startRequested(ev, actions)
	case *Sliced:
		return e.applyToInstance(ev.Instance, ev, actions)
	case *Retired:
		if instance := e.pool.Index(ev.Instance); instance >= 0 {
			e.pool.RetireInstance(instance)
			return e.scaled(ev.Function, e.pool.GPU(instance), retired, actions)
		}
	case *Ready:
		return e.applyToInstance(ev.Instance, ev, actions)
	case *Lost:
		return e.applyToInstance(ev.Instance, ev, actions)
	case *Moved:
		return e.applyToInstance(ev.Instance, ev, actions)
	case *Measured:
		return e.applyToInstance(ev.Instance, ev, actions)
	case *Occupied:
		if ev.GPU >= 0 && int(ev.GPU) < len(e.slots) {
			e.pool.Occupy(ev.GPU, ev.Mem)
			return e.appendChanges(actions, "")
		}
	}
	return actions
}

// arrived adds an invocation, or rejects it.
func (e *engine) arrived(ev *Arrived, actions []Action) []Action {
	f, m := ev.Function, member{ev.ID, ev.At}
	code := e.unrunnable(f)
	if code == "" || code == StartFailed {
		if q := &e.queues.queues[f]; q.limit > 0 && int(q.len)+len(e.bound.outside(f)) >= int(q.limit) {
			code = QueueFull
		}
	}
	if code != "" {
		return append(actions, reject(f, m, code))
	}
	e.timeouts.arrived(ev.Deadline, f, m)
	if e.bind(ev) {
		return actions
	}
	if e.push(f, m) && e.prefetch && !e.swap {
		actions = e.prefetchFor(f, actions)
	}
	return actions
}

// prefetchFor starts to move the memory of an idle instance back to its GPU, if there is room
// (MQFQ-Sticky, section 4.3).
func (e *engine) prefetchFor(f int32, actions []Action) []Action {
	instance, ok := e.pool.Prefetch(f, e.now+e.functions[f].Load)
	actions = e.appendChanges(actions, "")
	if ok {
		gpu := e.pool.GPU(instance)
		e.order.moved(f, gpu)
		actions = append(actions, Action{Kind: Prefetch, Function: f, GPU: gpu, Instance: e.pool.Instance(instance),
			Reason: Reason{Code: queueActive}})
	}
	return actions
}

// relocate lets the memory of instances follow the states of their queues.
func (e *engine) relocate(actions []Action) []Action {
	out, back := e.order.relocations()
	for _, f := range out {
		if e.known(f) {
			e.pool.Recede(f)
		}
	}
	actions = e.appendChanges(actions, queueNotActive)
	for _, f := range back {
		if e.prefetch && e.known(f) {
			actions = e.prefetchFor(f, actions)
		}
	}
	return actions
}

// expire rejects invocations whose deadline has passed.
func (e *engine) expire(actions []Action) []Action {
	for d, found := e.timeouts.next(); found; d, found = e.timeouts.next() {
		if e.remove(d.function, d.id) {
			actions = append(actions, reject(d.function, d.member, TooLate))
		}
	}
	return e.appendChanges(actions, "")
}

// adopt adds an instance that already runs.
func (e *engine) adopt(ev *Adopted, actions []Action) []Action {
	if !e.known(ev.Function) || ev.GPU < 0 || int(ev.GPU) >= len(e.slots) {
		return actions
	}
	found := residency.Found{Resident: ev.To == residency.GPUWarm, Pinned: ev.Pinned, Starting: ev.Pinned && ev.Starting, Mem: ev.Mem}
	instance, ok := e.pool.Adopt(ev.Instance, ev.Function, ev.GPU, found, e.now)
	switch {
	case ok && found.Starting: // held invocations need not start another instance
		actions = e.appendChanges(actions, "")
		e.pool.BumpStarts(ev.Function)
	case ok && ev.Pinned:
		e.plans.add(ev.Function, instance, ev.Warm, ev.Batch)
	case ev.Pinned:
		e.plans.setBatch(ev.Function, e.pool.Index(ev.Instance), ev.Batch)
	}
	return e.instanceChanged(ev.Function, ev.GPU, actions)
}

// startRequested starts an instance on the GPU that the caller has chosen, if there is room.
func (e *engine) startRequested(ev *StartRequested, actions []Action) []Action {
	if !e.known(ev.Function) || !e.open(ev.GPU) || e.starts.isClosing(ev.Function) {
		return actions
	}
	if _, ok := e.pool.StartOn(ev.Function, ev.GPU, e.queues.queues[ev.Function].len > 0); ok {
		e.starts.begun(ev.Function)
	}
	return e.scaled(ev.Function, ev.GPU, placed, actions)
}

// scaled updates a function after the start or the stop of an instance for which the caller has a
// reason of its own.
func (e *engine) scaled(f, gpu int32, code reason.Code, actions []Action) []Action {
	e.order.moved(f, gpu)
	actions = e.appendChanges(actions, code)
	e.update(f)
	return actions
}

// applyToInstance applies an event about an instance: Ready, Lost, Moved, Sliced or Measured.
func (e *engine) applyToInstance(id residency.ID, ev Event, actions []Action) []Action {
	instance := e.pool.Index(id)
	if instance < 0 {
		return actions
	}
	f, gpu := e.pool.Function(instance), e.pool.GPU(instance)
	switch ev := ev.(type) {
	case *Ready:
		if e.pool.IsStarting(instance) {
			e.pool.Started(instance, e.now)
			e.starts.succeeded(f)
			if e.pool.Pinned(instance) {
				e.plans.add(f, instance, ev.Warm, ev.Batch)
			}
		}
	case *Sliced:
		e.pool.SetSlice(instance, ev.Slice)
	case *Measured:
		e.pool.Measured(instance, ev.Mem, ev.Residual)
	case *Moved:
		e.pool.Moved(instance, ev.To, !ev.Failed)
	case *Lost:
		if e.pool.IsStarting(instance) && !e.pool.Pinned(instance) {
			e.startFailed(instance, ev.OutOfMemory)
		}
		if e.pool.IsQueued(instance) {
			e.requeueFrom(instance)
		}
		e.plans.remove(f, instance)
		e.pool.Lost(instance)
		e.recheck = e.recheck || e.starts.isFailing(f)
	}
	return e.instanceChanged(f, gpu, actions)
}

// instanceChanged updates a function after a change of its instances on a GPU.
func (e *engine) instanceChanged(f, gpu int32, actions []Action) []Action {
	e.order.moved(f, gpu)
	actions = e.appendChanges(actions, "")
	e.update(f)
	return actions
}

// instanceStopped frees the resources of an instance that stopped on request. The order learned of
// the stop when it was requested.
func (e *engine) instanceStopped(instance int32, actions []Action) []Action {
	f := e.pool.Function(instance)
	e.recheck = e.recheck || e.starts.isFailing(f)
	e.pool.Lost(instance)
	actions = e.appendChanges(actions, "")
	e.update(f)
	return actions
}

// mayYield reports whether a chosen function should let others go first in this step: if it has no place and it or its
// tenant may have no more instances or it runs a batch; or if it would have a cold or host-warm start, although a
// running instance can take the invocation once no other function wants the GPU, or instances that wait for room can
// take all of its invocations.
func (e *engine) mayYield(f int32, at residency.Place, placed bool) bool {
	if !placed && (e.pool.Capped(f) || e.pool.WaitsForTenant(f) || e.batches(f) && e.pool.Running(f)) {
		return true
	}
	if !placed || at.Start == residency.GPUWarm {
		return false
	}
	_, spare := e.pool.Spare(f)
	return spare || e.batches(f) && e.queues.queues[f].len <= e.pool.SpareWithoutRoom(f)
}

// finishStep ends a step. It reactivates the functions set aside, adds invocations to running
// instances, rejects invocations that can no longer run, starts instances up to each function's
// minimum, stops instances that idled too long, and forgets removed functions.
func (e *engine) finishStep(actions []Action) []Action {
	if len(e.aside) > 0 {
		e.batching.changedState()
	}
	e.restoreAside()
	if len(e.shared) > 0 && e.queues.total > 0 {
		actions = e.joinShared(actions)
	}
	if e.recheck {
		e.recheck = false
		actions = e.rejectUnrunnable(actions)
	}
	for _, f := range e.withMinimum {
		e.startMinimum(f)
	}
	actions = e.appendChanges(actions, "")
	if e.swap {
		actions = e.relocate(actions)
	}
	e.pool.Expire(e.now)
	actions = e.appendChanges(actions, idleTimeout)
	if len(e.retired) > 0 {
		actions = e.forgetRetired(actions)
	}
	return actions
}

// rejectUnrunnable rejects waiting invocations that cannot run, because they fit no GPU or their
// function is barred.
func (e *engine) rejectUnrunnable(actions []Action) []Action {
	for i := range e.functions {
		if f := int32(i); e.known(f) {
			if code := e.unrunnable(f); code != "" {
				actions = e.rejectAll(f, code, actions)
			}
		}
	}
	return actions
}

// startMinimum starts instances up to the minimum of a function, where there is room.
func (e *engine) startMinimum(f int32) {
	for count, _ := e.pool.Count(f); count < int(e.functions[f].Min); count++ {
		if _, ok := e.pool.Start(f); !ok {
			return
		}
		e.starts.begun(f)
	}
}

// wake returns the time at which to decide again even without an event.
func (e *engine) wake() time.Duration {
	if e.paused {
		return e.now
	}
	at := min(e.order.wake(), e.timeouts.at(), e.pool.Expire(e.now))
	if len(e.plans.functions) > 0 {
		at = min(at, e.plans.nextOverdue())
	}
	if len(e.starts.failing) > 0 {
		at = min(at, e.starts.wake())
	}
	return at
}
