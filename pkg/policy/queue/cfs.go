package queue

import (
	"math"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// cfs implements CFS-affinity (KaaS, section 4.1.4; R17). The client with the least GPU time goes
// next. Running on another GPU than last time adds Penalty mean durations (in the paper,
// latencies, which would grow with the queue). A client is a function. An arrival at an empty
// queue raises its client's time to the least of the waiting clients, so that idle clients
// accumulate no credit. Debt remains.
type cfs struct {
	ordinary
	engine      *view
	penalty     float64
	unit        unit // of runtimes
	unitFixed   bool // the unit is fixed, because an invocation was dispatched
	clients     []client
	places      []int32  // indices in the heaps of byHome, which share it because a function is in at most one of them
	runtimes    runtimes // of all waiting functions
	byHome      []heap   // by home (GPU of the last dispatch plus 1, or 0 for none): waiting functions, by runtime
	byPenalized heap     // waiting functions with a home, by runtime plus the penalty
	failed      []item   // scratch of the last search in byPenalized
	lift        float64
	turns       int64
	visits      int64 // GPUs and functions examined, for tests

	// State of the decision in next:
	best         candidate
	freeGPUs     int // number of free GPUs seen
	lastFree     int32
	considerFunc func(gpu int32) bool // considerGPU
}

type client struct {
	runtime    float64 // GPU time over weight
	gpuTime    float64 // ns of GPU time
	dispatches int64
	home       int32 // GPU of the last dispatch plus 1, or 0 for none
	turn       int64 // sequence number of the last dispatch, from 1
}

func newCFS(v *view) *cfs {
	o := &cfs{ordinary: ordinary{v.queues}, engine: v, penalty: v.config.Penalty, unit: 1}
	o.considerFunc = o.considerGPU
	return o
}

func (o *cfs) grow(functions, gpus, _ int) {
	o.clients = grown(o.clients, functions)
	o.runtimes.grow(functions)
	o.byPenalized.grow(functions)
	o.byHome = grown(o.byHome, gpus+1)
	o.places = grown(o.places, functions)
}

func (o *cfs) changed(f int32) {
	if !o.unitFixed {
		o.unit = o.unit.withWeight(o.engine.functions[f].Weight)
	}
	o.runtimes.setMem(f, o.engine.functions[f].Mem)
	if o.runtimes.has(f) {
		o.resized(f)
	}
}

func (o *cfs) forget(f int32) { o.clients[f] = client{} }

// gpuRemoved clears the home of functions that last ran on a removed GPU.
func (o *cfs) gpuRemoved(gpu int32) {
	for i := range o.clients {
		if f := int32(i); o.clients[f].home == gpu+1 {
			waits := o.runtimes.has(f)
			o.deactivated(f)
			if o.clients[f].home = 0; waits {
				o.resized(f)
			}
		}
	}
}

func (o *cfs) activated(_ time.Duration, f int32, afresh bool) {
	if c := &o.clients[f]; afresh {
		c.runtime = max(c.runtime, o.lift)
	}
	o.resized(f)
}

func (o *cfs) deactivated(f int32) {
	c := &o.clients[f]
	o.runtimes.set(f, idle)
	o.homeHeap(c.home).remove(f)
	o.byPenalized.remove(f)
}

// homeHeap returns the heap of the functions with that home.
func (o *cfs) homeHeap(home int32) *heap {
	h := &o.byHome[home]
	h.place = o.places
	return h
}

func (o *cfs) resized(f int32) {
	c := &o.clients[f]
	o.runtimes.set(f, c.runtime)
	if c.home == 0 {
		// Without a home, R10 prefers the shortest cold start, then the oldest invocation. The
		// bits of non-negative floats sort like their values.
		o.homeHeap(0).set(f, key{a: int64(math.Float64bits(max(c.runtime, 0))), b: float64(o.engine.functions[f].Cold), c: o.queues.oldest(f)})
	} else {
		o.homeHeap(c.home).set(f, key{b: c.runtime, c: c.turn})
		o.byPenalized.set(f, key{b: o.penalizedRuntime(f), c: c.turn})
	}
}

// penalizedRuntime returns the runtime of a function plus the penalty for another GPU than its
// last.
func (o *cfs) penalizedRuntime(f int32) float64 {
	c := &o.clients[f]
	mean := float64(o.engine.functions[f].Warm)
	if c.dispatches > 0 {
		mean = c.gpuTime / float64(c.dispatches)
	}
	return c.runtime + o.unit.fromNS(o.penalty*mean)
}

// candidate is a function with the GPUs that it may use, as next compares them.
type candidate struct {
	function, only, except int32 // only and except are as in choice; function is none for no candidate
	value                  float64
	penalty                bool
	turn                   int64
	cold                   time.Duration
	oldest                 int64
}

func (c *candidate) before(o *candidate) bool {
	switch {
	case o.function < 0 || c.value != o.value:
		return o.function < 0 || c.value < o.value
	case c.penalty != o.penalty:
		return !c.penalty
	case c.turn != o.turn:
		return c.turn < o.turn
	case c.cold != o.cold: // both start cold (R10)
		return c.cold < o.cold
	}
	return c.oldest < o.oldest
}

// atMost returns the largest runtime of a function that may precede the candidate.
func (c *candidate) atMost() float64 {
	if c.function < 0 {
		return idle
	}
	return c.value
}

func (o *cfs) next(_ time.Duration, c *choice) bool {
	if o.runtimes.least() == idle {
		return false
	}
	o.best, o.freeGPUs, o.lastFree = candidate{function: none}, 0, none
	// Examine the free GPUs or, if they are many or fewer functions wait, the waiting functions.
	pool := o.engine.pool
	pool.EachFree(o.considerFunc)
	if o.freeGPUs >= min(fewGPUs, o.byPenalized.len()) {
		o.runtimes.each(math.MaxInt64, func(f int32) float64 {
			o.visits++
			if home := o.clients[f].home - 1; home != none && pool.Free(home) {
				o.consider(f, home, residency.Any, false)
			}
			return o.best.atMost()
		})
	}
	moving, found := item{}, false
	switch {
	case o.freeGPUs == 1: // exclude functions that are at home on the only free GPU
		moving, found, o.failed = o.byPenalized.first(func(f int32) bool { return o.clients[f].home-1 != o.lastFree }, o.failed[:0])
		o.visits += int64(len(o.failed))
	case o.freeGPUs > 1 && o.byPenalized.len() > 0:
		moving, found = o.byPenalized.min(), true
	}
	if found {
		o.consider(moving.function, residency.Any, o.clients[moving.function].home-1, true)
	}
	if o.byHome[0].len() > 0 {
		o.consider(o.byHome[0].min().function, residency.Any, residency.Any, false)
	}
	best := &o.best
	if best.function < 0 || !o.fits(best) {
		o.search()
	}
	if best.function < 0 {
		return false
	}
	code := leastGPUTime
	if best.penalty {
		code = leastGPUTimeAway
	}
	c.anywhere(best.function, code, o.unit.ms(best.value))
	c.only, c.except = best.only, best.except
	return true
}

// fewGPUs is the number of free GPUs up to which next examines them instead of the functions.
const fewGPUs = 16

// considerGPU considers the functions at home on a free GPU. It returns false once it has seen as
// many GPUs as there are waiting functions with a home, or fewGPUs, and at least two.
func (o *cfs) considerGPU(gpu int32) bool {
	if h := &o.byHome[gpu+1]; h.len() > 0 {
		o.consider(h.min().function, gpu, residency.Any, false)
	}
	o.freeGPUs, o.lastFree = o.freeGPUs+1, gpu
	o.visits++
	return o.freeGPUs < 2 || o.freeGPUs < min(fewGPUs, o.byPenalized.len())
}

// consider makes a function the best candidate if it precedes the current one.
func (o *cfs) consider(f, only, except int32, penalty bool) {
	if c := o.candidate(f, only, except, penalty); c.before(&o.best) {
		o.best = c
	}
}

func (o *cfs) fits(c *candidate) bool {
	_, ok := o.engine.pool.Best(c.function, c.only, c.except)
	return ok
}

// candidate returns a function with the GPUs that it may use.
func (o *cfs) candidate(f, only, except int32, penalty bool) candidate {
	c := candidate{function: f, only: only, except: except, value: o.clients[f].runtime, penalty: penalty,
		turn: o.clients[f].turn, cold: o.engine.functions[f].Cold, oldest: o.queues.oldest(f)}
	if penalty {
		c.value = o.penalizedRuntime(f)
	}
	return c
}

// search sets best to the best pair of a waiting function and a GPU with room for it, if there is
// one. It is needed if memory excludes the pair that next found.
func (o *cfs) search() {
	found := candidate{function: none}
	o.runtimes.each(o.engine.pool.MaxFreeMem(), func(f int32) float64 {
		o.visits++
		c := o.candidate(f, residency.Any, residency.Any, false)
		if home := o.clients[f].home; home > 0 {
			if c.only = home - 1; !o.fits(&c) {
				c = o.candidate(f, residency.Any, home-1, true)
			}
		}
		if c.before(&found) && o.fits(&c) {
			found = c
		}
		return found.atMost()
	})
	if found.function >= 0 {
		o.best = found
	}
}

func (o *cfs) dispatched(_ time.Duration, f int32, r *run) {
	o.unitFixed = true
	o.lift = o.runtimes.least()
	o.deactivated(f)
	c := &o.clients[f]
	o.turns++
	c.turn = o.turns
	c.home = r.gpu + 1
	expected := r.expected()
	if r.joined { // its batch is one dispatch
		expected = r.adds
	} else {
		c.dispatches++
	}
	r.charge = o.unit.perWeight(float64(expected), o.engine.functions[f].Weight)
	c.runtime += r.charge
	c.gpuTime += float64(expected)
	if o.queues.queues[f].len > 0 {
		o.resized(f)
	}
}

// finished replaces the charge: it keeps the expected duration of a start, and uses the measured
// execution time.
func (o *cfs) finished(_ time.Duration, f int32, r *run, executed time.Duration) {
	if o.engine.config.Uncorrected {
		return
	}
	expected := r.expected()
	charged, c := float64(executed+expected-r.warm), &o.clients[f]
	if r.joined {
		expected, charged = r.adds, float64(executed)
	}
	before := *c
	c.runtime += o.unit.perWeight(charged, o.engine.functions[f].Weight) - r.charge
	c.gpuTime = max(c.gpuTime+charged-float64(expected), 0)
	if *c != before && o.runtimes.has(f) {
		o.resized(f)
	}
}
