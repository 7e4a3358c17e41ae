package queue

import (
	"cmp"
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// An invocation can be bound to an instance of its function (Arrived.Bound). It runs there, as long as
// the instance lives; then it runs on any instance.
//
//  1. If the instance is idle, the invocation waits in the queue of its function, like all others, and
//     the order decides when the function may use a slot. Then the engine chooses the oldest invocation
//     of the function that the place suits, or the place that suits the oldest invocation.
//  2. While the instance runs invocations, the invocation waits outside the queue, so that it starts no
//     other instance. It joins the instance as soon as that can accept one more, even if others wait for
//     a slot. That delays them by a bounded time: while others wait, it joins only if the instance runs
//     an invocation that was dispatched before the first of them arrived.
//  3. An instance of a plan runs it as soon as it can accept one more.
//
// lb, lalb, lalb-o3, exclusive and batch choose the invocation together with its place, so with them the
// binding has no effect.

// bindings holds the waiting invocations that are bound to an instance, in order of arrival.
type bindings struct {
	entries []binding
	exact   int64 // invocation that popFor must return, or noExact
}

const noExact = -1

type binding struct {
	member
	function int32
	instance residency.ID
	queued   bool // the invocation is in the queue of its function
}

// index returns the index of an invocation's binding, or a negative number.
func (b *bindings) index(id int64) int {
	return slices.IndexFunc(b.entries, func(x binding) bool { return x.id == id })
}

// remove removes the binding of an invocation. outside reports whether the invocation waited outside the
// queue.
func (b *bindings) remove(id int64) (outside bool) {
	if len(b.entries) == 0 {
		return false
	}
	i := b.index(id)
	if i < 0 {
		return false
	}
	outside = !b.entries[i].queued
	b.entries = slices.Delete(b.entries, i, i+1)
	return outside
}

// inQueue reports whether the queue of a function has bound invocations.
func (b *bindings) inQueue(f int32) bool {
	return slices.ContainsFunc(b.entries, func(x binding) bool { return x.queued && x.function == f })
}

// outside returns the invocations of a function that wait outside its queue, oldest first.
func (b *bindings) outside(f int32) (members []member) {
	for i := range b.entries {
		if x := &b.entries[i]; !x.queued && x.function == f {
			members = append(members, x.member)
		}
	}
	return members
}

// bind binds a new invocation to its instance. It returns false if the invocation is not bound, or if
// the instance does not exist any more; the caller then adds the invocation to the queue.
func (e *engine) bind(ev *Arrived) bool {
	if !ev.Bound || !e.binds {
		return false
	}
	i := e.pool.Index(ev.Instance)
	if i < 0 || e.pool.Function(i) != ev.Function || !e.pool.Lives(i) {
		return false
	}
	b := binding{member: member{ev.ID, ev.At}, function: ev.Function, instance: ev.Instance, queued: e.pool.Idle(i) && !e.awaited(ev.Instance)}
	e.bound.entries = append(e.bound.entries, b)
	return !b.queued
}

// awaited reports whether an invocation in a queue is bound to the instance.
func (e *engine) awaited(id residency.ID) bool {
	return slices.ContainsFunc(e.bound.entries, func(x binding) bool { return x.queued && x.instance == id })
}

// serveBound dispatches bound invocations whose running instances can accept them, and moves others into
// their queues or out of them.
func (e *engine) serveBound(actions []Action) []Action {
	for i := 0; i < len(e.bound.entries); {
		b := e.bound.entries[i]
		actions = e.serveBinding(b, actions)
		if i < len(e.bound.entries) && e.bound.entries[i].id == b.id {
			i++
		}
	}
	return actions
}

func (e *engine) serveBinding(b binding, actions []Action) []Action {
	instance := e.pool.Index(b.instance)
	switch {
	case instance < 0 || !e.pool.Lives(instance):
		if e.bound.remove(b.id) {
			e.requeueOrReject(b.function, b.member, deadline{})
		}
	case e.pool.Pinned(instance):
		if p := e.plans.accepting(b.function, instance); p != nil {
			e.bound.remove(b.id)
			actions = e.runPlanned(p, b.function, b.member, actions)
		}
	case e.pool.Idle(instance):
		if !b.queued && !e.awaited(b.instance) {
			e.enqueue(b)
		}
	case b.queued: // another invocation got the instance
		e.drop(b.function, b.id)
		e.bound.entries[e.bound.index(b.id)].queued = false
	case e.pool.Accepts(instance) && e.mayJoinBound(b.function, instance):
		e.enqueue(b)
		e.bound.exact = b.id
		actions = e.join(b.function, instance, actions)
		e.bound.exact = noExact
	}
	return actions
}

// enqueue moves a bound invocation into the queue of its function.
func (e *engine) enqueue(b binding) {
	e.bound.entries[e.bound.index(b.id)].queued = true
	e.requeue(b.function, b.member)
}

// mayJoinBound reports whether a bound invocation may join a running instance: no invocation waits in a
// queue, or the instance runs an invocation that was dispatched before the first of them arrived.
// Functions that have to wait for their own instances do not count, except for f.
func (e *engine) mayJoinBound(f, instance int32) bool {
	since := Never
	for i := range e.functions {
		if q := &e.queues.queues[i]; q.len > 0 && (int32(i) == f || !q.excluded) {
			since = min(since, e.queues.since(int32(i)))
		}
	}
	for n := e.held.oldest; n != none; n = e.held.actions[n].after {
		if a := &e.held.actions[n].Action; a.Function != f {
			since = min(since, a.Arrived)
		}
	}
	if since == Never {
		return true
	}
	for n := e.pool.Run(instance); n != none; n = e.runs.entries[n].next {
		if e.runs.entries[n].started <= since {
			return true
		}
	}
	return false
}

// suits reports whether an instance may run a waiting invocation of a function.
func (d *dispatcher) suits(f, instance int32) bool {
	if len(d.bound.entries) == 0 || !d.bound.inQueue(f) {
		return true
	}
	id := d.pool.Instance(instance)
	return slices.ContainsFunc(d.order.list(f), func(m member) bool {
		i := d.bound.index(m.id)
		return i < 0 || d.bound.entries[i].instance == id
	})
}

// boundPlace returns the place for a chosen function with bound invocations: the given one if a waiting
// invocation may run there, and otherwise that of a bound invocation's instance.
func (e *engine) boundPlace(f int32, at residency.Place) (residency.Place, bool) {
	for _, m := range e.order.list(f) {
		i := e.bound.index(m.id)
		if i < 0 {
			return at, true
		}
		instance := e.pool.Index(e.bound.entries[i].instance)
		if instance >= 0 && instance == at.Index {
			return at, true
		}
		if instance >= 0 {
			if own, ok := e.pool.PlaceOf(instance); ok {
				return own, true
			}
		}
	}
	return at, false
}

// popFor removes and returns the oldest invocation of a function that may run on the instance. There is one
// (suits). bound reports whether the invocation is bound to the instance.
func (d *dispatcher) popFor(f, instance int32) (m member, bound bool) {
	if len(d.bound.entries) == 0 || !d.bound.inQueue(f) {
		return d.order.pop(f), false
	}
	id := d.pool.Instance(instance)
	for at, m := range d.order.list(f) {
		i := d.bound.index(m.id)
		if d.bound.exact != noExact && d.bound.exact != m.id || d.bound.exact == noExact && i >= 0 && d.bound.entries[i].instance != id {
			continue
		}
		d.bound.remove(m.id)
		if at == 0 {
			return d.order.pop(f), i >= 0
		}
		d.order.drop(f, m.id)
		return m, i >= 0
	}
	m = d.order.pop(f)
	d.bound.remove(m.id)
	return m, false
}

// rebind binds an invocation again that waited for room on its instance and has returned to its queue.
func (d *dispatcher) rebind(r *run) {
	if !r.bound || !d.pool.Lives(r.instance) || d.unrunnable(r.function) != "" {
		return
	}
	at, _ := slices.BinarySearchFunc(d.bound.entries, r.id, func(b binding, id int64) int { return cmp.Compare(b.id, id) })
	d.bound.entries = slices.Insert(d.bound.entries, at, binding{member: r.member, function: r.function, instance: d.pool.Instance(r.instance), queued: true})
}

// accepting returns a planned instance if it can accept one more invocation now, and otherwise nil.
func (p *plans) accepting(f, instance int32) *plannedInstance {
	if !p.has(f) {
		return nil
	}
	for i := range p.byFunction[f] {
		it := &p.byFunction[f][i]
		if it.instance == instance && p.runs.count(instance) < it.limit(&p.view.functions[f]) && p.open(p.pool.GPU(instance)) {
			return it
		}
	}
	return nil
}
