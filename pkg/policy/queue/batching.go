package queue

import (
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/reason"
)

// batching lets invocations join the batches of running instances. A batch consists of the invocations that an
// instance of a function with Inflight above 1 runs from the time at which it gets a slot until it is idle
// (docs/simulation.md, R28 to R32).
//
// A function waits for an instance if it has waiting invocations and no running instance.
//
//  1. When an instance gets a slot, the oldest waiting invocations of its function begin the batch, up to Inflight.
//     While the instance starts, or its memory returns, further invocations join.
//  2. While the instance executes, invocations join until another function has waited for an instance for
//     BatchWindow. Then the batch is closed.
//  3. While the batches of a function are not closed, an idle instance with its memory on the GPU needs no slot to
//     begin one, and neither does the function's first instance, if it fits without an eviction.
//  4. Some policies may prefer a function to others that have waited longer (order.prefers). They do not prefer a
//     function with batches to a function that has waited for BatchWindow.
//  5. A function is charged for the union of the intervals of its invocations on each instance: see runs.settle.
type batching struct {
	first, second need   // functions that wait for an instance; function is none if there is no such function
	ofTenants     []need // functions that wait until instances of their tenant are idle, if examined
	checked       bool   // first and second wait in this state, but others may have waited longer
	examined      bool   // first and second are those that have waited longest in this state
	withoutSlot   bool   // batches may begin without a slot
}

// need is a function that waits for an instance.
type need struct {
	function, tenant int32
	since            time.Duration // when the wait began
}

var noNeed = need{function: none, since: Never}

// findNeeds finds the functions that have waited longest for an instance.
func (e *engine) findNeeds() {
	b := &e.batching
	b.examined, b.ofTenants = true, b.ofTenants[:0]
	b.first, b.second = noNeed, noNeed
	for i := range e.functions {
		f := int32(i)
		if !e.needs(f) {
			continue
		}
		switch n := (need{f, e.functions[f].Tenant, e.needsSince(f)}); {
		case e.pool.WaitsForTenant(f):
			b.ofTenants = append(b.ofTenants, n)
		case n.since < b.first.since:
			b.first, b.second = n, b.first
		case n.since < b.second.since:
			b.second = n
		}
	}
}

// needs reports whether a function waits for an instance, or for those of its tenant.
func (e *engine) needs(f int32) bool {
	q := &e.queues.queues[f]
	return q.len > 0 && (!q.excluded || slices.Contains(e.aside, f)) &&
		!e.pool.Running(f) && !e.order.isThrottled(f) && e.pool.FitsWithPinned(f)
}

// stillNeeds returns a need of an earlier state as it is now, or noNeed.
func (e *engine) stillNeeds(n need) need {
	if n.function == none || !e.needs(n.function) || e.pool.WaitsForTenant(n.function) {
		return noNeed
	}
	n.since = e.needsSince(n.function)
	return n
}

// noLongerNeeds discards the results if the dispatch of an invocation of f may have changed them.
func (b *batching) noLongerNeeds(f int32) {
	if b.first.function == f || b.second.function == f || len(b.ofTenants) > 0 {
		b.changedState()
	}
}

// changedState records that the state has changed.
func (b *batching) changedState() { b.checked, b.examined = false, false }

// needsSince returns the time at which a function that waits for an instance began to wait: the arrival of its oldest
// invocation or, if that is later, the end of its last one.
func (e *engine) needsSince(f int32) time.Duration { return max(e.order.since(f), e.ranUntil[f]) }

// otherNeeds reports whether an invocation has waited for another instance than those of a function since
// a time or longer. It examines all functions only if none of the two does that waited longest in an earlier
// state. If ofTenant is false, functions that wait for the instances of their tenant do not count.
func (e *engine) otherNeeds(f int32, since time.Duration, ofTenant bool) bool {
	b := &e.batching
	if !b.examined {
		if !b.checked {
			b.checked = true
			b.first, b.second = e.stillNeeds(b.first), e.stillNeeds(b.second)
		}
		if b.longest(f) <= since {
			return true
		}
		e.findNeeds()
	}
	if b.longest(f) <= since {
		return true
	}
	for _, n := range b.ofTenants {
		if ofTenant && n.function != f && n.tenant == e.functions[f].Tenant && n.since <= since {
			return true
		}
	}
	return false
}

// longest returns since when one of first and second, other than the function, has waited, or Never.
func (b *batching) longest(f int32) time.Duration {
	switch f {
	case b.first.function:
		return b.second.since
	case b.second.function:
		return b.first.since
	}
	return min(b.first.since, b.second.since)
}

// closed reports whether the batches of a function are closed: another function has waited for an instance for the
// batch window of f.
func (e *engine) closed(f int32) bool { return e.otherNeeds(f, e.now-e.functions[f].BatchWindow, true) }

