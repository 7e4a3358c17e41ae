package queue

import (
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// mqfq is multi-queue fair queueing, and with sticky the order of MQFQ-Sticky
// (section 4.2, Algorithm 1; R14 to R16). A queue's virtual time is the
// execution time it was given over its weight; a queue may run ahead of the
// least of those that wait by at most T.
type mqfq struct {
	ordinary
	engine   *engine
	flows    []flow
	unit     unit // of virtual times
	settled  bool // the unit stays: something went
	sticky   bool
	spread   bool // fewest in flight first: more than one invocation can run
	t        float64
	global   float64 // Global_VT: the least VT of queues that wait, never decreasing
	least    heap    // queues that wait, by their floor or less: what it was before it rose
	ready    heap    // of those the ones not throttled, in the order of dispatch
	held     heap    // the throttled ones, by VT
	rank     func(f int32) key
	executed bool    // what runs does not count yet: see gfaas
	more     float64 // how much further than T a queue may be ahead of Global_VT
	lift     func(f int32) float64
	tag      float64 // VT at which the last invocation was dispatched
}

// flow is the state of one function's queue.
type flow struct {
	vt          float64       // execution over weight
	charge      float64       // what an invocation adds to vt
	warm        time.Duration // which that is for
	runs        float64       // what those in flight added
	first, last time.Duration
	arrivals    int64
	idle        time.Duration // since when it is empty with nothing in flight
}

func newMQFQ(e *engine, sticky bool) *mqfq {
	o := &mqfq{ordinary: ordinary{e.queues}, engine: e, sticky: sticky, unit: 1}
	o.t = o.unit.of(float64(e.config.T))
	o.rank = o.key
	o.lift = func(int32) float64 { return o.global }
	return o
}

func (o *mqfq) shape(c *residency.Config) {
	if o.sticky {
		c.Keep = o.keep
	}
}

func (o *mqfq) grow(functions, _, slots int) {
	o.flows = grown(o.flows, functions)
	o.least.grow(functions)
	o.ready.grow(functions)
	o.held.grow(functions)
	if spread := slots > 1; spread != o.spread {
		o.spread = spread
		o.rerank()
	}
}

// rerank puts the candidates in order anew.
func (o *mqfq) rerank() {
	for _, it := range slices.Clone(o.ready.items) {
		o.ready.set(it.function, o.rank(it.function))
	}
}

// changed follows a function's costs and weight. The first weights that come
// settle the unit.
func (o *mqfq) changed(f int32) {
	spec := &o.engine.functions[f]
	if u := o.unit.with(spec.Weight); u != o.unit && !o.settled {
		o.unit = u
		o.t = u.of(float64(o.engine.config.T))
		for i := range o.engine.functions {
			if s := &o.engine.functions[i]; s.Weight > 0 {
				o.flows[i].charge, o.flows[i].warm = u.over(float64(s.Warm), s.Weight), s.Warm
			}
		}
	}
	o.flows[f].charge, o.flows[f].warm = o.unit.over(float64(spec.Warm), spec.Weight), spec.Warm
	o.again(f)
}

// again puts a candidate in its place anew.
func (o *mqfq) again(f int32) {
	if o.ready.has(f) {
		o.ready.set(f, o.rank(f))
	}
}

func (o *mqfq) forget(f int32) { o.flows[f] = flow{} }

func (o *mqfq) push(now time.Duration, f int32, m member) {
	o.queues.push(f, m)
	w := &o.flows[f]
	if w.arrivals == 0 {
		w.first = now
	}
	w.last = now
	w.arrivals++
	if o.sticky {
		o.again(f)
	}
}

func (o *mqfq) began(_ time.Duration, f int32, afresh bool) {
	if w := &o.flows[f]; afresh {
		w.vt = max(w.vt, o.lift(f))
	}
	o.place(f)
}

func (o *mqfq) grew(f int32) { o.place(f) }

func (o *mqfq) ceased(f int32) {
	o.least.remove(f)
	o.ready.remove(f)
	o.held.remove(f)
	o.raise()
	o.idles(f)
}

// opened keeps virtual times small enough to be exact.
func (o *mqfq) opened(time.Duration) {
	const most = 1 << 51
	if o.global < most {
		return
	}
	by := o.global
	o.global, o.tag = 0, o.tag-by
	for i := range o.flows {
		o.flows[i].vt -= by
	}
	for _, h := range []*heap{&o.least, &o.ready, &o.held} {
		for i := range h.items {
			h.items[i].key.b -= by
		}
	}
}

// place puts a queue that waits where its virtual time says.
func (o *mqfq) place(f int32) {
	o.least.lower(f, key{b: o.floor(f)}) // raise follows where it rose
	o.raise()
	if o.flows[f].vt-o.global > o.ahead() {
		o.ready.remove(f)
		o.held.set(f, key{b: o.flows[f].vt})
	} else {
		o.held.remove(f)
		o.ready.set(f, o.rank(f))
	}
}

// floor is what a queue that waits holds Global_VT down to.
func (o *mqfq) floor(f int32) float64 {
	w := &o.flows[f]
	if o.executed {
		return w.vt - w.runs
	}
	return w.vt
}

// ahead is how far a queue may be ahead of Global_VT.
func (o *mqfq) ahead() float64 { return o.t + o.more }

// raise follows the least virtual time of the queues that wait, and lets go
// those that are no longer too far ahead.
func (o *mqfq) raise() {
	for o.least.len() > 0 {
		first := o.least.min()
		if now := o.floor(first.function); now > first.key.b {
			o.least.set(first.function, key{b: now})
			continue
		}
		o.global = max(o.global, first.key.b)
		break
	}
	for o.held.len() > 0 && o.held.min().key.b-o.global <= o.ahead() {
		f := o.held.min().function
		o.held.remove(f)
		o.ready.set(f, o.rank(f))
	}
}

// key is the place of a candidate: sticky, fewest in flight, then longest
// queue, then least VT, then oldest head; otherwise the last two (R15).
func (o *mqfq) key(f int32) key {
	q := &o.queues.queues[f]
	k := key{b: o.flows[f].vt, c: q.oldest}
	if o.sticky {
		k.a = 1<<31 - int64(q.len)
		if o.spread {
			k.a += int64(q.inFlight) << 32
		}
	}
	return k
}

func (o *mqfq) next(_ time.Duration, c *choice) bool {
	if o.ready.len() == 0 {
		return false
	}
	f := o.ready.min().function
	rule := "least virtual time"
	if o.sticky {
		rule = "fewest in flight, then longest queue, within T of Global_VT"
	}
	return c.anywhere(f, rule, o.unit.ms(o.flows[f].vt-o.global))
}

func (o *mqfq) left(_ time.Duration, f int32, r *run) {
	w := &o.flows[f]
	o.settled = true
	o.tag = w.vt
	r.charge = w.charge
	w.vt += r.charge
	w.runs += r.charge
	if o.queues.queues[f].len > 0 {
		o.place(f)
	} else {
		o.ceased(f)
	}
}

func (o *mqfq) ended(now time.Duration, f int32, r *run, executed time.Duration) {
	w, q := &o.flows[f], &o.queues.queues[f]
	if w.runs -= r.charge; q.inFlight == 0 {
		w.runs = 0
	}
	before := w.vt
	if !o.engine.config.Uncorrected {
		w.vt += o.cost(f, executed) - r.charge
	}
	o.idles(f)
	switch {
	case !o.least.has(f):
	case o.executed || w.vt != before:
		o.place(f)
	case o.sticky && o.spread:
		o.again(f)
	}
}

// cost is what executing for so long adds to a virtual time.
func (o *mqfq) cost(f int32, executed time.Duration) float64 {
	if w := &o.flows[f]; executed == w.warm {
		return w.charge
	}
	return o.unit.over(float64(executed), o.engine.functions[f].Weight)
}

// idles notes since when a queue is empty with nothing in flight.
func (o *mqfq) idles(f int32) {
	if q := &o.queues.queues[f]; q.len == 0 && q.inFlight == 0 {
		o.flows[f].idle = o.engine.now
	}
}

func (o *mqfq) why(f int32) string {
	if o.held.has(f) {
		return "throttled: its virtual time is ahead of Global_VT by more than T"
	}
	return ""
}

// keep says whether a queue is Active (R16): not throttled, and not idle for
// longer than alpha times its mean inter-arrival time.
func (o *mqfq) keep(f int32) bool {
	w, q := &o.flows[f], &o.queues.queues[f]
	if w.vt-o.global > o.t {
		return false
	}
	if q.len > 0 || q.inFlight > 0 {
		return true
	}
	ttl := 0.0
	if w.arrivals > 1 {
		ttl = o.engine.config.Alpha * float64(w.last-w.first) / float64(w.arrivals-1)
	}
	return float64(o.engine.now-w.idle) < ttl
}
