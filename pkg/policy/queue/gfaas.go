package queue

import (
	"math"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/reason"
)

// gfaas is this project's own order (R21 to R27). It takes MQFQ's candidates, so that MQFQ's
// bound on fairness holds, and orders them for short waiting times.
//
//   - The candidate whose invocations take the least time each goes first, where all waiting
//     invocations share the cost of a start (Smith's rule for batches with a set-up time). Times
//     are compared in powers of two; ties go to the least VT.
//   - An invocation waits for a busy GPU that has the function's instance and its memory, if that
//     GPU will be free before a start elsewhere would have caught up (LALB's rule).
//   - The instance to evict is the one that costs the least to do without: the extra time of its
//     next start, times the rate of arrivals, over its memory. Starts prefer the GPU where the
//     eviction costs the least.
//   - Virtual times are compared without invocations in flight: see mqfq.executed.
//
// Why the bound holds. Let G be Global_VT, here the least value of VT minus the charges of
// invocations in flight, over the waiting queues. Let C be the number of slots, and l1 >= l2 the
// two largest execution times over their weights.
//
//  1. A dispatch requires VT - G <= T + C l2.
//  2. A queue that begins to wait is lifted to at least G plus its own charges in flight, and to
//     at most G + T + C l2.
//  3. The executed time of a waiting queue is thus between G and G + T + C l2 + l, with its own l.
//     The exception is a queue that began to wait with more than that in flight; only the queue
//     with l1 can do so.
//  4. Between two instants, two such queues differ by at most 2T + 2C l2 + l1 + l2, or in the
//     exceptional case by T + C (l1 + l2) + l2. The bound is 2T + (C + 1)(l1 + l2).
//
// The bound leaves three choices free: the candidate to dispatch, whether to dispatch at once,
// and the lift of a queue within the limits of step 2.
type gfaas struct {
	*mqfq
	bookings
	slots   float64 // total slots of all GPUs
	longest longest
	aside   []int32
	skipped []item // functions that next skipped because no GPU has enough free memory now
	touched heap   // GPUs that changed since nextBookedOn examined them, by number
	// allBooked holds functions whose waiting invocations are all booked, with their keys in
	// ready. They are not in ready, so that next need not skip them.
	allBooked heap
}

func newGfaas(v *view) *gfaas {
	o := &gfaas{mqfq: newMQFQ(v, notSticky), longest: longest{of: [2]int32{none, none}}}
	o.removed = o.restoreReady
	o.rank, o.mqfq.lift, o.mqfq.released = o.index, o.lift, o.released
	o.executed, o.fixedCharge, o.follower.on = true, 0, v.config.Swap
	return o
}

func (o *gfaas) shape(c *residency.Config) { c.Worth, c.Touched = o.worth, o.touch }

// touch notes a change of a GPU and, unless it is none, of a function.
func (o *gfaas) touch(function, gpu int32) {
	if function != none {
		o.restoreReady(function)
	}
	o.touched.grow(int(gpu) + 1)
	o.touched.set(gpu, key{a: int64(gpu)})
}

func (o *gfaas) grow(functions, gpus, slots int) {
	o.restoreAllReady()
	o.allBooked.grow(functions)
	o.bookings.grow(functions, gpus)
	o.mqfq.grow(functions, gpus, slots)
	o.slots = float64(slots)
	o.extraLead = o.slots * o.longest.each[1]
}

// longest holds the two largest execution times over weights, and their functions.
type longest struct {
	each [2]float64
	of   [2]int32
}

// add adds the execution time over weight of a dispatched function.
func (l *longest) add(f int32, each float64) {
	switch {
	case l.of[0] == f || l.of[1] == f:
	case each > l.each[0]:
		*l = longest{[2]float64{each, l.each[0]}, [2]int32{f, l.of[0]}}
	case each > l.each[1]:
		l.each[1], l.of[1] = each, f
	}
}

// raise updates the execution time of a function that has changed.
func (l *longest) raise(f int32, each float64) {
	for i := range l.of {
		if l.of[i] == f {
			l.each[i] = max(l.each[i], each)
		}
	}
	if l.each[1] > l.each[0] {
		*l = longest{[2]float64{l.each[1], l.each[0]}, [2]int32{l.of[1], l.of[0]}}
	}
}

// forget removes a function, but not its execution time: it still bounds the lead of others.
func (l *longest) forget(f int32) {
	if i := slices.Index(l.of[:], f); i >= 0 {
		l.of[i] = none
	}
}

// lift returns the least virtual time of a queue that begins to wait: nine tenths of the way from
// Global_VT to that of the last dispatch, so that infrequent functions do not delay frequent ones
// (R21). MQFQ's bound permits any value in that range.
func (o *gfaas) lift(f int32) float64 {
	const nearly = 0.9
	recent := min(nearly*max(o.lastVT-o.global, 0), o.permittedLead())
	return o.global + max(recent, min(o.flows[f].inFlightCharge, o.permittedLead()+o.flows[f].charge))
}

