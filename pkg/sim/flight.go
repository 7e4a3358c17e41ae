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

// flight is what runs, a binary heap by time of completion. The heap is of
// places in all, so that an invocation stays where it was put.
type flight struct {
	all  []invocation
	heap []flying // beyond its length are the places that are vacant
	n    int
}

// flying is an invocation's place, with what nearly always says which is first.
type flying struct {
	end   time.Duration
	gpu   int32
	place int32
}

// before is the order in which completions are applied (R1).
func (h *flight) before(a, b *flying) bool {
	switch {
	case a.end != b.end:
		return a.end < b.end
	case a.gpu != b.gpu:
		return a.gpu < b.gpu
	}
	return h.all[a.place].order < h.all[b.place].order
}

func (h *flight) len() int { return h.n }

// end is when the first ends.
func (h *flight) end() time.Duration { return h.heap[0].end }

func (h *flight) push(v invocation) {
	i := h.n
	if i == len(h.all) {
		h.all, h.heap = append(h.all, v), append(h.heap, flying{place: int32(i)})
	}
	it := flying{end: v.end, gpu: v.gpu, place: h.heap[i].place}
	h.all[it.place] = v
	h.n++
	for ; i > 0 && h.before(&it, &h.heap[(i-1)/2]); i = (i - 1) / 2 {
		h.heap[i] = h.heap[(i-1)/2]
	}
	h.heap[i] = it
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
		if child+1 < len(heap) && h.before(&heap[child+1], &heap[child]) {
			child++
		}
		if !h.before(&heap[child], &last) {
			break
		}
		heap[i] = heap[child]
		i = child
	}
	if len(heap) > 0 {
		heap[i] = last
	}
	return &h.all[first.place]
}

// each calls yield with all that runs, in no order.
func (h *flight) each(yield func(*invocation) bool) {
	for _, it := range h.heap[:h.n] {
		if !yield(&h.all[it.place]) {
			return
		}
	}
}
