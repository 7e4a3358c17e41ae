package sim

import (
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/sim/heap"
)

// invocation is one that runs.
type invocation struct {
	end      time.Duration
	executes time.Duration // when starting and loading are over
	begin    time.Duration
	arrived  time.Duration
	id       int64
	function int32
	gpu      int32
	instance residency.ID
}

// flight is what runs, by time of completion. The heap is of places in all, so that an
// invocation stays where it was put.
type flight struct {
	all    []invocation
	vacant []int32
	heap   heap.Heap[int32]
}

func (h *flight) len() int { return h.heap.Len() }

// end is when the first ends.
func (h *flight) end() time.Duration { return h.heap.At() }

// push adds an invocation, the order-th that starts. Completions at one moment are
// applied by GPU and order of start (R1); there is room for 8 million GPUs and a million
// million starts.
func (h *flight) push(v invocation, order int64) {
	place := int32(len(h.all))
	if last := len(h.vacant) - 1; last >= 0 {
		place, h.vacant = h.vacant[last], h.vacant[:last]
		h.all[place] = v
	} else {
		h.all = append(h.all, v)
	}
	h.heap.Push(v.end, int64(v.gpu)<<40|order, place)
}

// pop takes what ends first. It is to be read before the next push.
func (h *flight) pop() *invocation {
	place := h.heap.Pop()
	h.vacant = append(h.vacant, place)
	return &h.all[place]
}

// each calls yield with all that runs, in no order.
func (h *flight) each(yield func(*invocation) bool) {
	for place := range h.heap.All() {
		if !yield(&h.all[place]) {
			return
		}
	}
}