// restoreReady returns a function to ready, if it is in allBooked.
func (o *gfaas) restoreReady(f int32) {
	if at := o.allBooked.place[f]; at > 0 {
		k := o.allBooked.items[at-1].key
		o.allBooked.remove(f)
		o.ready.set(f, k)
	}
}

func (o *gfaas) restoreAllReady() {
	for o.allBooked.len() > 0 {
		o.restoreReady(o.allBooked.min().function)
	}
}

func (o *gfaas) push(now time.Duration, f int32, m member) {
	o.restoreReady(f)
	o.mqfq.push(now, f, m)
}

func (o *gfaas) activated(now time.Duration, f int32, afresh bool) {
	o.restoreReady(f)
	o.mqfq.activated(now, f, afresh)
}

func (o *gfaas) changed(f int32) {
	o.restoreAllReady()
	for g := range o.gpus {
		if len(o.booked[g]) > 0 {
			o.touch(none, int32(g))
		}
	}
	o.mqfq.changed(f)
	o.longest.raise(f, o.flows[f].charge)
	o.extraLead = o.slots * o.longest.each[1]
	if o.bookedOf[f] > 0 && slices.ContainsFunc(o.runningOn[f], func(gpu int32) bool { return !o.engine.pool.Serves(f, gpu) }) {
		o.limit(f, 0) // its bookings are for instances of an old version
	}
}

func (o *gfaas) forget(f int32) {
	o.mqfq.forget(f)
	o.longest.forget(f)
}

// index returns the key of a candidate (R22): the time of each invocation over its weight, in
// powers of two, then the least VT, then the oldest head.
func (o *gfaas) index(f int32) key {
	c, q := &o.engine.functions[f], &o.queues.queues[f]
	warm := float64(c.Warm)
	together := float64(q.len)
	if warm > 0 { // about the number that can be dispatched within T
		together = min(together, 1+float64(o.engine.config.T)*c.Weight/warm)
	}
	executes := together * warm
	if o.engine.batches(f) {
		each := float64(c.Inflight)
		full := math.Floor(together / each)
		executes = full * warm * stretch(c.BatchSlope, each)
		if rest := together - full*each; rest > 0 {
			executes += warm * stretch(c.BatchSlope, rest)
		}
	}
	_, size := math.Frexp((float64(o.engine.pool.Expected(f)) - warm + executes) / together / c.Weight)
	return key{a: int64(size), b: o.flows[f].vt, c: q.oldest}
}

func (o *gfaas) next(now time.Duration, c *choice) bool {
	if o.nextBooked(c) {
		return true
	}
	found, maxFree := false, o.engine.pool.MaxFreeMem()
	mightFit := func(f int32) bool { return o.engine.pool.MightFit(f, maxFree) }
	var it item
	for exists := true; !found; {
		// could skips functions that fit nowhere without a search for a place.
		it, exists, o.skipped = o.ready.first(mightFit, o.skipped[:0])
		if !exists {
			break
		}
		f := it.function
		for o.bookedOf[f] < o.queues.queues[f].len {
			at, loss, ok := o.engine.pool.Cheapest(f)
			if ok && !o.book(now, f, at, loss) {
				found = c.on(f, at, shortestExpected, o.unit.ms(it.key.b))
			}
			if !ok || found {
				break
			}
		}
		switch {
		case found:
		case o.bookedOf[f] >= o.queues.queues[f].len:
			o.allBooked.set(f, o.index(f))
			o.ready.remove(f)
		default:
			o.ready.remove(f)
			o.aside = append(o.aside, f)
		}
	}
	for _, f := range o.aside {
		o.ready.set(f, o.index(f))
	}
	o.aside = o.aside[:0]
	for i := range o.skipped {
		if skipped := &o.skipped[i]; !found || skipped.key.less(&it.key) {
			o.ready.set(skipped.function, o.index(skipped.function))
		}
	}
	return found
}

// nextBooked chooses a booked invocation whose GPU is free now (R25). It examines only GPUs that
// changed since the last time, and those with a booking of a function that is no longer throttled.
func (o *gfaas) nextBooked(c *choice) (found bool) {
	for !found && o.touched.len() > 0 {
		gpu := o.touched.min().function
		if found = o.nextBookedOn(gpu, c); !found {
			o.touched.remove(gpu)
		}
	}
	return found
}

// released makes nextBooked examine the GPUs with a booking of a function that is no longer
// throttled.
func (o *gfaas) released(f int32) {
	for _, gpu := range o.bookedOn[f] {
		o.touch(none, gpu)
	}
}

