package sim

import (
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/sim/heap"
)

// invocation is an invocation in flight.
type invocation struct {
	end        time.Duration
	executes   time.Duration // when starting and loading end
	dispatched time.Duration
	arrived    time.Duration
	id         int64
	function   int32
	gpu        int32
	instance   residency.ID
}

// flight holds the invocations in flight, ordered by completion. The heap stores indices of
// entries, so that invocations do not move.
type flight struct {
	entries []invocation
	vacant  []int32
	heap    heap.Heap[int32]
}

func (h *flight) len() int { return h.heap.Len() }

// end returns the time of the first completion.
func (h *flight) end() time.Duration { return h.heap.At() }

// push adds an invocation. order is its sequence number among all starts. Simultaneous
// completions are ordered by GPU and order of start (R1). The key has room for 2^23 GPUs and 2^40
// starts.
func (h *flight) push(v invocation, order int64) {
	place := int32(len(h.entries))
	if last := len(h.vacant) - 1; last >= 0 {
		place, h.vacant = h.vacant[last], h.vacant[:last]
		h.entries[place] = v
	} else {
		h.entries = append(h.entries, v)
	}
	h.heap.Push(v.end, int64(v.gpu)<<40|order, place)
}

// pop removes the first completion. The result is valid until the next push.
func (h *flight) pop() *invocation {
	place := h.heap.Pop()
	h.vacant = append(h.vacant, place)
	return &h.entries[place]
}

// each calls yield with all invocations, in no particular order.
func (h *flight) each(yield func(*invocation) bool) {
	for place := range h.heap.All() {
		if !yield(&h.entries[place]) {
			return
		}
	}
}
