package queue

import (
	"math"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// gfaas is ours: MQFQ's candidates, so that its bound on fairness holds, in an
// order that keeps waiting short.
//
//   - Of the candidates the one whose invocations take the least time each,
//     what it takes to start them shared among all that wait (Smith's rule for
//     batches with a set-up time), in steps of two; then the least VT.
//   - No start on a GPU without the function's container, or without its
//     memory, while one that is busy is free sooner than that start takes
//     longer: the invocation waits for that GPU (LALB's rule).
//   - What leaves a GPU to make room is what costs the least to do without:
//     the time a start would take longer, by how often it comes, by the memory
//     it takes. An invocation that makes room does so where that costs least.
//   - Virtual times are compared by what was executed: see mqfq.executed.
//
// Why the bound holds. Let G be Global_VT, here the least of VT minus what is
// charged and still runs, over queues that wait; C the slots; l1 >= l2 the two
// longest executions over their weights. A dispatch needs VT - G <= T + C l2,
// and a queue that begins to wait is lifted to at least G and what it has
// running and at most G + T + C l2. So what a waiting queue has executed is
// between G and G + T + C l2 + l (its own l), but for a queue that began to
// wait with more running than that, which only the one with l1 can have:
// between two instants two such queues differ by at most 2T + 2C l2 + l1 + l2,
// or in that case by T + C (l1 + l2) + l2, and the bound is
// 2T + (C + 1)(l1 + l2). Which candidate goes, whether any goes at once, and
// where within those limits a queue is lifted to, is free.
type gfaas struct {
	*mqfq
	engine *engine
	shared float64      // T in ns: about what of a queue can go at once
	gpus   [][]underway // by GPU: what runs there
	on     [][]int32    // by function: GPUs it runs on, one for each invocation
	aside  []int32
	booked [][]int32 // by GPU: functions that wait for it, in order
	books  []int32   // by function: how many of its invocations wait for a GPU
}

// underway is an invocation that runs.
type underway struct {
	id    int64
	until time.Duration // expected end
}

func newGfaas(c Config, e *engine) *gfaas {
	o := &gfaas{mqfq: newMQFQ(c, e.queues, false), engine: e, shared: float64(c.T), gpus: make([][]underway, c.GPUs),
		on: make([][]int32, len(c.Functions)), booked: make([][]int32, c.GPUs), books: make([]int32, len(c.Functions))}
	o.rank, o.executed, o.slots = o.index, true, float64(c.GPUs*c.Concurrency)
	return o
}

// index is the place of a candidate: the time each of its invocations takes,
// over its weight, in steps of two, then the least VT, then the oldest head.
func (o *gfaas) index(f int32) key {
	c, q := &o.functions[f], &o.queues.queues[f]
	warm := float64(c.Warm)
	together := float64(q.len)
	if warm > 0 {
		together = min(together, 1+o.shared*c.Weight/warm)
	}
	_, size := math.Frexp((float64(o.engine.pool.Expected(f)) - warm + together*warm) / together / c.Weight)
	return key{a: int64(size), b: o.flows[f].vt, c: q.oldest}
}

// moved follows a change of what the function would find on GPUs.
func (o *gfaas) moved(f int32) {
	if o.ready.has(f) {
		o.ready.set(f, o.index(f))
	}
}

func (o *gfaas) next(now time.Duration) choice {
	o.now = now
	if best, found := o.due(); found {
		return best
	}
	best := choice{function: none}
	for o.ready.len() > 0 {
		it := o.ready.min()
		f := it.function
		for o.books[f] < o.queues.queues[f].len {
			at, loss, ok := o.engine.pool.Cheapest(f)
			if ok && !o.book(now, f, at, loss) {
				best = anywhere(f, "least time an invocation, within T of Global_VT", o.unit.ms(it.key.b))
				best.placed, best.at = true, at
			}
			if !ok || best.placed {
				break
			}
		}
		if best.placed {
			break
		}
		o.ready.remove(f)
		o.aside = append(o.aside, f)
	}
	for _, f := range o.aside {
		o.ready.set(f, o.index(f))
	}
	o.aside = o.aside[:0]
	return best
}

// due is an invocation that waited for a GPU that is free now. A function whose
// container has gone from there meanwhile waits no longer.
func (o *gfaas) due() (choice, bool) {
	pool := o.engine.pool
	for g := range o.booked {
		for i := 0; i < len(o.booked[g]); i++ {
			f := o.booked[g][i]
			if pool.FreeOn(int32(g)) <= 0 {
				break
			}
			if !o.ready.has(f) {
				continue // throttled since
			}
			at, ok := pool.Best(f, int32(g), residency.Any)
			if ok && at.Start == residency.GPUWarm {
				c := anywhere(f, "waited for this GPU, which has its memory", 0)
				c.placed, c.at = true, at
				o.unbook(g, i)
				return c, true
			}
			if !slices.Contains(o.on[f], int32(g)) {
				o.unbook(g, i)
				i--
			}
		}
	}
	return choice{}, false
}

func (o *gfaas) unbook(g, i int) {
	o.books[o.booked[g][i]]--
	o.booked[g] = slices.Delete(o.booked[g], i, i+1)
}

// horizon is for how many seconds what makes room for a start is counted as
// missed.
const horizon = 30

// book has an invocation of the function wait for a busy GPU, if one that has
// its memory is free sooner than the start at that place takes longer. What
// goes from there, and will have to start again, counts too, up to as much.
func (o *gfaas) book(now time.Duration, f int32, at residency.Place, loss float64) bool {
	c := &o.functions[f]
	extra := c.expected()[at.Start] - c.Warm
	if extra <= 0 {
		return false
	}
	best, soonest := none, extra+time.Duration(min(loss*horizon, float64(extra)))
	consider := func(gpu int32) {
		if wait := o.wait(now, gpu); wait < soonest {
			best, soonest = gpu, wait
		}
	}
	for _, gpu := range o.on[f] {
		consider(gpu)
	}
	o.engine.pool.Warm(f, func(gpu int32) {
		if o.engine.pool.FreeOn(gpu) <= 0 {
			consider(gpu)
		}
	})
	if best == none {
		return false
	}
	o.booked[best] = append(o.booked[best], f)
	o.books[f]++
	return true
}

// wait is how long until a GPU is free for one more that waits for it.
func (o *gfaas) wait(now time.Duration, gpu int32) time.Duration {
	soonest := time.Duration(math.MaxInt64 / 4)
	for _, u := range o.gpus[gpu] {
		soonest = min(soonest, max(u.until-now, 0))
	}
	behind := time.Duration(0)
	for _, f := range o.booked[gpu] {
		behind += o.functions[f].Warm
	}
	return soonest + behind/time.Duration(max(len(o.gpus[gpu]), 1))
}

func (o *gfaas) left(now time.Duration, f int32, at residency.Place, expected time.Duration) {
	o.mqfq.left(now, f, at, expected)
	o.gpus[at.GPU] = append(o.gpus[at.GPU], underway{id: o.engine.last, until: now + expected})
	o.on[f] = append(o.on[f], at.GPU)
}

// over forgets an invocation that completed.
func (o *gfaas) over(f, gpu int32, id int64) {
	runs := o.gpus[gpu]
	for i := range runs {
		if runs[i].id == id {
			o.gpus[gpu] = append(runs[:i], runs[i+1:]...)
			break
		}
	}
	for i, g := range o.on[f] {
		if g == gpu {
			o.on[f] = append(o.on[f][:i], o.on[f][i+1:]...)
			break
		}
	}
}

// worth is what it costs to do without a container, or without its memory on
// the GPU, in time a second: what the next start takes longer, for each
// invocation that waits now and by how often they come. A function that has not
// come for longer than usual is taken to come as seldom as that.
func (o *gfaas) worth(f int32, extra time.Duration) float64 {
	w, q := &o.flows[f], &o.queues.queues[f]
	since := max(o.now-w.last, time.Millisecond)
	if w.arrivals > 1 {
		since = max(since, (w.last-w.first)/time.Duration(w.arrivals-1))
	} else {
		since = max(since, o.now-w.first)
	}
	return float64(extra) * (float64(q.len) + 1/since.Seconds())
}
