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
	functions []Function
	queues    *waiting
	pool      func() *residency.Pool
	penalty   float64
	unit      unit // of runtimes
	clients   []client
	least     heap   // all that wait, by runtime
	stay      []heap // by the GPU a function ran on last, the last heap for none: by runtime
	leave     []heap // the same with the penalty for another GPU
	lift      float64
	turns     int64
}

type client struct {
	runtime float64 // GPU time over weight
	spent   float64 // ns of GPU time
	runs    int64
	home    int32 // GPU it ran on last
	turn    int64 // of its last dispatch among all, from 1
}

func newCFS(c Config, e *engine) *cfs {
	n := len(c.Functions)
	o := &cfs{functions: c.Functions, queues: e.queues, penalty: c.Penalty, unit: unitOf(c.Functions), pool: func() *residency.Pool { return e.pool },
		clients: make([]client, n), least: newHeap(n), stay: make([]heap, c.GPUs+1), leave: make([]heap, c.GPUs)}
	for i := range o.clients {
		o.clients[i].home = int32(c.GPUs)
	}
	// A function is in one of the heaps at most, so that they share places.
	stay, leave := newHeap(n), newHeap(n)
	for i := range o.stay {
		o.stay[i] = stay
	}
	for i := range o.leave {
		o.leave[i] = leave
	}
	return o
}

func (o *cfs) joined(_ time.Duration, f int32) {
	if o.queues.queues[f].len > 1 {
		return
	}
	o.clients[f].runtime = max(o.clients[f].runtime, o.lift)
	o.place(f)
}

func (o *cfs) place(f int32) {
	c := &o.clients[f]
	o.least.set(f, key{b: c.runtime})
	if int(c.home) == len(o.leave) { // no container yet, wherever: R10 takes the shortest cold start
		// and then the oldest; a float's bits are ordered as it is from 0 up.
		o.stay[c.home].set(f, key{a: int64(math.Float64bits(c.runtime)), b: float64(o.functions[f].Cold), c: o.queues.oldest(f)})
	} else {
		o.stay[c.home].set(f, key{b: c.runtime, c: c.turn})
		o.leave[c.home].set(f, key{b: o.away(f), c: c.turn})
	}
}

// away is what a function's time counts as on another GPU than its last.
func (o *cfs) away(f int32) float64 {
	c := &o.clients[f]
	mean := float64(o.functions[f].Warm)
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

func (o *cfs) next(time.Duration) choice {
	pool := o.pool()
	best := candidate{choice: choice{function: none}}
	open := 0
	for g := range o.leave {
		if pool.FreeOn(int32(g)) > 0 {
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
			c.cold = o.functions[c.function].Cold
			if c.before(&best) {
				best = c
			}
		}
	}
	for g := range o.leave {
		gpu, here := int32(g), 0
		if pool.FreeOn(gpu) > 0 {
			here = 1
			consider(&o.stay[g], candidate{choice: choice{only: gpu, except: residency.Any}})
		}
		if open > here {
			consider(&o.leave[g], candidate{choice: choice{only: residency.Any, except: gpu}, penalty: true})
		}
	}
	consider(&o.stay[len(o.leave)], candidate{choice: anywhere(0, "", 0)})
	if !o.fits(&best) {
		o.search(&best)
	}
	best.reason = Reason{Rule: "least GPU time, on the GPU it ran on last or new", Value: o.unit.ms(best.value)}
	if best.penalty {
		best.reason.Rule = "least GPU time, penalty for another GPU included"
	}
	return best.choice
}

func (o *cfs) fits(c *candidate) bool {
	_, ok := o.pool().Best(c.function, c.only, c.except)
	return ok
}

// search looks at every pair of a waiting function and a GPU where it fits:
// memory keeps the best pair apart.
func (o *cfs) search(best *candidate) {
	found := candidate{choice: choice{function: none}}
	for _, it := range o.least.items {
		f := it.function
		c := candidate{choice: anywhere(f, "", 0), value: o.clients[f].runtime, turn: o.clients[f].turn, cold: o.functions[f].Cold, oldest: o.queues.oldest(f)}
		if home := o.clients[f].home; int(home) < len(o.leave) {
			c.only = home
			if !o.fits(&c) {
				c.only, c.except, c.penalty, c.value = residency.Any, home, true, o.away(f)
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

func (o *cfs) left(_ time.Duration, f int32, at residency.Place, expected time.Duration) {
	o.lift = o.least.min().key.b
	c := &o.clients[f]
	o.stay[c.home].remove(f)
	if int(c.home) < len(o.leave) {
		o.leave[c.home].remove(f)
	}
	o.turns++
	c.turn = o.turns
	c.home = at.GPU
	c.runtime += o.unit.over(float64(expected), o.functions[f].Weight)
	c.spent += float64(expected)
	c.runs++
	if o.queues.queues[f].len > 0 {
		o.place(f)
	} else {
		o.least.remove(f)
	}
}

func (o *cfs) ended(time.Duration, int32, time.Duration) {}
