package queue

import (
	"cmp"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/reason"
)

// mqfq implements multi-queue fair queueing and, if sticky, the order of MQFQ-Sticky (section
// 4.2, Algorithm 1; R14 to R16). The virtual time of a queue is the execution time that it was
// charged, over its weight. A queue may be at most T ahead of the least virtual time of the
// waiting queues.
type mqfq struct {
	ordinary
	engine *view
	follower
	flows        []flow
	unit         unit          // of virtual times
	fixedCharge  time.Duration // unless 0, the execution time that every invocation is charged
	unitFixed    bool          // the unit is fixed, because an invocation was dispatched
	sticky       bool
	preferFewest bool // more than one invocation can run: prefer the fewest in flight
	t            float64
	global       float64 // Global_VT: the least VT of the waiting queues, which never decreases
	byFloor      heap    // waiting queues, by a lower bound of floor
	ready        heap    // waiting queues that are not throttled, by rank
	throttled    heap    // throttled queues, by VT
	rank         func(f int32) key
	executed     bool    // floor excludes invocations in flight: see gfaas
	extraLead    float64 // added to T as the permitted lead over Global_VT
	lift         func(f int32) float64
	released     func(f int32) // called for a queue that is no longer throttled
	lastVT       float64       // VT of the last dispatched queue, before the charge
}

// flow holds the state of one function's queue.
type flow struct {
	vt                        float64       // execution time over weight
	charge                    float64       // addition to vt per invocation
	warm                      time.Duration // the execution time that charge stands for
	inFlightCharge            float64       // total charge of the invocations in flight
	firstArrival, lastArrival time.Duration
	arrivals                  int64
	idleSince                 time.Duration // when it became empty with no invocation in flight
}

// Values of the argument sticky of newMQFQ.
const (
	sticky    = true // active functions keep their instances
	notSticky = false
)

func newMQFQ(v *view, sticky bool) *mqfq {
	o := &mqfq{ordinary: ordinary{v.queues}, engine: v, sticky: sticky, unit: 1}
	o.follower.on, o.fixedCharge = sticky && v.config.Swap, v.config.Charge
	o.t = o.unit.fromNS(float64(v.config.T))
	o.rank = o.key
	o.lift = func(int32) float64 { return o.global }
	o.released = func(int32) {}
	return o
}

func (o *mqfq) shape(c *residency.Config) {
	if o.sticky {
		c.EvictLast = o.isActive
	}
}

func (o *mqfq) grow(functions, _, slots int) {
	o.flows = grown(o.flows, functions)
	o.follower.grow(functions)
	o.byFloor.grow(functions)
	o.ready.grow(functions)
	o.throttled.grow(functions)
	if spread := slots > 1; spread != o.preferFewest {
		o.preferFewest = spread
		o.rerank()
	}
}

// rerank updates the keys of all candidates.
func (o *mqfq) rerank() {
	for _, it := range slices.Clone(o.ready.items) {
		o.ready.set(it.function, o.rank(it.function))
	}
}

// changed updates the charge of a function after a change of costs or weight. Weights that are
// set before the first dispatch determine the unit.
func (o *mqfq) changed(f int32) {
	spec := &o.engine.functions[f]
	if u := o.unit.withWeight(spec.Weight); u != o.unit && !o.unitFixed {
		o.unit = u
		o.t = u.fromNS(float64(o.engine.config.T))
		for i := range o.engine.functions {
			if o.engine.functions[i].Weight > 0 {
				o.setCharge(int32(i))
			}
		}
	}
	o.setCharge(f)
	o.updateKey(f)
}

// setCharge computes the charge of a function's invocations.
func (o *mqfq) setCharge(f int32) {
	spec, w := &o.engine.functions[f], &o.flows[f]
	w.warm = spec.Warm
	w.charge = o.unit.perWeight(float64(cmp.Or(o.fixedCharge, w.warm)), spec.Weight)
}

// updateKey updates the key of a candidate.
func (o *mqfq) updateKey(f int32) {
	if o.ready.has(f) {
		o.ready.set(f, o.rank(f))
	}
}

func (o *mqfq) forget(f int32) {
	o.flows[f] = flow{}
	o.cease(f)
}

func (o *mqfq) push(now time.Duration, f int32, m member) {
	o.queues.push(f, m)
	w := &o.flows[f]
	if w.arrivals == 0 {
		w.firstArrival = now
	}
	w.lastArrival = now
	w.arrivals++
	o.cease(f)
	if o.sticky {
		o.updateKey(f)
	}
}

func (o *mqfq) activated(_ time.Duration, f int32, afresh bool) {
	if w := &o.flows[f]; afresh {
		w.vt = max(w.vt, o.lift(f))
	}
	o.place(f)
	if afresh && !o.throttled.has(f) {
		o.resume(f)
	}
}

func (o *mqfq) resized(f int32) { o.place(f) }

func (o *mqfq) deactivated(f int32) {
	o.byFloor.remove(f)
	o.ready.remove(f)
	o.throttled.remove(f)
	o.raiseGlobal()
	o.noteIdle(f)
}

// shift is the value of Global_VT at which advanced shifts all virtual times down.
const shift = 1 << 51

// advanced keeps virtual times so small that they are exact.
func (o *mqfq) advanced(time.Duration) {
	if o.global < shift {
		return
	}
	by := o.global
	o.global, o.lastVT = 0, o.lastVT-by
	for i := range o.flows {
		o.flows[i].vt -= by
	}
	for _, h := range []*heap{&o.byFloor, &o.ready, &o.throttled} {
		for i := range h.items {
			h.items[i].key.b -= by
		}
	}
}

