package queue

import (
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// backlog holds the waiting invocations of each function, in the policy's order. It excludes
// blocked functions from the order, so that a function whose permitted instances are all busy, or
// of which enough are starting, delays no other.
type backlog struct {
	*view
	order order
	pool  *residency.Pool
	plans plans
	aside []int32 // functions that setAside excluded in this step
	binds bool    // invocations can be bound to instances
	bound bindings
}

// blocked reports whether a function has to wait for its own or its planned instances, even if a
// GPU is free.
func (b *backlog) blocked(f int32) bool {
	return b.pool.Blocked(f, b.queues.queues[f].len) || b.plans.has(f) && !b.bound.inQueue(f) && b.plans.serveSoon(f)
}

// push adds a new invocation. It reports whether no other of its function waits.
func (b *backlog) push(f int32, m member) (first bool) {
	b.order.push(b.now, f, m)
	q := &b.queues.queues[f]
	if q.len == 1 || q.excluded {
		b.activate(f, true)
	}
	return q.len == 1
}

// requeue returns an invocation to its place in the queue.
func (b *backlog) requeue(f int32, m member) {
	b.order.requeue(f, m)
	switch q := &b.queues.queues[f]; {
	case q.len == 1:
		b.activate(f, true)
	case !q.excluded:
		b.order.resized(f)
	}
	b.update(f)
}

// drop removes an invocation, and reports whether it was waiting.
func (b *backlog) drop(f int32, id int64) (found bool) {
	if found = b.order.drop(f, id); found {
		b.removed(f)
	}
	return found
}

// removed tells the order that an invocation of a function was removed which it did not choose.
func (b *backlog) removed(f int32) {
	q := &b.queues.queues[f]
	switch {
	case q.len > 0 && !q.excluded:
		b.order.resized(f)
	case q.len == 0 && !q.excluded:
		b.order.deactivated(f)
	}
	if q.len == 0 {
		q.excluded = false
	}
}

// activate activates a function in the order, unless the function is blocked. afresh is as in
// order.activated.
func (b *backlog) activate(f int32, afresh bool) {
	q := &b.queues.queues[f]
	if q.excluded = b.blocked(f); !q.excluded {
		b.order.activated(b.now, f, afresh)
	}
}

// update excludes a function with waiting invocations from the order, or includes it again,
// depending on whether it is blocked.
func (b *backlog) update(f int32) {
	q := &b.queues.queues[f]
	if q.len == 0 {
		return
	}
	switch blocked := b.blocked(f); {
	case blocked && !q.excluded:
		b.exclude(f)
	case !blocked && !slices.Contains(b.aside, f):
		b.include(f)
	}
}

func (b *backlog) exclude(f int32) {
	b.queues.queues[f].excluded = true
	b.order.deactivated(f)
}

// include returns a function to the order, if it is excluded.
func (b *backlog) include(f int32) {
	if q := &b.queues.queues[f]; q.excluded {
		q.excluded = false
		b.order.activated(b.now, f, true)
	}
}

// setAside excludes a function until restoreAside.
func (b *backlog) setAside(f int32) {
	b.exclude(f)
	b.aside = append(b.aside, f)
}

// restoreAside reactivates the functions that were set aside, unless they are blocked.
func (b *backlog) restoreAside() {
	for _, f := range b.aside {
		if q := &b.queues.queues[f]; q.len > 0 && q.excluded {
			b.activate(f, false)
		}
	}
	b.aside = b.aside[:0]
}
