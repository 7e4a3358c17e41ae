package queue

import (
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// batches are what containers run one invocation of after another (R12): all
// that a function's queue held when its oldest was the oldest of all. An order
// knows nothing of them: they left the queue together.
type batches struct {
	queues []batch // by container
	next   []int32 // containers whose last invocation ended at this instant
}

type batch struct {
	function, gpu int32
	rest          []member
}

// goesOn says, of a completed invocation, whether its container has another of
// its batch to run at once.
func (b *batches) goesOn(ev *Event) bool {
	if int(ev.Container) >= len(b.queues) || len(b.queues[ev.Container].rest) == 0 {
		return false
	}
	b.next = append(b.next, ev.Container)
	return true
}

// goOn starts the next invocation of each batch whose last one has ended.
func (e *engine) goOn(now time.Duration, actions []Action) []Action {
	for _, c := range e.batches.next {
		b := &e.batches.queues[c]
		first := b.rest[0]
		rule := Reason{Rule: "next of the batch", Waiting: int32(len(b.rest)), InFlight: e.queues.queues[b.function].inFlight}
		b.rest = b.rest[1:]
		e.queues.queues[b.function].inFlight++
		actions = append(actions, Action{Kind: Run, Start: residency.GPUWarm, Function: b.function, GPU: b.gpu, Container: c,
			ID: first.id, Arrived: first.at, Expected: e.functions[b.function].Warm, Reason: rule})
	}
	e.batches.next = e.batches.next[:0]
	return actions
}

// take makes the rest of a function's queue the batch of a container.
func (e *engine) take(container, function, gpu int32) {
	for int(container) >= len(e.batches.queues) {
		e.batches.queues = append(e.batches.queues, batch{})
	}
	b := &e.batches.queues[container]
	b.function, b.gpu, b.rest = function, gpu, b.rest[:0]
	for e.queues.queues[function].len > 0 {
		id, at := e.queues.pop(function)
		b.rest = append(b.rest, member{id, at})
	}
}
