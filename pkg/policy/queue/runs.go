package queue

import (
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// runs stores the dispatched invocations, in a list for each instance.
type runs struct {
	pool    *residency.Pool // holds the head of each list, see Pool.Run
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
	started, expectedEnd time.Duration
	expires              time.Duration // the at of its deadline, if arrivalDeadline found one at dispatch; otherwise 0
	startingCounted      time.Duration // the starting of that deadline
	warm                 time.Duration // expected execution time, without the start
	charge               float64       // charged by the order
}

func (r *run) deadline() deadline {
	return deadline{r.expires, r.startingCounted, r.function, r.member}
}

// expected returns the expected duration, including the start.
func (r *run) expected() time.Duration { return r.expectedEnd - r.started }

// add adds an invocation to its instance.
func (r *runs) add(x run) *run {
	x.next = r.pool.Run(x.instance)
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
