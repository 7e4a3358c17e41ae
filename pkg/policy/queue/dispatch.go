package queue

import (
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/reason"
)

// dispatcher moves invocations from the backlog to instances, and back if they could not run. It
// turns the changes of the pool into actions.
type dispatcher struct {
	*backlog
	starts      starts
	timeouts    timeouts
	runs        runs
	sequences   *batches // nil unless the policy is batch
	held        holds
	begun       []residency.ID // instances that have begun after a wait for room, and whose batches are to be filled
	charged     time.Duration  // for the end of the last invocation: the time for its tenant
	rejects     []Action       // rejections to report at the end of the step
	recheck     bool           // waiting invocations may no longer fit any GPU, or their function is barred
	prefetch    bool           // memory returns when a queue becomes active
	swap        bool           // memory follows the states of queues (order.relocations)
	evictReason reason.Code    // the code of evictions
}

func reject(f int32, m member, code reason.Code) Action {
	return Action{Kind: Reject, Function: f, ID: m.id, Arrived: m.at, GPU: none, Instance: residency.None, Reason: Reason{Code: code}}
}

// unrunnable returns the code with which the waiting invocations of a function are rejected, or "".
func (d *dispatcher) unrunnable(f int32) reason.Code {
	switch {
	case !d.known(f):
		return NoFunction
	case !d.pool.Fits(f):
		return TooLarge
	case d.starts.barred(f):
		return StartFailed
	}
	return ""
}

// start dispatches the next invocation of the chosen function to a place.
func (d *dispatcher) start(c *choice, at residency.Place, actions []Action) []Action {
	q := &d.queues.queues[c.function]
	if c.reason.Waiting == 0 {
		c.reason.Waiting, c.reason.InFlight = q.len, q.inFlight
	}
	instance, room := d.pool.Begin(c.function, at)
	actions = append(d.appendChanges(actions, ""), Action{})
	a := &actions[len(actions)-1]
	a.Kind, a.Start, a.FalseMiss, a.Function, a.GPU = Run, at.Start, c.falseMiss, c.function, at.GPU
	a.Expected, a.Reason = d.pool.DurationOn(c.function, at.GPU, at.Start), c.reason
	if d.prefetch && at.Start == residency.GPUWarm {
		a.Expected += max(d.pool.Ready(instance)-d.now, 0)
	}
	actions = d.dispatch(instance, room, actions)
	if room && d.batches(c.function) {
		actions = d.fill(c.function, instance, actions)
	}
	return actions
}

// dispatch pops an invocation of the function in the last action, and completes that action. If
// there is no room, it removes the action from the list and holds it until there is.
func (d *dispatcher) dispatch(instance int32, room bool, actions []Action) []Action {
	a := &actions[len(actions)-1]
	f := a.Function
	m, bound := d.popFor(f, instance)
	a.Instance, a.ID, a.Arrived = d.pool.Instance(instance), m.id, m.at
	d.queues.queues[f].inFlight++
	x := run{member: m, function: f, gpu: a.GPU, instance: instance, waitsForRoom: !room, bound: bound,
		started: d.now, expectedEnd: d.now + a.Expected, warm: d.warmOn(f, a.GPU)}
	x.executes = x.expectedEnd - x.warm
	if x.joined = a.Reason.Code == joinsInstance && d.batches(f); x.joined {
		end, _ := d.runs.busyUntil(instance, d.now)
		n := d.runs.count(instance)
		longer := InBatch(x.warm, d.slope(f), n+1) - x.warm
		a.Expected += longer
		x.expectedEnd += longer
		d.stretchOthers(f, instance, n, n+1)
		x.adds = max(x.expectedEnd-end, 0)
	}
	r := d.runs.add(x)
	if !room || d.pool.IsStarting(instance) {
		deadline := d.timeouts.arrivalDeadline(m.id)
		r.expires, r.startingCounted = deadline.at, deadline.starting
		d.starts.begun(f)
	}
	if d.sequences != nil {
		d.sequences.fill(instance, f, a.GPU, d.queues)
	}
	if !room {
		d.held.add(a)
		actions = actions[:len(actions)-1]
	}
	d.order.dispatched(d.now, f, r)
	d.update(f)
	return actions
}

