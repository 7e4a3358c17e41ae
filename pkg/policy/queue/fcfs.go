package queue

import (
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// fcfs takes the oldest invocation first (R11).
type fcfs struct {
	queues *waiting
	heap   heap
}

func newFCFS(queues *waiting) *fcfs { return &fcfs{queues: queues, heap: newHeap(len(queues.queues))} }

func (o *fcfs) joined(_ time.Duration, f int32) {
	if o.queues.queues[f].len == 1 {
		o.heap.set(f, key{c: o.queues.oldest(f)})
	}
}

func (o *fcfs) next(time.Duration) choice {
	first := o.heap.min()
	return anywhere(first.function, "oldest invocation", 0)
}

func (o *fcfs) left(_ time.Duration, f int32, _ residency.Place, _ time.Duration) {
	if o.queues.queues[f].len == 0 {
		o.heap.remove(f)
	} else {
		o.heap.set(f, key{c: o.queues.oldest(f)})
	}
}

func (o *fcfs) ended(time.Duration, int32, time.Duration) {}
