package queue

import (
	"math"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// keyed keeps the active functions in a heap.
type keyed struct {
	ordinary
	heap heap
	key  func(f int32) key
}

func (o *keyed) grow(functions, _, _ int) { o.heap.grow(functions) }

func (o *keyed) activated(_ time.Duration, f int32, _ bool) { o.resized(f) }

func (o *keyed) resized(f int32) { o.heap.set(f, o.key(f)) }

func (o *keyed) deactivated(f int32) { o.heap.remove(f) }

func (o *keyed) dispatched(_ time.Duration, f int32, _ *run) {
	if o.queues.queues[f].len == 0 {
		o.deactivated(f)
	} else {
		o.resized(f)
	}
}

// fcfs dispatches the oldest invocation first (R11).
type fcfs struct{ keyed }

func newFCFS(v *view) *fcfs {
	return &fcfs{keyed{ordinary: ordinary{v.queues}, key: func(f int32) key { return key{a: v.queues.oldest(f)} }}}
}

func (o *fcfs) next(_ time.Duration, c *choice) bool {
	if o.heap.len() == 0 {
		return false
	}
	return c.anywhere(o.heap.min().function, oldestInvocation, 0)
}

// naive is fcfs without a pool, so every start is cold (R11).
type naive struct{ *fcfs }

func (naive) shape(c *residency.Config) { c.Pool = 0 }

// sjf dispatches the function with the shortest invocations first, unless another function was
// passed over too often (Paella, as compared in MQFQ-Sticky, section 6; R13). With n waiting
// functions, a dispatch adds 1/n to the deficit of each and subtracts 1 from that of the
// dispatched function.
type sjf struct {
	ordinary
	engine     *view
	limit      float64
	byDuration heap      // key: Warm, then oldest invocation
	byDeficit  heap      // key: deficit, largest first, then oldest invocation
	deficit    []float64 // waiting functions: deficit minus totalShare; others: the deficit
	totalShare float64   // sum of 1/n over all dispatches
}

func newSJF(v *view) *sjf {
	return &sjf{ordinary: ordinary{v.queues}, engine: v, limit: v.config.Starvation}
}

func (o *sjf) grow(functions, _, _ int) {
	o.byDuration.grow(functions)
	o.byDeficit.grow(functions)
	o.deficit = grown(o.deficit, functions)
}

func (o *sjf) activated(_ time.Duration, f int32, _ bool) {
	o.deficit[f] -= o.totalShare
	o.resized(f)
}

func (o *sjf) resized(f int32) {
	o.byDuration.set(f, key{a: int64(o.engine.functions[f].Warm), c: o.queues.oldest(f)})
	o.byDeficit.set(f, key{a: -roundDeficit(o.deficit[f]), c: o.queues.oldest(f)})
}

func (o *sjf) changed(f int32) {
	if o.byDuration.has(f) {
		o.resized(f)
	}
}

func (o *sjf) forget(f int32) { o.deficit[f] = 0 }

func (o *sjf) deactivated(f int32) {
	o.byDuration.remove(f)
	o.byDeficit.remove(f)
	o.deficit[f] += o.totalShare
}

func (o *sjf) next(_ time.Duration, c *choice) bool {
	if o.byDuration.len() == 0 {
		return false
	}
	first := o.byDeficit.min()
	if deficit := o.totalShare + o.deficit[first.function]; roundDeficit(deficit) >= roundDeficit(o.limit) {
		return c.anywhere(first.function, largestDeficit, deficit)
	}
	f := o.byDuration.min().function
	return c.anywhere(f, shortestDuration, float64(o.engine.functions[f].Warm)/1e6)
}

func (o *sjf) prefers() bool { return true }

func (o *sjf) dispatched(_ time.Duration, f int32, r *run) {
	if !r.joined {
		o.totalShare += 1 / float64(o.byDuration.len())
		o.deficit[f]--
	}
	if o.queues.queues[f].len > 0 {
		o.resized(f)
	} else {
		o.deactivated(f)
	}
}

// roundDeficit rounds a deficit to units of 1e-9, so that equal deficits tie regardless of
// rounding errors.
func roundDeficit(deficit float64) int64 { return int64(math.Round(min(deficit, 1e9) * 1e9)) }

// eevdf dispatches the earliest deadline first. A deadline is the arrival time plus the duration
// to expect on the best GPU, busy or not, in the current state.
type eevdf struct{ keyed }

func newEEVDF(v *view) *eevdf {
	return &eevdf{keyed{ordinary: ordinary{v.queues}, key: func(f int32) key {
		return key{a: int64(v.queues.since(f) + v.pool.Expected(f)), c: v.queues.oldest(f)}
	}}}
}

func (o *eevdf) changed(f int32) {
	if o.heap.has(f) {
		o.resized(f)
	}
}

func (o *eevdf) moved(f, _ int32) { o.changed(f) }
func (o *eevdf) freed(f, _ int32) { o.changed(f) }

func (o *eevdf) next(now time.Duration, c *choice) bool {
	if o.heap.len() == 0 {
		return false
	}
	first := o.heap.min()
	return c.anywhere(first.function, earliestDeadline, float64(time.Duration(first.key.a)-now)/1e6)
}