// join adds the oldest waiting invocation of a function that may run on a running instance to that instance, which
// can accept it.
func (d *dispatcher) join(f, instance int32, actions []Action) []Action {
	d.include(f)
	q, expected := &d.queues.queues[f], d.warmOn(f, d.pool.GPU(instance))
	if d.batches(f) {
		_, executes := d.runs.busyUntil(instance, d.now)
		expected += executes - d.now
	}
	actions = append(actions, Action{Kind: Run, Start: residency.GPUWarm, Function: f, GPU: d.pool.GPU(instance),
		Expected: expected, Reason: Reason{Code: joinsInstance, Waiting: q.len, InFlight: q.inFlight}})
	d.pool.Join(instance)
	return d.dispatch(instance, true, actions)
}

// dispatchPlanned dispatches waiting invocations to planned instances: first those that the order
// already chose and that wait for room, then the queue, oldest first. If all planned instances are
// busy, an invocation waits for them as long as serveSoon reports true. Otherwise the order
// decides.
func (d *dispatcher) dispatchPlanned(actions []Action) []Action {
	for _, f := range d.plans.functions {
		q := &d.queues.queues[f]
		for q.len > 0 || d.held.len() > 0 {
			p := d.plans.soonest(f)
			if p == nil {
				break
			}
			var m member
			held := false
			for a := range d.held.of(f) {
				if held = !d.runs.find(a.Instance, a.ID).bound; held {
					m = member{a.ID, a.Arrived}
					break
				}
			}
			if !held && (q.len == 0 || !d.suits(f, p.instance)) {
				break
			}
			if held {
				d.unhold(m.id)
				actions = d.appendChanges(actions, "")
			} else {
				m, _ = d.popFor(f, p.instance)
				d.removed(f)
			}
			actions = d.runPlanned(p, f, m, actions)
		}
		d.update(f)
	}
	return actions
}

// runPlanned dispatches an invocation, which was removed from its queue, to a planned instance that can
// accept it.
func (d *dispatcher) runPlanned(p *plannedInstance, f int32, m member, actions []Action) []Action {
	a := Action{Kind: Run, Start: residency.GPUWarm, Function: f, GPU: d.pool.GPU(p.instance), Instance: d.pool.Instance(p.instance), ID: m.id, Arrived: m.at,
		Expected: p.duration, Reason: Reason{Code: plannedFirst, Waiting: d.queues.queues[f].len + 1, InFlight: d.plans.inFlight(f)}}
	expected := p.duration * time.Duration(d.runs.count(p.instance)+1) // concurrent invocations share the instance
	d.runs.add(run{member: m, function: f, gpu: a.GPU, instance: p.instance, planned: true, started: d.now, expectedEnd: d.now + expected, warm: p.duration})
	d.plans.running[f]++
	d.pool.Join(p.instance)
	return append(actions, a)
}

// continueBatches starts the next invocation of each batch that scheduleNext scheduled.
func (d *dispatcher) continueBatches(actions []Action) []Action {
	for _, instance := range d.sequences.continuing {
		b := &d.sequences.queues[instance]
		if len(b.remaining) == 0 || d.pool.IsLost(instance) || d.pool.Obsolete(instance) { // the rest was cancelled, or the instance was lost
			d.pool.End(instance, d.now)
			d.order.freed(b.function, b.gpu)
			d.dissolveBatch(instance)
			actions = d.appendChanges(actions, "")
			continue
		}
		first := b.remaining[0]
		b.remaining = b.remaining[1:]
		q, warm := &d.queues.queues[b.function], d.warmOn(b.function, b.gpu)
		actions = append(actions, Action{Kind: Run, Start: residency.GPUWarm, Function: b.function, GPU: b.gpu, Instance: d.pool.Instance(instance),
			ID: first.id, Arrived: first.at, Expected: warm,
			Reason: Reason{Code: nextInBatch, Waiting: int32(len(b.remaining)) + 1, InFlight: q.inFlight}})
		q.inFlight++
		d.runs.add(run{member: first, function: b.function, gpu: b.gpu, instance: instance,
			started: d.now, expectedEnd: d.now + warm, warm: warm})
	}
	d.sequences.continuing = d.sequences.continuing[:0]
	return actions
}

