package queue

import (
	"math"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// cfs is CFS-affinity (KaaS, section 4.1.4; R17): the client with the least
// GPU time goes next, where leaving the GPU it ran on last counts as Penalty
// mean durations more. A client is a function. An arrival at an empty queue
// lifts its client's time to the least of those waiting, so that an idle
// client saves up nothing; debt is not forgiven.
type cfs struct {
	ordinary
	engine  *engine
	penalty float64
	unit    unit // of runtimes
	settled bool // the unit stays: something went
	clients []client
	least   heap   // all that wait, by runtime
	stay    []heap // by the GPU a function ran on last, the first heap for none: by runtime
	leave   []heap // the same with the penalty for another GPU
	lift    float64
	turns   int64
}

type client struct {
	runtime float64 // GPU time over weight
	spent   float64 // ns of GPU time
	runs    int64
	home    int32 // GPU it ran on last, plus 1; 0 for none
	turn    int64 // of its last dispatch among all, from 1
}

func newCFS(e *engine) *cfs {
	return &cfs{ordinary: ordinary{e.queues}, engine: e, penalty: e.config.Penalty, unit: 1}
}

func (o *cfs) grow(functions, gpus, _ int) {
	o.clients = grown(o.clients, functions)
	o.least.grow(functions)
	o.stay, o.leave = grown(o.stay, gpus+1), grown(o.leave, gpus+1)
	// A function is in one of the heaps at most, so that they share places.
	o.stay[0].grow(functions)
	o.leave[0].grow(functions)
	for i := range o.stay {
		o.stay[i].place, o.leave[i].place = o.stay[0].place, o.leave[0].place
	}
}

func (o *cfs) changed(f int32) {
	if !o.settled {
		o.unit = o.unit.with(o.engine.functions[f].Weight)
	}
	if o.least.has(f) {
		o.grew(f)
	}
}

func (o *cfs) forget(f int32) { o.clients[f] = client{} }

// closed has functions that ran last on a GPU which is gone be at home nowhere.
func (o *cfs) closed(gpu int32) {
	for i := range o.clients {
		if f := int32(i); o.clients[f].home == gpu+1 {
			waits := o.least.has(f)
			o.ceased(f)
			if o.clients[f].home = 0; waits {
				o.grew(f)
			}
		}
	}
}

func (o *cfs) began(_ time.Duration, f int32, afresh bool) {
	if c := &o.clients[f]; afresh {
		c.runtime = max(c.runtime, o.lift)
	}
	o.grew(f)
}

func (o *cfs) ceased(f int32) {
	c := &o.clients[f]
	o.least.remove(f)
	o.stay[c.home].remove(f)
	o.leave[c.home].remove(f)
}

func (o *cfs) grew(f int32) {
	c := &o.clients[f]
	o.least.set(f, key{b: c.runtime})
	if c.home == 0 { // no instance yet, wherever: R10 takes the shortest cold start
		// and then the oldest; a float's bits are ordered as it is from 0 up.
		o.stay[0].set(f, key{a: int64(math.Float64bits(max(c.runtime, 0))), b: float64(o.engine.functions[f].Cold), c: o.queues.oldest(f)})
	} else {
		o.stay[c.home].set(f, key{b: c.runtime, c: c.turn})
		o.leave[c.home].set(f, key{b: o.away(f), c: c.turn})
	}
}

// away is what a function's time counts as on another GPU than its last.
func (o *cfs) away(f int32) float64 {
	c := &o.clients[f]
	mean := float64(o.engine.functions[f].Warm)
	if c.runs > 0 {
		mean = c.spent / float64(c.runs)
	}
	return c.runtime + o.unit.of(o.penalty*mean)
}

// candidate is a function on its GPU or another, as next compares them.
type candidate struct {
	choice
	value   float64
	penalty bool
	turn    int64
	cold    time.Duration
	oldest  int64
}

func (c *candidate) before(o *candidate) bool {
	switch {
	case o.function < 0 || c.value != o.value:
		return o.function < 0 || c.value < o.value
	case c.penalty != o.penalty:
		return !c.penalty
	case c.turn != o.turn:
		return c.turn < o.turn
	case c.cold != o.cold: // neither has run yet: both start cold (R10)
		return c.cold < o.cold
	}
	return c.oldest < o.oldest
}

func (o *cfs) next(_ time.Duration, c *choice) bool {
	if o.least.len() == 0 {
		return false
	}
	pool := o.engine.pool
	best := candidate{choice: choice{function: none}}
	open := 0
	for g := range o.leave[1:] {
		if pool.Free(int32(g)) {
			open++
		}
	}
	consider := func(h *heap, c candidate) {
		if h.len() > 0 {
			c.function = h.min().function
			c.value, c.turn, c.oldest = o.clients[c.function].runtime, o.clients[c.function].turn, o.queues.oldest(c.function)
			if c.penalty {
				c.value = o.away(c.function)
			}
			c.cold = o.engine.functions[c.function].Cold
			if c.before(&best) {
				best = c
			}
		}
	}
	for g := range o.leave[1:] {
		gpu, here := int32(g), 0
		if pool.Free(gpu) {
			here = 1
			consider(&o.stay[g+1], candidate{choice: choice{only: gpu, except: residency.Any}})
		}
		if open > here {
			consider(&o.leave[g+1], candidate{choice: choice{only: residency.Any, except: gpu}, penalty: true})
		}
	}
	consider(&o.stay[0], candidate{choice: choice{only: residency.Any, except: residency.Any}})
	if best.function < 0 || !o.fits(&best) {
		o.search(&best)
	}
	if best.function < 0 {
		return false
	}
	best.reason = Reason{Rule: "least GPU time, on the GPU it ran on last or new", Value: o.unit.ms(best.value)}
	if best.penalty {
		best.reason.Rule = "least GPU time, penalty for another GPU included"
	}
	*c = best.choice
	return true
}

func (o *cfs) fits(c *candidate) bool {
	_, ok := o.engine.pool.Best(c.function, c.only, c.except)
	return ok
}

// search looks at every pair of a waiting function and a GPU where it fits:
// memory keeps the best pair apart.
func (o *cfs) search(best *candidate) {
	found, most := candidate{choice: choice{function: none}}, o.engine.pool.Most()
	for _, it := range o.least.items {
		f := it.function
		if !o.engine.pool.Could(f, most) {
			continue
		}
		c := candidate{choice: choice{function: f, only: residency.Any, except: residency.Any}, value: o.clients[f].runtime, turn: o.clients[f].turn,
			cold: o.engine.functions[f].Cold, oldest: o.queues.oldest(f)}
		if home := o.clients[f].home; home > 0 {
			c.only = home - 1
			if !o.fits(&c) {
				c.only, c.except, c.penalty, c.value = residency.Any, home-1, true, o.away(f)
			}
		}
		if c.before(&found) && o.fits(&c) {
			found = c
		}
	}
	if found.function >= 0 {
		*best = found
	}
}

func (o *cfs) left(_ time.Duration, f int32, r *run) {
	o.settled = true
	o.lift = o.least.min().key.b
	o.ceased(f)
	c := &o.clients[f]
	o.turns++
	c.turn = o.turns
	c.home = r.gpu + 1
	r.charge = o.unit.over(float64(r.expected()), o.engine.functions[f].Weight)
	c.runtime += r.charge
	c.spent += float64(r.expected())
	c.runs++
	if o.queues.queues[f].len > 0 {
		o.grew(f)
	}
}

// ended corrects what was charged: a start as it was expected, executing as it
// was.
func (o *cfs) ended(_ time.Duration, f int32, r *run, executed time.Duration) {
	if o.engine.config.Uncorrected {
		return
	}
	took, c := float64(executed+r.expected()-r.warm), &o.clients[f]
	before := *c
	c.runtime += o.unit.over(took, o.engine.functions[f].Weight) - r.charge
	c.spent = max(c.spent+took-float64(r.expected()), 0)
	if *c != before && o.least.has(f) {
		o.grew(f)
	}
}
