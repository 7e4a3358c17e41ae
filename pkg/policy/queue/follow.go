package queue

import (
	"math"
	"time"
)

// follower lets memory follow the states of the queues (MQFQ-Sticky, sections 4.2 and 4.3): the
// memory of a throttled or inactive queue moves to the host ahead of need, and returns when the queue
// is active again. mqfq reports the changes of the states to it; the engine takes the resulting
// functions at the end of each step.
type follower struct {
	on      bool
	expiry  heap    // idle queues, by the time at which they become inactive
	changed []int32 // queues that may have become throttled or inactive
	resumed []int32 // waiting queues that have become active
}

func (w *follower) grow(functions int) { w.expiry.grow(functions) }

// note records that a queue may have become throttled or inactive.
func (w *follower) note(f int32) {
	if w.on {
		w.changed = append(w.changed, f)
	}
}

// resume records that a queue has become active and waits.
func (w *follower) resume(f int32) {
	if w.on {
		w.resumed = append(w.resumed, f)
	}
}

// idle records the time at which an idle queue becomes inactive.
func (w *follower) idle(f int32, inactiveAt time.Duration) {
	if w.on {
		w.expiry.set(f, key{a: int64(inactiveAt)})
		w.note(f)
	}
}

// cease forgets that a queue is idle.
func (w *follower) cease(f int32) {
	if w.on {
		w.expiry.remove(f)
	}
}

// wake returns the time at which the next idle queue becomes inactive.
func (w *follower) wake() time.Duration {
	if w.expiry.len() == 0 {
		return Never
	}
	return time.Duration(w.expiry.min().key.a)
}

// firstTTL is the time for which the memory of an idle queue stays if the queue has had only one
// invocation, so that its inter-arrival time is unknown.
const firstTTL = 500 * time.Millisecond

// ttl returns the time after which an idle queue becomes inactive (R16). unknown is the result for a
// queue without an inter-arrival time.
func (o *mqfq) ttl(f int32, unknown time.Duration) time.Duration {
	w, c := &o.flows[f], &o.engine.config
	switch {
	case c.FixedTTL:
		return c.TTL
	case c.Alpha == 0:
		return 0
	case w.arrivals < 2:
		return unknown
	}
	mean := float64(w.lastArrival-w.firstArrival) / float64(w.arrivals-1)
	return time.Duration(min(math.Ceil(c.Alpha*mean), math.MaxInt64/2))
}

// relocations implements order.
func (o *mqfq) relocations() (out, back []int32) {
	w, now := &o.follower, o.engine.now
	for w.wake() <= now {
		f := w.expiry.min().function
		w.expiry.remove(f)
		w.changed = append(w.changed, f)
	}
	for _, f := range w.changed {
		if o.isThrottled(f) || o.isInactive(f) {
			out = append(out, f)
		}
	}
	for _, f := range w.resumed {
		if !o.isThrottled(f) {
			back = append(back, f)
		}
	}
	w.changed, w.resumed = w.changed[:0], w.resumed[:0]
	return out, back
}

// isThrottled reports whether a queue, waiting or not, is farther ahead of Global_VT than permitted.
func (o *mqfq) isThrottled(f int32) bool { return o.flows[f].vt-o.global > o.permittedLead() }

// isInactive reports whether a queue has been idle for its TTL.
func (o *mqfq) isInactive(f int32) bool {
	q := &o.queues.queues[f]
	return q.len == 0 && q.inFlight == 0 && o.engine.now-o.flows[f].idleSince >= o.ttl(f, firstTTL)
}
