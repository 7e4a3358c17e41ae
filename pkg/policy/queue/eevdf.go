package queue

import (
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// eevdf takes the earliest deadline first: arrival plus the duration expected
// on the best GPU as things are now, free or not.
type eevdf struct {
	queues   *waiting
	expected func(function int32) time.Duration
	heap     heap
}

func newEEVDF(e *engine) *eevdf {
	return &eevdf{queues: e.queues, heap: newHeap(len(e.functions)),
		expected: func(f int32) time.Duration { return e.pool.Expected(f) }}
}

func (o *eevdf) joined(_ time.Duration, f int32) {
	if o.queues.queues[f].len == 1 {
		o.moved(f)
	}
}

// moved follows a change of what the function would find on GPUs.
func (o *eevdf) moved(f int32) {
	if o.queues.queues[f].len == 0 {
		o.heap.remove(f)
		return
	}
	o.heap.set(f, key{a: int64(o.queues.since(f) + o.expected(f)), c: o.queues.oldest(f)})
}

func (o *eevdf) next(now time.Duration) choice {
	first := o.heap.min()
	return anywhere(first.function, "earliest deadline", float64(time.Duration(first.key.a)-now)/1e6)
}

func (o *eevdf) left(_ time.Duration, f int32, _ residency.Place, _ time.Duration) { o.moved(f) }

func (o *eevdf) ended(time.Duration, int32, time.Duration) {}
