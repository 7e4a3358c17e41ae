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

// flight is what runs, a binary heap by time of completion.
type flight struct{ all []invocation }

func (h *flight) len() int { return len(h.all) }

func (h *flight) min() *invocation { return &h.all[0] }

func (h *flight) push(v invocation) {
	h.all = append(h.all, v)
	i := len(h.all) - 1
	for ; i > 0 && v.before(&h.all[(i-1)/2]); i = (i - 1) / 2 {
		h.all[i] = h.all[(i-1)/2]
	}
	h.all[i] = v
}

func (h *flight) pop() invocation {
	first := h.all[0]
	last := len(h.all) - 1
	v := h.all[last]
	h.all = h.all[:last]
	i := 0
	for {
		child := 2*i + 1
		if child+1 < last && h.all[child+1].before(&h.all[child]) {
			child++
		}
		if child >= last || !h.all[child].before(&v) {
			break
		}
		h.all[i] = h.all[child]
		i = child
	}
	if last > 0 {
		h.all[i] = v
	}
	return first
}
