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
	counted    time.Duration // from when its execution counts for its function; of a batch, one invocation counts

	// Of an invocation in a batch:
	remaining float64 // ns of execution alone
	order     int64   // as in push
	version   int64   // of its item in the heap
}

// entry is an item of the heap. It is outdated if the invocation has moved since.
type entry struct {
	place   int32
	version int64
}

// flight holds the invocations in flight, ordered by completion. The heap stores indices of
// entries, so that invocations do not move.
type flight struct {
	entries []invocation
	vacant  []int32
	heap    heap.Heap[entry]
	n       int
	version int64 // of the latest item
}

func (h *flight) len() int { return h.n }

// end returns the time of the first completion.
func (h *flight) end() time.Duration { return h.heap.At() }

// push adds an invocation. order is its sequence number among all starts. Simultaneous
// completions are ordered by GPU and order of start (R1). The key has room for 2^23 GPUs and 2^40
// starts.
func (h *flight) push(v invocation, order int64) (place int32) {
	place = int32(len(h.entries))
	h.version++
	v.order, v.version = order, h.version
	h.n++
	if last := len(h.vacant) - 1; last >= 0 {
		place, h.vacant = h.vacant[last], h.vacant[:last]
		h.entries[place] = v
	} else {
		h.entries = append(h.entries, v)
	}
	h.heap.Push(v.end, int64(v.gpu)<<40|order, entry{place, h.version})
	return place
}

// move changes the time of a completion.
func (h *flight) move(place int32, end time.Duration) {
	v := &h.entries[place]
	h.version++
	v.end, v.version = end, h.version
	h.heap.Push(end, int64(v.gpu)<<40|v.order, entry{place, v.version})
	h.dropOutdated()
}

// dropOutdated removes outdated items, until the first item is not outdated.
func (h *flight) dropOutdated() {
	for h.heap.Len() > 0 && !h.isCurrent(h.heap.First()) {
		h.heap.Pop()
	}
}

func (h *flight) isCurrent(e entry) bool { return h.entries[e.place].version == e.version }

// pop removes the first completion. The result is valid until the next push.
func (h *flight) pop() (place int32) {
	place = h.heap.Pop().place
	h.vacant = append(h.vacant, place)
	h.entries[place].version = 0
	h.n--
	h.dropOutdated()
	return place
}

// each calls yield with all invocations, in no particular order.
func (h *flight) each(yield func(*invocation) bool) {
	for e := range h.heap.All() {
		if h.isCurrent(e) && !yield(&h.entries[e.place]) {
			return
		}
	}
}