// nextBookedOn implements nextBooked for one GPU. It drops the bookings of functions without a
// suitable instance there.
func (o *gfaas) nextBookedOn(gpu int32, c *choice) (found bool) {
	pool := o.engine.pool
	if len(o.booked[gpu]) == 0 || !pool.Free(gpu) {
		return false
	}
	for i := 0; i < len(o.booked[gpu]); i++ {
		f := o.booked[gpu][i].function
		if !o.ready.has(f) && !o.allBooked.has(f) {
			continue // throttled
		}
		at, ok := pool.Best(f, gpu, residency.Any)
		if ok && at.Start == residency.GPUWarm {
			o.bookings.remove(gpu, i)
			return c.on(f, at, bookedGPUFree, 0)
		}
		if !slices.Contains(o.runningOn[f], gpu) || !pool.Serves(f, gpu) {
			for n := o.booked[gpu][i].count; n > 0; n-- {
				o.bookings.remove(gpu, i)
			}
			i--
		}
	}
	return false
}

// advanced extends overdue work on GPUs with bookings, and drops these bookings (R26).
func (o *gfaas) advanced(now time.Duration) {
	if o.global >= shift {
		o.restoreAllReady()
	}
	o.mqfq.advanced(now)
	o.removeOverdue(now)
}

func (o *gfaas) wake() time.Duration { return min(o.bookings.wake(o.engine.now), o.mqfq.wake()) }

// moved updates a function after a change of its instances.
func (o *gfaas) moved(f, _ int32) {
	o.restoreReady(f)
	o.updateKey(f)
}

func (o *gfaas) freed(f, gpu int32) { o.moved(f, gpu) }

func (o *gfaas) resized(f int32) {
	o.restoreReady(f)
	o.limit(f, o.queues.queues[f].len)
	o.mqfq.resized(f)
}

func (o *gfaas) deactivated(f int32) {
	o.restoreReady(f)
	o.limit(f, 0)
	o.mqfq.deactivated(f)
}

func (o *gfaas) reason(f int32) reason.Reason {
	if o.bookedOf[f] > 0 {
		return reason.New(waitingForMemory)
	}
	return o.mqfq.reason(f)
}

// horizon is the number of seconds for which the instance that a start evicts counts as missing.
const horizon = 30

// book makes an invocation of the function wait for a busy GPU with its memory, if that GPU will
// be free before a start at that place would have caught up. The time to catch up includes the
// loss of the instances that the start evicts, up to as much again (R24). It reports whether it
// made a booking.
func (o *gfaas) book(now time.Duration, f int32, at residency.Place, loss float64) bool {
	warm := o.engine.warmOn(f, at.GPU)
	extra := o.engine.pool.DurationOn(f, at.GPU, at.Start) - warm
	if extra <= 0 {
		return false
	}
	best, soonest := none, extra+time.Duration(min(loss*horizon, float64(extra)))
	consider := func(gpu int32) {
		if !o.engine.open(gpu) {
			return
		}
		wait := o.wait(gpu, now)
		if o.engine.classes {
			wait += o.engine.warmOn(f, gpu) - warm
		}
		if wait < soonest {
			best, soonest = gpu, wait
		}
	}
	running := o.runningOn[f]
	for _, gpu := range running[:min(len(running), residency.MaxConsidered)] {
		if o.engine.pool.Serves(f, gpu) {
			consider(gpu)
		}
	}
	for gpu := range o.engine.pool.Warm(f) {
		if !o.engine.pool.Free(gpu) {
			consider(gpu)
		}
	}
	if best == none {
		return false
	}
	o.add(best, f, o.engine.warmOn(f, best))
	o.touch(none, best)
	return true
}

func (o *gfaas) dispatched(now time.Duration, f int32, r *run) {
	o.restoreReady(f)
	o.addRun(f, r, now)
	o.longest.add(f, o.flows[f].charge)
	o.extraLead = o.slots * o.longest.each[1]
	o.mqfq.dispatched(now, f, r)
	o.limit(f, o.queues.queues[f].len)
}

func (o *gfaas) expects(_ time.Duration, r *run, _ time.Duration) { o.setEnd(r) }

// finished removes an invocation.
func (o *gfaas) finished(now time.Duration, f int32, r *run, executed time.Duration) {
	o.restoreReady(f)
	o.removeRun(f, r)
	o.mqfq.finished(now, f, r, executed)
}

// worth returns the cost of doing without an instance, or without its memory on the GPU, in ns
// per second: the extra time of its next start, for each waiting invocation and each expected
// arrival. If a function has been idle for longer than its mean inter-arrival time, the idle time
// replaces that mean (R27).
func (o *gfaas) worth(f int32, extra time.Duration) float64 {
	w, q := &o.flows[f], &o.queues.queues[f]
	now := o.engine.now
	since := max(now-w.lastArrival, time.Millisecond)
	if w.arrivals > 1 {
		since = max(since, (w.lastArrival-w.firstArrival)/time.Duration(w.arrivals-1))
	} else {
		since = max(since, now-w.firstArrival)
	}
	return float64(extra) * (float64(q.len) + 1/since.Seconds())
}