// yields reports whether f, which the order has chosen, must let another function go first: it has waited longer than
// f, and at least for the batch window of f.
func (e *engine) yields(f int32) bool {
	return e.batches(f) && e.order.prefers() && e.otherNeeds(f, min(e.now-e.functions[f].BatchWindow, e.needsSince(f)-1), false)
}

// fill lets waiting invocations join the batch that an instance has begun.
func (d *dispatcher) fill(f, instance int32, actions []Action) []Action {
	for d.queues.queues[f].len > 0 && d.pool.Accepts(instance) && d.suits(f, instance) {
		actions = d.join(f, instance, actions)
	}
	return actions
}

// fillBegun lets waiting invocations join the batches of instances that have waited for room.
func (d *dispatcher) fillBegun(actions []Action) []Action {
	for _, id := range d.begun {
		if instance := d.pool.Index(id); instance >= 0 {
			actions = d.fill(d.pool.Function(instance), instance, actions)
		}
	}
	d.begun = d.begun[:0]
	return actions
}

// joinFirst lets waiting invocations join batches before the order decides, unless the function has an idle instance
// with its memory on a GPU. The engine calls it for orders whose choices it cannot set aside.
func (e *engine) joinFirst(actions []Action) []Action {
	for _, f := range e.shared {
		if e.queues.queues[f].len == 0 || !e.batches(f) {
			continue
		}
		idle := false
		for range e.pool.Warm(f) {
			idle = true
			break
		}
		if !idle {
			actions = e.extendBatches(f, actions)
		}
	}
	return actions
}

// extendBatches lets waiting invocations of a function join its batches, and begins batches that need no slot.
func (e *engine) extendBatches(f int32, actions []Action) []Action {
	if !e.withoutSlot && !e.pool.Running(f) {
		return actions
	}
	q, closed := &e.queues.queues[f], e.closed(f)
	for q.len > 0 && e.pool.Running(f) {
		instance, spare := e.pool.Spare(f)
		if !spare || closed && !e.runs.preparing(instance, e.now) || !e.suits(f, instance) {
			break
		}
		actions = e.join(f, instance, actions)
	}
	for e.withoutSlot && q.len > 0 && !closed && !q.excluded {
		at, found := e.pool.Beside(f)
		if found && len(e.bound.entries) > 0 && e.bound.inQueue(f) {
			found = at.Index >= 0 && e.suits(f, at.Index)
		}
		if !found {
			break
		}
		e.chosen = choice{function: f, reason: Reason{Code: needsNoSlot}}
		actions = e.start(&e.chosen, at, actions)
		e.noLongerNeeds(f)
	}
	return actions
}

// preparing reports whether an instance still starts, or its memory still returns to the GPU.
func (r *runs) preparing(instance int32, now time.Duration) bool {
	_, executes := r.busyUntil(instance, now)
	return r.pool.IsStarting(instance) || executes > now
}

// joinShared lets waiting invocations join running instances of their functions at the end of a step.
func (e *engine) joinShared(actions []Action) []Action {
	onlyShared, examined := false, false
	for _, f := range e.shared {
		q := &e.queues.queues[f]
		switch {
		case q.len == 0:
		case e.batches(f):
			actions = e.extendBatches(f, actions)
		default:
			if !examined {
				onlyShared, examined = e.onlySharedWait(), true
			}
			for onlyShared && q.len > 0 && !e.delaysTenant(f) {
				instance, spare := e.pool.Spare(f)
				if !spare || !e.suits(f, instance) {
					break
				}
				actions = e.join(f, instance, actions)
			}
		}
	}
	return actions
}

// batchReason returns the reason why no invocation joins a batch of the function, or the zero Reason if invocations
// may join or the function has no batches.
func (e *engine) batchReason(f int32) (r reason.Reason) {
	if !e.batches(f) {
		return r
	}
	if _, spare := e.pool.Spare(f); spare && e.closed(f) {
		r = reason.New(batchClosed)
	}
	return r
}

// onlySharedWait reports whether every waiting function has a running instance that its invocations could join.
// Functions that have to wait until their own instances, or those of their tenant, are idle do not count.
func (b *backlog) onlySharedWait() bool {
	for f := range b.functions {
		if q := &b.queues.queues[f]; q.len == 0 || q.excluded {
			continue
		}
		if _, spare := b.pool.Spare(int32(f)); !spare && !b.pool.WaitsForTenant(int32(f)) {
			return false
		}
	}
	return true
}

// delaysTenant reports whether another function of the same tenant waits until instances of the tenant are idle. No
// invocation of f may then join an instance, because that instance might never become idle.
func (b *backlog) delaysTenant(f int32) bool {
	if b.config.Limits.Processes == 0 && b.config.Limits.Mem == 0 {
		return false
	}
	for i := range b.functions {
		g := int32(i)
		if g == f || b.queues.queues[g].len == 0 || b.functions[g].Tenant != b.functions[f].Tenant {
			continue
		}
		if _, spare := b.pool.Spare(g); !spare && b.pool.WaitsForTenant(g) {
			return true
		}
	}
	return false
}
