package queue

import (
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// mqfq is multi-queue fair queueing, and with sticky the order of MQFQ-Sticky
// (section 4.2, Algorithm 1; R14 to R16). A queue's virtual time is the
// execution time it was given over its weight; a queue may run ahead of the
// least of those that wait by at most T.
type mqfq struct {
	functions []Function
	queues    *waiting
	flows     []flow
	unit      unit      // of virtual times
	charge    []float64 // by function: what an invocation adds to its VT
	sticky    bool
	spread    bool // fewest in flight first: more than one invocation can run
	t         float64
	alpha     float64
	correct   bool // charge what was executed, not what was expected
	now       time.Duration
	global    float64 // Global_VT: the least VT of queues that wait, never decreasing
	least     heap    // queues that wait, by VT as it was at some time: it only rises
	ready     heap    // of those the ones not throttled, in the order of dispatch
	held      heap    // the throttled ones, by VT
	rank      func(f int32) key
	executed  bool       // Global_VT and T are of what was executed, not dispatched: see gfaas
	slots     float64    // executed: invocations that run at once
	longest   [2]float64 // executed: the two longest over their weights, and whose
	whose     [2]int32
	tag       float64 // executed: VT at which the last invocation was dispatched
}

// flow is the state of one function's queue.
type flow struct {
	vt          float64 // execution over weight
	first, last time.Duration
	arrivals    int64
	idle        time.Duration // since when it is empty with nothing in flight
}

func newMQFQ(c Config, queues *waiting, sticky bool) *mqfq {
	n := len(c.Functions)
	o := &mqfq{functions: c.Functions, queues: queues, flows: make([]flow, n), sticky: sticky,
		spread: c.GPUs*c.Concurrency > 1, unit: unitOf(c.Functions), alpha: c.Alpha, correct: c.Correct,
		least: newHeap(n), ready: newHeap(n), held: newHeap(n)}
	o.t = o.unit.of(float64(c.T))
	o.charge = make([]float64, n)
	for i, f := range c.Functions {
		o.charge[i] = o.unit.over(float64(f.Warm), f.Weight)
	}
	o.rank, o.whose = o.key, [2]int32{none, none}
	return o
}

func (o *mqfq) joined(now time.Duration, f int32) {
	o.now = now
	w := &o.flows[f]
	if w.arrivals == 0 {
		w.first = now
	}
	w.last = now
	w.arrivals++
	if o.queues.queues[f].len > 1 {
		if o.sticky && o.ready.has(f) {
			o.ready.set(f, o.rank(f))
		}
		return
	}
	w.vt = max(w.vt, o.lift(f))
	o.place(f)
}

// lift is the least virtual time of a queue that begins to wait. With executed
// it is most of the way to that of the last dispatch, so that what comes seldom
// does not hold up what comes often: MQFQ's bound leaves that open.
func (o *mqfq) lift(f int32) float64 {
	if !o.executed {
		return o.global
	}
	recent := min(nearly*max(o.tag-o.global, 0), o.ahead())
	return o.global + max(recent, min(o.pending(f), o.ahead()+o.each(f)))
}

// nearly is how much of the way.
const nearly = 0.9

// each is what one invocation is charged.
func (o *mqfq) each(f int32) float64 { return o.charge[f] }

// pending is what a queue was charged for that still runs.
func (o *mqfq) pending(f int32) float64 {
	if !o.executed {
		return 0
	}
	return float64(o.queues.queues[f].inFlight) * o.each(f)
}

// ahead is how far a queue may be ahead of Global_VT.
func (o *mqfq) ahead() float64 { return o.t + o.slots*o.longest[1] }

// ran notes how long invocations of a dispatched function are.
func (o *mqfq) ran(f int32) {
	each := o.each(f)
	switch {
	case o.whose[0] == f || o.whose[1] == f:
	case each > o.longest[0]:
		o.longest, o.whose = [2]float64{each, o.longest[0]}, [2]int32{f, o.whose[0]}
	case each > o.longest[1]:
		o.longest[1], o.whose[1] = each, f
	}
}

// place puts a queue that waits where its virtual time says.
func (o *mqfq) place(f int32) {
	if !o.least.has(f) || o.correct {
		o.least.set(f, key{b: o.floor(f)})
	}
	o.raise()
	if o.flows[f].vt-o.global > o.ahead() {
		o.ready.remove(f)
		o.held.set(f, key{b: o.flows[f].vt})
	} else {
		o.held.remove(f)
		o.ready.set(f, o.rank(f))
	}
}

// floor is what a queue that waits holds Global_VT down to. It only rises.
func (o *mqfq) floor(f int32) float64 { return o.flows[f].vt - o.pending(f) }

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

func (o *mqfq) next(now time.Duration) choice {
	o.now = now
	f := o.ready.min().function
	rule := "least virtual time"
	if o.sticky {
		rule = "fewest in flight, then longest queue, within T of Global_VT"
	}
	return anywhere(f, rule, o.unit.ms(o.flows[f].vt-o.global))
}

func (o *mqfq) left(now time.Duration, f int32, _ residency.Place, _ time.Duration) {
	o.tag = o.flows[f].vt
	o.flows[f].vt += o.each(f)
	if o.executed {
		o.ran(f)
	}
	if o.queues.queues[f].len > 0 {
		o.place(f)
		return
	}
	o.least.remove(f)
	o.ready.remove(f)
	o.raise()
}

func (o *mqfq) ended(now time.Duration, f int32, executed time.Duration) {
	o.now = now
	w, q := &o.flows[f], &o.queues.queues[f]
	if o.correct {
		w.vt = max(w.vt+o.unit.over(float64(executed-o.functions[f].Warm), o.functions[f].Weight), 0)
	}
	switch {
	case q.len == 0 && q.inFlight == 0:
		w.idle = now
	case q.len > 0 && (o.correct || o.executed):
		o.place(f)
	case q.len > 0 && o.sticky && o.spread && o.ready.has(f):
		o.ready.set(f, o.rank(f))
	}
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
		ttl = o.alpha * float64(w.last-w.first) / float64(w.arrivals-1)
	}
	return float64(o.now-w.idle) < ttl
}
