package queue

import (
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// runs stores the dispatched invocations, in a list for each instance.
type runs struct {
	pool    *residency.Pool // holds the head of each list, see Pool.Run
	settled []time.Duration // by instance: see settle
	entries []run           // in no particular order
	vacant  []int32         // free indices of entries
}

// run is a dispatched invocation: in flight, or waiting for room on its GPU.
type run struct {
	member
	function, gpu        int32
	instance             int32 // index of its instance in the pool
	next                 int32 // index of the next invocation on the same instance, or none
	waitsForRoom         bool  // it waits for room
	planned              bool  // it runs on a plan's instance
	bound                bool  // it is bound to its instance (bindings)
	started, expectedEnd time.Duration
	expires              time.Duration // the at of its deadline, if arrivalDeadline found one at dispatch; otherwise 0
	startingCounted      time.Duration // the starting of that deadline
	warm                 time.Duration // expected execution time, without the start
	charge               float64       // charged by the order
	joined               bool          // it joined the batch of a running instance
	executes             time.Duration // expected end of the start, or of the return of memory, before it executes
	times                float64       // the last Sized.Times; 0 stands for 1
	adds                 time.Duration // joined: by how much longer its instance is expected to be busy
}

func (r *run) deadline() deadline {
	return deadline{r.expires, r.startingCounted, r.function, r.member}
}

// expected returns the expected duration, including the start.
func (r *run) expected() time.Duration { return r.expectedEnd - r.started }

// add adds an invocation to its instance.
func (r *runs) add(x run) *run {
	if x.next = r.pool.Run(x.instance); x.next == none && int(x.instance) < len(r.settled) {
		r.settled[x.instance] = 0
	}
	n := int32(len(r.entries))
	if last := len(r.vacant) - 1; last >= 0 {
		n, r.vacant = r.vacant[last], r.vacant[:last]
		r.entries[n] = x
	} else {
		r.entries = append(r.entries, x)
	}
	r.pool.SetRun(x.instance, n)
	return &r.entries[n]
}

// remove removes an invocation from its instance. x remains valid until the next add.
func (r *runs) remove(x *run) {
	before, n := none, r.pool.Run(x.instance)
	for &r.entries[n] != x {
		before, n = n, r.entries[n].next
	}
	if before == none {
		r.pool.SetRun(x.instance, x.next)
	} else {
		r.entries[before].next = x.next
	}
	r.vacant = append(r.vacant, n)
}

// find returns an invocation on an instance, or nil.
func (r *runs) find(id residency.ID, invocation int64) *run {
	instance := r.pool.Index(id)
	if instance < 0 {
		return nil
	}
	for n := r.pool.Run(instance); n != none; n = r.entries[n].next {
		if r.entries[n].id == invocation {
			return &r.entries[n]
		}
	}
	return nil
}

// count returns the number of invocations on an instance.
func (r *runs) count(instance int32) (count int) {
	for n := r.pool.Run(instance); n != none; n = r.entries[n].next {
		count++
	}
	return count
}

// busyUntil returns the expected end of the invocations on an instance, and the expected time from which
// one more would execute. Both are at least now.
func (r *runs) busyUntil(instance int32, now time.Duration) (end, executes time.Duration) {
	end, executes = now, now
	for n := r.pool.Run(instance); n != none; n = r.entries[n].next {
		end, executes = max(end, r.entries[n].expectedEnd), max(executes, r.entries[n].executes)
	}
	return end, executes
}

// setExecutes records that the invocations on an instance began to execute at that time, or at their
// dispatch if it was later.
func (r *runs) setExecutes(instance int32, at time.Duration) {
	for n := r.pool.Run(instance); n != none; n = r.entries[n].next {
		r.entries[n].executes = max(at, r.entries[n].started)
	}
}

// settle returns the part of the execution of an invocation that ends now for which its instance was not
// charged yet. It is the time since the last end on the instance, but not since before any of its
// invocations has begun to execute. So the sum over all invocations is the length of the union of their
// intervals.
func (r *runs) settle(x *run, executed, now time.Duration) time.Duration {
	r.settled = grown(r.settled, int(x.instance)+1)
	since := now - executed
	for n := r.pool.Run(x.instance); n != none; n = r.entries[n].next {
		if y := &r.entries[n]; y != x && !y.waitsForRoom {
			since = min(since, y.executes)
		}
	}
	busy := now - max(since, r.settled[x.instance])
	r.settled[x.instance] = now
	return max(busy, 0)
}

// overdueAt returns the time at which the first invocation on an instance becomes
// overdue: after twice its expected duration, and at least patience after its expected end. It
// returns Never if the instance runs nothing.
func (r *runs) overdueAt(instance int32) time.Duration {
	at := Never
	for n := r.pool.Run(instance); n != none; n = r.entries[n].next {
		x := &r.entries[n]
		at = min(at, max(overdue(x.started, x.expectedEnd), x.expectedEnd+patience)+1)
	}
	return at
}
