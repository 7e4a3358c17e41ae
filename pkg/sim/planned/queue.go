package planned

import (
	"math"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// queue is an instance at work: first come, first served, in batches of what waits
// when one begins.
type queue struct {
	in      Instance
	window  float64
	share   float64 // of the window that is its turns
	free    float64 // when the batch begun last is done
	waiting []float64
}

func newQueue(in Instance, window float64) *queue {
	q := &queue{in: in, window: window}
	if q.in.Batch = max(1, in.Batch); len(in.Turns) == 0 {
		q.in.Turns = []gpu.Turn{{From: 0, To: 1}}
	}
	for _, t := range q.in.Turns {
		q.share += t.To - t.From
	}
	return q
}

// advance begins the batches that begin before a moment, and appends the latencies
// of their requests.
func (q *queue) advance(until float64, out []float64) []float64 {
	for len(q.waiting) > 0 {
		start := q.opens(max(q.free, q.waiting[0]))
		if start >= until {
			break
		}
		n := 1
		for n < min(q.in.Batch, len(q.waiting)) && q.waiting[n] <= start {
			n++
		}
		q.free = q.ends(start)
		for _, at := range q.waiting[:n] {
			out = append(out, q.free-at)
		}
		q.waiting = q.waiting[n:]
	}
	return out
}

// expected is about how long a request that comes now takes: what is left of the
// batch that runs, and a batch's time for each that is ahead and its own. It knows
// what a gateway knows: what is in hand and the instance's capacity, not its turns.
func (q *queue) expected(now float64) float64 {
	batches := math.Ceil(float64(len(q.waiting)+1) / float64(q.in.Batch))
	return max(0, q.free-now) + batches*q.in.Work/q.share
}

// opens is the first moment from a given one on that is in a turn.
func (q *queue) opens(at float64) float64 {
	begun := math.Floor(at/q.window) * q.window
	for _, t := range q.in.Turns {
		if at < begun+t.To*q.window-rounding {
			return max(at, begun+t.From*q.window)
		}
	}
	return begun + (1+q.in.Turns[0].From)*q.window
}

// rounding is how far moments may be off, in ms.
const rounding = 1e-6

// ends is when a batch that begins in a turn is done.
func (q *queue) ends(at float64) float64 {
	if q.share > 1-1e-9 {
		return at + q.in.Work
	}
	for work := q.in.Work; ; {
		left := q.closes(at) - at
		if work <= left+rounding {
			return at + work
		}
		work -= left
		at = q.opens(at + left)
	}
}

// closes is the end of the turn that a moment is in.
func (q *queue) closes(at float64) float64 {
	begun := math.Floor(at/q.window) * q.window
	for _, t := range q.in.Turns {
		if end := begun + t.To*q.window; at < end-rounding {
			return end
		}
	}
	return begun + q.window // between turns by a rounding
}
