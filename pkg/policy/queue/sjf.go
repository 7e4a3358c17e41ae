package queue

import (
	"math"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// sjf takes the shortest function first, but one that was passed over too
// often before it (Paella, as MQFQ-Sticky section 6 compares with it; R13).
// With n functions waiting a dispatch adds 1/n to the deficit of each and
// takes 1 from the one dispatched.
type sjf struct {
	functions []Function
	queues    *waiting
	limit     float64
	short     heap      // by warm_ms, then oldest head
	starved   heap      // by deficit, largest first, then oldest head
	deficit   []float64 // waiting: without what all got, which is given; others: whole
	given     float64   // what each function would have got, had it always waited
}

func newSJF(c Config, queues *waiting) *sjf {
	n := len(c.Functions)
	return &sjf{functions: c.Functions, queues: queues, limit: c.Starvation, short: newHeap(n), starved: newHeap(n),
		deficit: make([]float64, n)}
}

func (o *sjf) joined(_ time.Duration, f int32) {
	if o.queues.queues[f].len > 1 {
		return
	}
	o.deficit[f] -= o.given
	o.place(f)
}

func (o *sjf) place(f int32) {
	o.short.set(f, key{a: int64(o.functions[f].Warm), c: o.queues.oldest(f)})
	o.starved.set(f, key{a: -exact(o.deficit[f]), c: o.queues.oldest(f)})
}

func (o *sjf) next(time.Duration) choice {
	first := o.starved.min()
	if deficit := o.given + o.deficit[first.function]; exact(deficit) >= exact(o.limit) {
		return anywhere(first.function, "largest deficit, at the limit of starvation", deficit)
	}
	f := o.short.min().function
	return anywhere(f, "shortest function", float64(o.functions[f].Warm)/1e6)
}

func (o *sjf) left(_ time.Duration, f int32, _ residency.Place, _ time.Duration) {
	o.given += 1 / float64(o.short.len())
	o.deficit[f]--
	if o.queues.queues[f].len > 0 {
		o.place(f)
		return
	}
	o.short.remove(f)
	o.starved.remove(f)
	o.deficit[f] += o.given
}

// exact is a sum of fractions in units that hide how it was rounded: equal
// deficits are to tie however they came about.
func exact(deficit float64) int64 { return int64(math.Round(min(deficit, 1e9) * 1e9)) }

func (o *sjf) ended(time.Duration, int32, time.Duration) {}
