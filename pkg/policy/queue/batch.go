package queue

import (
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// batches are what instances run one invocation of after another (R12): all
// that a function's queue held when its oldest was the oldest of all. An order
// knows nothing of them: they left the queue together.
type batches struct {
	queues []batch // by slot
	next   []int32 // slots whose last invocation ended at this instant
}

type batch struct {
	function, gpu int32
	rest          []member
}

// goesOn says, of a slot whose invocation ended, whether it has another of its
// batch to run at once.
func (b *batches) goesOn(slot int32, lost bool) bool {
	if lost || int(slot) >= len(b.queues) || len(b.queues[slot].rest) == 0 {
		return false
	}
	b.next = append(b.next, slot)
	return true
}

// goOn starts the next invocation of each batch whose last one has ended.
func (e *engine) goOn(now time.Duration, actions []Action) []Action {
	for _, slot := range e.batches.next {
		b := &e.batches.queues[slot]
		if len(b.rest) == 0 || e.pool.Dead(slot) || e.pool.Obsolete(slot) { // it went meanwhile, all of it or where it was to run
			e.pool.End(slot, now)
			e.order.freed(b.function, b.gpu)
			e.unbatch(slot)
			actions = e.changed(actions, "")
			continue
		}
		first := b.rest[0]
		b.rest = b.rest[1:]
		warm := e.functions[b.function].Warm
		a := Action{Kind: Run, Start: residency.GPUWarm, Function: b.function, GPU: b.gpu, Instance: e.pool.Instance(slot),
			ID: first.id, Arrived: first.at, Expected: warm,
			Reason: Reason{Rule: "next of the batch", Waiting: int32(len(b.rest)) + 1, InFlight: e.queues.queues[b.function].inFlight}}
		e.queues.queues[b.function].inFlight++
		e.add(run{member: first, function: b.function, gpu: b.gpu, slot: slot,
			begin: now, until: now + warm, warm: warm})
		actions = append(actions, a)
	}
	e.batches.next = e.batches.next[:0]
	return actions
}

// take makes the rest of a function's queue the batch of an instance.
func (e *engine) take(slot, function, gpu int32) {
	e.batches.queues = grown(e.batches.queues, int(slot)+1)
	b := &e.batches.queues[slot]
	b.function, b.gpu, b.rest = function, gpu, b.rest[:0]
	for e.queues.queues[function].len > 0 {
		b.rest = append(b.rest, e.order.take(function))
	}
}

// unbatch has what is left of the batch of an instance that is gone, or free,
// wait again.
func (e *engine) unbatch(slot int32) {
	if e.batches == nil || int(slot) >= len(e.batches.queues) {
		return
	}
	b := &e.batches.queues[slot]
	rest := slices.Clone(b.rest)
	b.rest = b.rest[:0]
	for _, m := range rest {
		e.again(b.function, m, deadline{})
	}
}

// of is what waits for a function in batches.
func (b *batches) of(f int32) (out []member) {
	for i := range b.queues {
		if b.queues[i].function == f {
			out = append(out, b.queues[i].rest...)
		}
	}
	return out
}

// drop takes an invocation out of the batch it is in.
func (b *batches) drop(f int32, id int64) bool {
	for i := range b.queues {
		q := &b.queues[i]
		if at := slices.IndexFunc(q.rest, func(m member) bool { return m.id == id }); q.function == f && at >= 0 {
			q.rest = slices.Delete(q.rest, at, at+1)
			return true
		}
	}
	return false
}