// dissolveBatch returns the remaining invocations of an instance's batch to their queue. The
// instance is idle or lost.
func (d *dispatcher) dissolveBatch(instance int32) {
	if d.sequences == nil || int(instance) >= len(d.sequences.queues) {
		return
	}
	b := &d.sequences.queues[instance]
	remaining := slices.Clone(b.remaining)
	b.remaining = b.remaining[:0]
	for _, m := range remaining {
		d.requeueOrReject(b.function, m, deadline{})
	}
}

// finish removes an invocation from its instance after it completed, or failed if failed is not
// nil.
func (d *dispatcher) finish(x *Execution, failed *Failed, actions []Action) []Action {
	executed := x.Executed
	d.charged = executed
	r := d.runs.find(x.Instance, x.ID)
	if r == nil || r.waitsForRoom {
		return actions
	}
	switch n := d.runs.count(r.instance); {
	case !r.planned && executed > 0 && d.batches(r.function):
		if d.pool.IsStarting(r.instance) {
			d.runs.setExecutes(r.instance, d.now-executed)
		}
		executed = d.runs.settle(r, executed, d.now)
		d.charged = executed
	case n > 1:
		executed /= time.Duration(n) // concurrent invocations share the slot's time
	}
	d.endRun(r, executed)
	d.ranUntil[r.function] = d.now
	if r.planned && failed == nil {
		d.plans.measured(r, executed)
	}
	f := r.function
	switch isStarting := d.pool.IsStarting(r.instance); {
	case failed != nil && failed.Starting:
		if isStarting {
			d.startFailed(r.instance, failed.OutOfMemory) // before other invocations use its room
		}
		d.pool.Lost(r.instance)
	case isStarting && failed == nil:
		d.starts.succeeded(f)
	}
	if d.sequences != nil && d.sequences.scheduleNext(r.instance, d.pool.IsLost(r.instance) || d.pool.Obsolete(r.instance)) {
		d.pool.Trim(r.gpu)
	} else {
		d.pool.End(r.instance, d.now)
		if !r.planned && (d.pool.Run(r.instance) == none || !d.batches(f)) {
			d.order.freed(f, r.gpu)
		}
		d.dissolveBatch(r.instance)
	}
	if failed != nil && failed.Requeue {
		expires := r.deadline()
		if failed.Deadline > 0 {
			d.timeouts.forget(r.id)
			expires = d.timeouts.deadline(failed.Deadline, f, r.member)
		}
		d.requeueOrReject(f, r.member, expires)
	}
	actions = d.appendChanges(actions, "")
	d.update(f)
	return actions
}

// startFailed counts the failed start of an instance, unless evictions can free the
// memory that it lacked.
func (d *dispatcher) startFailed(instance int32, outOfMemory bool) {
	if !d.open(d.pool.GPU(instance)) {
		return // not the function's fault
	}
	if outOfMemory && d.pool.RaiseLeastMem(instance) {
		return
	}
	if d.starts.failed(d.pool.Function(instance)) {
		d.recheck = true
	}
}

// endRun removes a run from its instance and charges it to the order. *r stays valid until the
// next run is added.
func (d *dispatcher) endRun(r *run, executed time.Duration) {
	d.runs.remove(r)
	if r.planned {
		d.plans.running[r.function]--
		return
	}
	d.queues.queues[r.function].inFlight--
	d.order.finished(d.now, r.function, r, executed)
	if d.slope(r.function) > 0 {
		n := d.runs.count(r.instance)
		d.stretchOthers(r.function, r.instance, n+1, n)
	}
}

// requeueOrReject returns an invocation to its place in the queue, or rejects it. It notes the
// deadline, unless expires.at is 0.
func (d *dispatcher) requeueOrReject(f int32, m member, expires deadline) {
	if code := d.unrunnable(f); code != "" {
		d.rejects = append(d.rejects, reject(f, m, code))
		return
	}
	if expires.at > 0 {
		d.timeouts.deadlines.add(expires)
	}
	d.requeue(f, m)
}

