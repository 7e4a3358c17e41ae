package queue

import (
	"slices"
	"time"
)

// timeouts holds the times until which invocations may wait.
type timeouts struct {
	*view
	starts    []startTime // by function
	deadlines deadlines
	arrivals  []deadline // of invocations that arrived in this step
}

// startTime measures how long starts of a function's instances were in progress. That time does
// not count against the deadlines of its invocations.
type startTime struct {
	inProgress bool
	since      time.Duration // begin of the current period, if inProgress
	before     time.Duration // total of earlier periods
	paused     deadlines     // deadlines that passed during the current period
}

// total returns the total time with a start in progress.
func (s *startTime) total(now time.Duration) time.Duration {
	if s.inProgress {
		return s.before + now - s.since
	}
	return s.before
}

// starting records that the first start of a function's instances began, or that the last one
// ended. The pool calls it (residency.Config.Starting).
func (t *timeouts) starting(f int32, inProgress bool) {
	s := &t.starts[f]
	if inProgress {
		s.inProgress, s.since = true, t.now
		return
	}
	s.before, s.inProgress = s.total(t.now), false
	for _, d := range s.paused {
		d.extend(s, t.now)
		t.deadlines.add(d)
	}
	s.paused = nil
}

// deadline is the time until which an invocation may wait.
type deadline struct {
	at       time.Duration
	starting time.Duration // the startTime.total of the function that at includes
	function int32
	member
}

// deadline returns the deadline of an invocation that may wait until at, plus the time that
// starts of its function take from now on.
func (t *timeouts) deadline(at time.Duration, f int32, m member) deadline {
	return deadline{at, t.starts[f].total(t.now), f, m}
}

// arrived notes the deadline of a new invocation; an at of 0 means none.
func (t *timeouts) arrived(at time.Duration, f int32, m member) {
	switch {
	case at > t.now:
		t.arrivals = append(t.arrivals, t.deadline(at, f, m))
	case at > 0:
		t.deadlines.add(t.deadline(at, f, m))
	}
}

// extend adds the time that starts took since the last call.
func (d *deadline) extend(s *startTime, now time.Duration) {
	total := s.total(now)
	d.at, d.starting = d.at+total-d.starting, total
}

// arrivalDeadline returns the deadline of an invocation that arrived in this step. Its at is 0 if
// there is none.
func (t *timeouts) arrivalDeadline(id int64) (d deadline) {
	if i := slices.IndexFunc(t.arrivals, func(d deadline) bool { return d.id == id }); i >= 0 {
		return t.arrivals[i]
	}
	return d
}

// forget invalidates the deadlines of an invocation that gets a new one.
func (t *timeouts) forget(id int64) {
	t.deadlines.forget(id)
	for i := range t.starts {
		t.starts[i].paused.forget(id)
	}
}

func (d *deadline) before(o *deadline) bool { return d.at < o.at || d.at == o.at && d.id < o.id }

// deadlines is a heap with the earliest deadline at the root. Deadlines of invocations that no
// longer wait stay in the heap until their time.
type deadlines []deadline

func (d *deadlines) add(x deadline) {
	*d = append(*d, x)
	h, i := *d, len(*d)-1
	for ; i > 0 && x.before(&h[(i-1)/2]); i = (i - 1) / 2 {
		h[i] = h[(i-1)/2]
	}
	h[i] = x
}

// pop removes and returns the earliest deadline.
func (d *deadlines) pop() deadline {
	h, last := *d, len(*d)-1
	first, x := h[0], h[last]
	h, i := h[:last], 0
	for child := 1; child < last; child = 2*i + 1 {
		if child+1 < last && h[child+1].before(&h[child]) {
			child++
		}
		if !h[child].before(&x) {
			break
		}
		h[i], i = h[child], child
	}
	if last > 0 {
		h[i] = x
	}
	*d = h
	return first
}

// forget invalidates the deadlines of an invocation.
func (d deadlines) forget(id int64) {
	for i := range d {
		if d[i].id == id {
			d[i].function = none
		}
	}
}

// addFresh stores the deadlines of invocations that arrived in this step and still wait. Most
// invocations are dispatched at once and need none. done holds the actions of the step.
func (t *timeouts) addFresh(done []Action) {
	for _, d := range t.arrivals {
		if !slices.ContainsFunc(done, func(a Action) bool { return a.ID == d.id && (a.Kind == Run || a.Kind == Reject) }) {
			t.deadlines.add(d)
		}
	}
	t.arrivals = t.arrivals[:0]
}

// next removes and returns a deadline that has passed. The invocation may no longer wait. While an
// instance of its function starts, an invocation continues to wait.
func (t *timeouts) next() (d deadline, found bool) {
	for t.at() <= t.now {
		d := t.deadlines.pop()
		if !t.known(d.function) {
			continue
		}
		s := &t.starts[d.function]
		switch d.extend(s, t.now); {
		case s.inProgress:
			s.paused = append(s.paused, d)
		case d.at > t.now:
			t.deadlines.add(d)
		default:
			return d, true
		}
	}
	return d, false
}

// at returns the time of the first deadline, or Never.
func (t *timeouts) at() time.Duration {
	if len(t.deadlines) == 0 {
		return Never
	}
	return t.deadlines[0].at
}
