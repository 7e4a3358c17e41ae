package queue

import (
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// yields sets a function aside for the rest of a step, so that others may go:
// one that may have no more instances than it has, or one whose running instance
// has room for more as soon as nobody else wants the GPU.
func (e *engine) yields(f int32, at residency.Place, placed bool) bool {
	capped := !placed && e.pool.Capped(f)
	if !capped && (!placed || at.Start == residency.GPUWarm || e.functions[f].Inflight <= 1) {
		return false
	}
	if !capped {
		if _, spare := e.pool.Spare(f); !spare {
			return false
		}
	}
	e.order.ceased(f)
	e.queues.queues[f].out = true
	e.aside = append(e.aside, f)
	return true
}

// tend does what nobody asked for: brings back what was set aside, adds
// invocations to instances that take several, keeps the least number of
// instances, stops what has idled for long, rejects what cannot run any more.
func (e *engine) tend(actions []Action) []Action {
	for _, f := range e.aside {
		if e.queues.queues[f].len > 0 && e.queues.queues[f].out {
			if e.queues.queues[f].out = e.blocked(f); !e.queues.queues[f].out {
				e.order.began(e.now, f, false)
			}
		}
	}
	e.aside = e.aside[:0]
	if len(e.shared) > 0 {
		actions = e.join(actions)
	}
	if e.changing {
		e.changing = false
		actions = e.cull(actions)
	}
	if len(e.kept) > 0 {
		e.keep()
	}
	actions = e.changed(actions, "")
	e.pool.Expire(e.now)
	actions = e.changed(actions, "it idled for as long as it may")
	for i := 0; i < len(e.ending); i++ {
		f := e.ending[i]
		if e.pool.Forgotten(f) && e.queues.queues[f].inFlight == 0 {
			e.ending = append(e.ending[:i], e.ending[i+1:]...)
			i--
			e.order.forget(f)
			e.states[f], e.functions[f] = state{}, Function{}
			actions = append(actions, Action{Kind: Forget, Function: f, GPU: none, Instance: residency.None,
				Reason: Reason{Rule: NoFunction}})
		}
	}
	return actions
}

// keep starts instances until functions have their least number, where there is room.
func (e *engine) keep() {
	for _, f := range e.kept {
		for all, _ := e.pool.Count(f); all < int(e.functions[f].Min); all++ {
			if _, ok := e.pool.Start(f); !ok {
				break
			}
			if e.states[f].failures >= mostFailures {
				e.pool.Bar(f, true) // until this start has ended
			}
		}
	}
}

// join adds invocations to instances that run and can take more, while nobody
// else waits for their GPU: others that wait are themselves to join, or have to
// wait for instances of their own.
func (e *engine) join(actions []Action) []Action {
	if e.queues.total == 0 {
		return actions
	}
	for f := range e.functions {
		if e.queues.queues[f].len == 0 || e.queues.queues[f].out {
			continue
		}
		if _, spare := e.pool.Spare(int32(f)); !spare {
			return actions
		}
	}
	for _, f := range e.shared {
		for e.queues.queues[f].len > 0 {
			slot, spare := e.pool.Spare(f)
			if !spare {
				break
			}
			if e.queues.queues[f].out {
				e.queues.queues[f].out = false
				e.order.began(e.now, f, true)
			}
			q := &e.queues.queues[f]
			actions = append(actions, Action{Kind: Run, Start: residency.GPUWarm, Function: f, GPU: e.pool.GPU(slot),
				Expected: e.functions[f].Warm, Reason: Reason{Rule: "its instance runs and can take one more", Waiting: q.len, InFlight: q.inFlight}})
			e.pool.Join(slot)
			actions = e.dispatch(slot, true, actions)
		}
	}
	return actions
}

// cull rejects what waits and cannot run: it fits no GPU that is there, or its
// function is barred.
func (e *engine) cull(actions []Action) []Action {
	for f := range e.functions {
		switch {
		case !e.queues.queues[f].known:
		case !e.pool.Fits(int32(f)):
			actions = e.rejectAll(int32(f), TooLarge, actions)
		case e.barred(int32(f)):
			actions = e.rejectAll(int32(f), StartFailed, actions)
		}
	}
	return actions
}

// After several starts of a function that failed in a row, none begins for one second.
// Then one at a time is tried: where that fails, the pause is two seconds, then four, up
// to a minute.
const (
	mostFailures = 3
	mostBarred   = time.Minute
)

// startFailed counts a start that failed. One that fails during a pause began before it,
// and does not count.
func (e *engine) startFailed(f int32) {
	s := &e.states[f]
	if e.now < s.barred {
		return
	}
	if s.failures++; s.failures >= mostFailures {
		s.barred = e.now + min(time.Second<<min(s.failures-mostFailures, 10), mostBarred)
		e.failing = holding(e.failing, f, true)
		e.pool.Bar(f, true)
		e.pool.BumpStarts(f)
		e.changing = true
	}
}

// startSucceeded forgets starts that failed before one that did not.
func (e *engine) startSucceeded(f int32) {
	e.pool.Fed(f)
	s := &e.states[f]
	if s.failures, s.barred = 0, 0; len(e.failing) > 0 {
		e.failing = holding(e.failing, f, false)
		e.pool.Bar(f, s.closing)
		e.review(f)
	}
}

// retry lets functions that failed to start try again: after the pause, one start at a
// time.
func (e *engine) retry() {
	for _, f := range e.failing {
		s := &e.states[f]
		e.pool.Bar(f, s.closing || e.now < s.barred || e.pool.Starting(f))
		e.review(f)
	}
}

// barred reports whether invocations of a function are rejected because its starts
// failed: it has no instance that could take them, and none is started for a while.
func (e *engine) barred(f int32) bool {
	if len(e.failing) == 0 {
		return false
	}
	s := &e.states[f]
	return s.failures >= mostFailures && e.now < s.barred && !e.pool.Usable(f) && !e.pool.Pending(f)
}

// startTime measures for how long starts of a function's instances have been in
// progress. That time does not count against the deadlines of its invocations.
type startTime struct {
	inProgress bool
	since      time.Duration // if one is in progress
	before     time.Duration // the time before that
	paused     []deadline    // deadlines that passed, or would have, while one is
}

// total returns the time for which a start has been in progress, in all.
func (s *startTime) total(now time.Duration) time.Duration {
	if s.inProgress {
		return s.before + now - s.since
	}
	return s.before
}

// starting is called when the first start of a function's instances begins, and when
// none is in progress any more.
func (e *engine) starting(f int32, inProgress bool) {
	s := &e.states[f].starts
	if inProgress {
		s.inProgress, s.since = true, e.now
		return
	}
	s.before, s.inProgress = s.total(e.now), false
	for _, d := range s.paused {
		d.extend(s, e.now)
		e.deadlines.add(d)
	}
	s.paused = nil
}

// deadline is until when an invocation may wait.
type deadline struct {
	at       time.Duration
	starting time.Duration // the function's total startTime that at includes
	function int32
	member
}

// deadline returns the deadline of an invocation that is to wait until a time, plus the
// time that starts of its function take from now on.
func (e *engine) deadline(at time.Duration, f int32, m member) deadline {
	return deadline{at, e.states[f].starts.total(e.now), f, m}
}

// extend adds the time that starts have taken meanwhile.
func (d *deadline) extend(s *startTime, now time.Duration) {
	total := s.total(now)
	d.at, d.starting = d.at+total-d.starting, total
}

// freshDeadline returns the deadline of an invocation that came in this step; its at is
// 0 where there is none.
func (e *engine) freshDeadline(id int64) (d deadline) {
	if i := slices.IndexFunc(e.fresh, func(d deadline) bool { return d.id == id }); i >= 0 {
		return e.fresh[i]
	}
	return d
}

// forgetDeadline drops the deadlines of an invocation that gets another.
func (e *engine) forgetDeadline(id int64) {
	drop := func(all []deadline) {
		for i := range all {
			if all[i].id == id {
				all[i].function = none
			}
		}
	}
	drop(e.deadlines)
	for i := range e.states {
		drop(e.states[i].starts.paused)
	}
}

func (d *deadline) before(o *deadline) bool { return d.at < o.at || d.at == o.at && d.id < o.id }

// deadlines is a heap, the first at the root. What no longer waits stays until
// its time comes.
type deadlines []deadline

func (d *deadlines) add(x deadline) {
	*d = append(*d, x)
	h, i := *d, len(*d)-1
	for ; i > 0 && x.before(&h[(i-1)/2]); i = (i - 1) / 2 {
		h[i] = h[(i-1)/2]
	}
	h[i] = x
}

// pop takes the first.
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

// bound notes the deadlines of what came in this step and waits after it: most
// went at once, and need none. Done is what the step decided.
func (e *engine) bound(done []Action) {
	for _, d := range e.fresh {
		if !slices.ContainsFunc(done, func(a Action) bool { return a.ID == d.id && (a.Kind == Run || a.Kind == Reject) }) {
			e.deadlines.add(d)
		}
	}
	e.fresh = e.fresh[:0]
}

// expire rejects what has waited for as long as it may. While an instance of its
// function starts, an invocation goes on waiting.
func (e *engine) expire(actions []Action) []Action {
	for len(e.deadlines) > 0 && e.deadlines[0].at <= e.now {
		d := e.deadlines.pop()
		if !e.known(d.function) {
			continue
		}
		s := &e.states[d.function].starts
		switch d.extend(s, e.now); {
		case s.inProgress:
			s.paused = append(s.paused, d)
		case d.at > e.now:
			e.deadlines.add(d)
		case e.remove(d.function, d.id):
			actions = append(actions, reject(d.function, d.member, TooLate))
		}
	}
	return e.changed(actions, "")
}

// wake is when to decide again although nothing happens.
func (e *engine) wake() time.Duration {
	if e.paused {
		return e.now
	}
	at := e.order.wake()
	if len(e.deadlines) > 0 {
		at = min(at, e.deadlines[0].at)
	}
	at = min(at, e.pool.Expire(e.now))
	if len(e.planned) > 0 {
		at = min(at, e.giveUp())
	}
	for _, f := range e.failing {
		all, _ := e.pool.Count(f)
		if s := &e.states[f]; s.barred > e.now && (e.queues.queues[f].len > 0 || all < int(e.functions[f].Min)) {
			at = min(at, s.barred)
		}
	}
	return at
}
