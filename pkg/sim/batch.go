package sim

import (
	"math"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/sim/heap"
)

// batches holds the batches of instances that run several invocations at once (R28, R33). While n of them
// execute, each proceeds at the speed 1 / (1 + slope × (n - 1)).
type batches struct {
	running map[residency.ID]*batch
	starts  heap.Heap[queue.Started] // starts of instances in progress, by their end
	started int64
}

// batch is what an instance runs.
type batch struct {
	members []int32 // places in flight, in the order of their dispatch
	since   time.Duration
	slope   float64
}

// speed returns the speed of each of n invocations.
func (b *batch) speed(n int) float64 { return 1 / (1 + b.slope*float64(n-1)) }

// batched reports whether the instances of a function run batches.
func (r *run) batched(f int32) bool {
	return r.config.Functions[f].Inflight > 1 && r.batches.running != nil
}

// size returns the number of invocations that an instance runs.
func (b *batches) size(instance residency.ID) int {
	if running := b.running[instance]; running != nil {
		return len(running.members)
	}
	return 0
}

// join adds the invocation at a place in flight to the batch of its instance.
func (r *run) join(place int32, a *queue.Action) {
	v := &r.flight.entries[place]
	b := r.batches.running[v.instance]
	if b == nil {
		b = &batch{since: r.now, slope: r.config.Functions[v.function].BatchSlope}
		r.batches.running[v.instance] = b
		r.busy[v.gpu]++
		if a.Start == residency.Cold {
			r.batches.starts.Push(v.executes, r.batches.started, queue.Started{Function: v.function, Instance: v.instance, ID: v.id})
			r.batches.started++
		}
	} else {
		v.counted = math.MaxInt64 // an earlier invocation counts for the batch
	}
	r.proceed(b)
	b.members = append(b.members, place)
	r.reschedule(b)
}

// leave removes an invocation that has completed from its batch.
func (r *run) leave(place int32) {
	v := &r.flight.entries[place]
	b := r.batches.running[v.instance]
	r.proceed(b)
	b.members = slices.DeleteFunc(b.members, func(other int32) bool { return other == place })
	if len(b.members) == 0 {
		delete(r.batches.running, v.instance)
		r.busy[v.gpu]--
		return
	}
	if v.counted < math.MaxInt64 {
		next := &r.flight.entries[b.members[0]]
		next.counted = max(next.executes, r.now)
	}
	r.reschedule(b)
}

// proceed subtracts the work that the members of a batch have done since the last change.
func (r *run) proceed(b *batch) {
	for _, m := range b.members {
		v := &r.flight.entries[m]
		v.remaining -= float64(max(r.now-max(b.since, v.executes), 0)) * b.speed(len(b.members))
	}
	b.since = r.now
}

// reschedule determines the ends of the members of a batch, after a change of their number.
func (r *run) reschedule(b *batch) {
	for _, m := range b.members {
		v := &r.flight.entries[m]
		end := max(r.now, v.executes) + time.Duration(math.Round(max(v.remaining, 0)/b.speed(len(b.members))))
		if end != v.end {
			r.flight.move(m, end)
		}
	}
}

// ready reports the starts of instances that have ended, before the completions of the instant.
func (r *run) ready() {
	for r.batches.starts.Len() > 0 && r.batches.starts.At() <= r.now {
		ev := r.batches.starts.Pop()
		r.events = append(r.events, &ev)
	}
}
