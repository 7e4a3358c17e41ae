package queue

import (
	"math"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// fcfs takes the oldest invocation first (R11).
type fcfs struct {
	ordinary
	heap heap
}

func newFCFS(e *engine) *fcfs { return &fcfs{ordinary: ordinary{e.queues}} }

func (o *fcfs) grow(functions, _, _ int) { o.heap.grow(functions) }

func (o *fcfs) began(_ time.Duration, f int32, _ bool) { o.grew(f) }

func (o *fcfs) grew(f int32) { o.heap.set(f, key{a: o.queues.oldest(f)}) }

func (o *fcfs) ceased(f int32) { o.heap.remove(f) }

func (o *fcfs) next(_ time.Duration, c *choice) bool {
	if o.heap.len() == 0 {
		return false
	}
	return c.anywhere(o.heap.min().function, "oldest invocation", 0)
}

func (o *fcfs) left(_ time.Duration, f int32, _ *run) {
	if o.queues.queues[f].len == 0 {
		o.ceased(f)
	} else {
		o.grew(f)
	}
}

// naive is fcfs without a pool: every start is cold (R11).
type naive struct{ *fcfs }

func (naive) shape(c *residency.Config) { c.Pool = 0 }

// sjf takes the shortest function first, but one that was passed over too
// often before it (Paella, as MQFQ-Sticky section 6 compares with it; R13).
// With n functions waiting a dispatch adds 1/n to the deficit of each and
// takes 1 from the one dispatched.
type sjf struct {
	ordinary
	engine  *engine
	limit   float64
	short   heap      // by warm_ms, then oldest head
	starved heap      // by deficit, largest first, then oldest head
	deficit []float64 // waiting: without what all got, which is given; others: whole
	given   float64   // what each function would have got, had it always waited
}

func newSJF(e *engine) *sjf {
	return &sjf{ordinary: ordinary{e.queues}, engine: e, limit: e.config.Starvation}
}

func (o *sjf) grow(functions, _, _ int) {
	o.short.grow(functions)
	o.starved.grow(functions)
	o.deficit = grown(o.deficit, functions)
}

func (o *sjf) began(_ time.Duration, f int32, _ bool) {
	o.deficit[f] -= o.given
	o.grew(f)
}

func (o *sjf) grew(f int32) {
	o.short.set(f, key{a: int64(o.engine.functions[f].Warm), c: o.queues.oldest(f)})
	o.starved.set(f, key{a: -exact(o.deficit[f]), c: o.queues.oldest(f)})
}

func (o *sjf) changed(f int32) {
	if o.short.has(f) {
		o.grew(f)
	}
}

func (o *sjf) forget(f int32) { o.deficit[f] = 0 }

func (o *sjf) ceased(f int32) {
	o.short.remove(f)
	o.starved.remove(f)
	o.deficit[f] += o.given
}

func (o *sjf) next(_ time.Duration, c *choice) bool {
	if o.short.len() == 0 {
		return false
	}
	first := o.starved.min()
	if deficit := o.given + o.deficit[first.function]; exact(deficit) >= exact(o.limit) {
		return c.anywhere(first.function, "largest deficit, at the limit of starvation", deficit)
	}
	f := o.short.min().function
	return c.anywhere(f, "shortest function", float64(o.engine.functions[f].Warm)/1e6)
}

func (o *sjf) left(_ time.Duration, f int32, _ *run) {
	o.given += 1 / float64(o.short.len())
	o.deficit[f]--
	if o.queues.queues[f].len > 0 {
		o.grew(f)
	} else {
		o.ceased(f)
	}
}

// exact is a sum of fractions in units that hide how it was rounded: equal
// deficits are to tie however they came about.
func exact(deficit float64) int64 { return int64(math.Round(min(deficit, 1e9) * 1e9)) }

// eevdf takes the earliest deadline first: arrival plus the duration expected
// on the best GPU as things are now, free or not.
type eevdf struct {
	ordinary
	engine *engine
	heap   heap
}

func newEEVDF(e *engine) *eevdf { return &eevdf{ordinary: ordinary{e.queues}, engine: e} }

func (o *eevdf) grow(functions, _, _ int) { o.heap.grow(functions) }

func (o *eevdf) began(_ time.Duration, f int32, _ bool) { o.grew(f) }

func (o *eevdf) grew(f int32) {
	o.heap.set(f, key{a: int64(o.queues.since(f) + o.engine.pool.Expected(f)), c: o.queues.oldest(f)})
}

func (o *eevdf) changed(f int32) {
	if o.heap.has(f) {
		o.grew(f)
	}
}

func (o *eevdf) moved(f, _ int32) { o.changed(f) }
func (o *eevdf) freed(f, _ int32) { o.changed(f) }

func (o *eevdf) ceased(f int32) { o.heap.remove(f) }

func (o *eevdf) next(now time.Duration, c *choice) bool {
	if o.heap.len() == 0 {
		return false
	}
	first := o.heap.min()
	return c.anywhere(first.function, "earliest deadline", float64(time.Duration(first.key.a)-now)/1e6)
}

func (o *eevdf) left(_ time.Duration, f int32, _ *run) {
	if o.queues.queues[f].len == 0 {
		o.ceased(f)
	} else {
		o.grew(f)
	}
}