// place puts a waiting queue into the heaps.
func (o *mqfq) place(f int32) {
	o.byFloor.lower(f, key{b: o.floor(f)}) // placeRisen calls raiseGlobal if it rose
	o.placeRisen(f)
}

// placeRisen does the same for a queue that was waiting already and whose virtual time has not
// decreased since.
func (o *mqfq) placeRisen(f int32) {
	o.raiseGlobal()
	if o.flows[f].vt-o.global > o.permittedLead() {
		o.ready.remove(f)
		if !o.throttled.has(f) {
			o.note(f)
		}
		o.throttled.set(f, key{b: o.flows[f].vt})
	} else {
		o.release(f)
	}
}

// release makes a waiting queue a candidate, which may have been throttled.
func (o *mqfq) release(f int32) {
	if o.throttled.has(f) {
		o.throttled.remove(f)
		o.released(f)
		o.resume(f)
	}
	o.ready.set(f, o.rank(f))
}

// floor returns the upper bound that a waiting queue puts on Global_VT.
func (o *mqfq) floor(f int32) float64 {
	w := &o.flows[f]
	if o.executed {
		return w.vt - w.inFlightCharge
	}
	return w.vt
}

// permittedLead returns the permitted lead over Global_VT.
func (o *mqfq) permittedLead() float64 { return o.t + o.extraLead }

// raiseGlobal raises Global_VT to the least floor of the waiting queues, and releases queues that
// are no longer throttled.
func (o *mqfq) raiseGlobal() {
	for o.byFloor.len() > 0 {
		first := o.byFloor.min()
		if now := o.floor(first.function); now > first.key.b {
			o.byFloor.set(first.function, key{b: now})
			continue
		}
		o.global = max(o.global, first.key.b)
		break
	}
	for o.throttled.len() > 0 && o.throttled.min().key.b-o.global <= o.permittedLead() {
		o.release(o.throttled.min().function)
	}
}

// key returns the sort key of a candidate (R15). If sticky: fewest in flight, longest queue,
// least VT, oldest head. Otherwise: least VT, oldest head.
func (o *mqfq) key(f int32) key {
	q := &o.queues.queues[f]
	k := key{b: o.flows[f].vt, c: q.oldest}
	if o.sticky {
		k.a = 1<<31 - int64(q.len)
		if o.preferFewest {
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
	code := leastVirtualTime
	if o.sticky {
		code = fewestInFlight
	}
	return c.anywhere(f, code, o.unit.ms(o.flows[f].vt-o.global))
}

func (o *mqfq) dispatched(_ time.Duration, f int32, r *run) {
	w := &o.flows[f]
	o.unitFixed = true
	o.lastVT = w.vt
	if r.charge = w.charge; r.joined && o.fixedCharge == 0 {
		r.charge = o.cost(f, r.adds)
	}
	w.vt += r.charge
	w.inFlightCharge += r.charge
	switch {
	case o.queues.queues[f].len == 0:
		o.deactivated(f)
	case o.byFloor.has(f):
		o.placeRisen(f)
	default:
		o.place(f)
	}
}

func (o *mqfq) finished(now time.Duration, f int32, r *run, executed time.Duration) {
	w, q := &o.flows[f], &o.queues.queues[f]
	if w.inFlightCharge -= r.charge; q.inFlight == 0 {
		w.inFlightCharge = 0
	}
	before := w.vt
	if !o.engine.config.Uncorrected && o.fixedCharge == 0 {
		w.vt += o.cost(f, executed) - r.charge
	}
	o.noteIdle(f)
	if o.throttled.has(f) { // its instance is idle now
		o.note(f)
	}
	switch {
	case !o.byFloor.has(f):
	case o.executed || w.vt != before:
		o.place(f)
	case o.sticky && o.preferFewest:
		o.updateKey(f)
	}
}

// cost returns the addition to the virtual time for a measured execution time.
func (o *mqfq) cost(f int32, executed time.Duration) float64 {
	if w := &o.flows[f]; executed == w.warm {
		return w.charge
	}
	return o.unit.perWeight(float64(executed), o.engine.functions[f].Weight)
}

// noteIdle notes the time at which a queue became empty with no invocation in flight.
func (o *mqfq) noteIdle(f int32) {
	if q := &o.queues.queues[f]; q.len == 0 && q.inFlight == 0 {
		o.flows[f].idleSince = o.engine.now
		if o.on {
			o.idle(f, o.engine.now+o.ttl(f, firstTTL))
		}
	}
}

func (o *mqfq) wake() time.Duration { return o.follower.wake() }

// prefers implements order: a function may go first until it is T ahead.
func (o *mqfq) prefers() bool { return true }

func (o *mqfq) reason(f int32) reason.Reason {
	if o.throttled.has(f) {
		return reason.New(throttled, reason.Number("lead_ms", o.unit.ms(o.flows[f].vt-o.global)), reason.Number("limit_ms", o.unit.ms(o.permittedLead())))
	}
	return reason.Reason{}
}

// isActive reports whether a queue is active (R16): not throttled, and not idle for longer than
// alpha times its mean inter-arrival time.
func (o *mqfq) isActive(f int32) bool {
	w, q := &o.flows[f], &o.queues.queues[f]
	if w.vt-o.global > o.t {
		return false
	}
	if q.len > 0 || q.inFlight > 0 {
		return true
	}
	return o.engine.now-w.idleSince < o.ttl(f, 0)
}
