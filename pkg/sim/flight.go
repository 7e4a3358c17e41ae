package sim

import (
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// invocation is one that runs.
type invocation struct {
	end      time.Duration
	executes time.Duration // when starting and loading are over
	begin    time.Duration
	arrived  time.Duration
	id       int64
	order    int64 // of its start among all
	function int32
	gpu      int32
	instance residency.ID
}

// before is the order in which completions are applied (R1).
func (v *invocation) before(o *invocation) bool {
	if v.end != o.end {
		return v.end < o.end
	}
	if v.gpu != o.gpu {
		return v.gpu < o.gpu
	}
	return v.order < o.order
}

// flight is what runs, a binary heap by time of completion. The heap is of
// places in all, so that an invocation stays where it was put.
type flight struct {
	all  []invocation
	heap []int32 // beyond its length are the places that are vacant
	n    int
}

func (h *flight) len() int { return h.n }

func (h *flight) min() *invocation { return &h.all[h.heap[0]] }

func (h *flight) push(v invocation) {
	i := h.n
	if i == len(h.all) {
		h.all, h.heap = append(h.all, v), append(h.heap, int32(i))
	}
	place := h.heap[i]
	h.all[place] = v
	h.n++
	for ; i > 0 && v.before(&h.all[h.heap[(i-1)/2]]); i = (i - 1) / 2 {
		h.heap[i] = h.heap[(i-1)/2]
	}
	h.heap[i] = place
}

// pop takes what ends first. It is to be read before the next push.
func (h *flight) pop() *invocation {
	first := h.heap[0]
	h.n--
	heap := h.heap[:h.n]
	last := h.heap[h.n]
	h.heap[h.n] = first
	i := 0
	for child := 1; child < len(heap); child = 2*i + 1 {
		if child+1 < len(heap) && h.all[heap[child+1]].before(&h.all[heap[child]]) {
			child++
		}
		if !h.all[heap[child]].before(&h.all[last]) {
			break
		}
		heap[i] = heap[child]
		i = child
	}
	if len(heap) > 0 {
		heap[i] = last
	}
	return &h.all[first]
}

// each calls yield with all that runs, in no order.
func (h *flight) each(yield func(*invocation) bool) {
	for _, place := range h.heap[:h.n] {
		if !yield(&h.all[place]) {
			return
		}
	}
}