// requeueFrom returns the invocations that wait on an instance, for room or for its start, to
// their queue.
func (d *dispatcher) requeueFrom(instance int32) {
	for n := d.pool.Run(instance); n != none; n = d.pool.Run(instance) {
		r := d.runs.entries[n]
		d.endRun(&d.runs.entries[n], 0)
		d.held.remove(r.id)
		d.order.freed(r.function, r.gpu)
		d.requeueOrReject(r.function, r.member, r.deadline())
		d.rebind(&r)
	}
	d.dissolveBatch(instance)
}

// listWaiting returns the waiting invocations of a function: those in its queue, oldest first, then
// those that wait for room or for their turn in a batch.
func (d *dispatcher) listWaiting(f int32) []member {
	members := append(d.order.list(f), d.bound.outside(f)...)
	for a := range d.held.of(f) {
		members = append(members, member{a.ID, a.Arrived})
	}
	if d.sequences != nil {
		members = append(members, d.sequences.of(f)...)
	}
	return members
}

// rejectAll rejects all waiting invocations of a function.
func (d *dispatcher) rejectAll(f int32, code reason.Code, actions []Action) []Action {
	// Those that wait for room return to the queue first. If they were removed one by one, the room of one could
	// let the next one begin.
	d.pool.Bump(f)
	actions = d.appendChanges(actions, "")
	for _, m := range d.listWaiting(f) {
		if d.remove(f, m.id) {
			actions = append(actions, reject(f, m, code))
		}
	}
	return actions
}

// remove removes an invocation that waits in a queue, for room, or in a batch. It reports whether
// the invocation was waiting.
func (d *dispatcher) remove(f int32, id int64) bool {
	return d.bound.remove(id) || d.drop(f, id) || d.unhold(id) || d.sequences != nil && d.sequences.drop(f, id)
}

// unhold removes a held invocation, and reports whether it was held.
func (d *dispatcher) unhold(id int64) bool {
	a, held := d.held.remove(id)
	if !held {
		return false
	}
	r := d.runs.find(a.Instance, a.ID)
	d.endRun(r, 0)
	d.pool.Withdraw(r.instance)
	d.order.freed(a.Function, r.gpu)
	d.dissolveBatch(r.instance)
	d.update(a.Function)
	return true
}

// runHeld makes the held invocation of the instance in a slot run, and returns its action.
func (d *dispatcher) runHeld(slot int32) Action {
	n := d.pool.Run(slot)
	for !d.runs.entries[n].waitsForRoom {
		n = d.runs.entries[n].next
	}
	r := &d.runs.entries[n]
	a, _ := d.held.remove(r.id)
	r.waitsForRoom, r.started, r.executes, r.expectedEnd = false, d.now, r.executes+d.now-r.started, d.now+r.expected()
	return a
}

// appendChanges converts pending changes of the pool to actions. An empty code stands for
// evictReason.
func (d *dispatcher) appendChanges(actions []Action, code reason.Code) []Action {
	if !d.pool.Changed() {
		return actions
	}
	return d.convertChanges(actions, code)
}

// convertChanges implements appendChanges if there are any.
func (d *dispatcher) convertChanges(actions []Action, code reason.Code) []Action {
	if code == "" {
		code = d.evictReason
	}
	for changes := d.pool.Changes(); len(changes) > 0; changes = d.pool.Changes() {
		for _, c := range changes {
			d.order.moved(c.Function, c.GPU)
			a := Action{Function: c.Function, GPU: c.GPU, Instance: c.Instance, Reason: Reason{Code: code}}
			switch c.Verb {
			case residency.ToRemove:
				d.plans.remove(c.Function, c.Index)
				a.Kind = Remove
			case residency.ToCancel:
				d.requeueFrom(c.Index)
				if a.Kind = Remove; code == d.evictReason {
					a.Reason.Code = functionChanged
				}
			case residency.ToOffload:
				a.Kind = Offload
			case residency.ToStart:
				if a.Kind = Start; code != placed {
					a.Reason.Code = belowMinimum
				}
			case residency.ToRequeue:
				d.requeueFrom(c.Index)
				continue
			case residency.ToBegin:
				a = d.runHeld(c.Index)
				if d.batches(a.Function) {
					d.begun = append(d.begun, a.Instance)
				}
			}
			if c.ForTenant {
				a.Reason.Code = roomForTenant
			}
			actions = append(actions, a)
		}
	}
	return actions
}
