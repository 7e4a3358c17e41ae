package queue

import (
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// planned is an instance that a plan has for a function: its slice of the GPU is
// its own whatever else runs. No order decides of it, since none but its function
// can use it: what it runs takes no slot and no virtual time.
type planned struct {
	slot int32
	each time.Duration // that an invocation takes on it: as its Spec says, then a mean of what was measured
	n    int           // measurements in it
}

// patience is for how long at least an invocation waits for a plan's instances before
// another is started beside them: that one takes from what the plan promised others.
const patience = 2 * time.Second

// longest is what an invocation is taken to take at most: a guess may be anything.
const longest = time.Hour

// few is how many measurements a mean is of, about, once there were as many.
const few = 32

func (p *planned) learn(executed time.Duration) {
	p.n = min(p.n+1, few)
	p.each = max(p.each+(executed-p.each)/time.Duration(p.n), 1)
}

// serve sends what waits to instances of a plan that can take it: what an order has
// decided of already and waits for room, then the rest, oldest first. An invocation
// that all of them are too busy for waits for one while that is sooner than a start,
// or soon, and is for the order to decide of otherwise.
func (e *engine) serve(actions []Action) []Action {
	for _, f := range e.planned {
		q := &e.queues.queues[f]
		for q.len > 0 || len(e.held) > 0 {
			p := e.soonest(f)
			if p == nil {
				break
			}
			m, held := e.recall(f)
			if !held && q.len == 0 {
				break
			}
			a := Action{Kind: Run, Start: residency.GPUWarm, Function: f, GPU: e.pool.GPU(p.slot), Instance: e.pool.Instance(p.slot),
				Expected: p.each, Reason: Reason{Rule: "it is a plan's instance, and answers first", Waiting: q.len, InFlight: e.running(f)}}
			if held {
				a.Reason.Waiting++
				actions = e.changed(actions, "")
			} else {
				m = e.order.take(f)
				e.took(f)
			}
			a.ID, a.Arrived = m.id, m.at
			expected := p.each * time.Duration(e.beside(p.slot)+1) // they share its time
			e.add(run{member: m, function: f, gpu: a.GPU, slot: p.slot, planned: true, begin: e.now, until: e.now + expected, warm: p.each})
			e.states[f].planned++
			e.pool.Join(p.slot)
			actions = append(actions, a)
		}
		e.review(f)
	}
	return actions
}

// soonest is the instance of a plan for the function that will have one more
// invocation done first, by what each takes on it and how many it has; nil if
// none can take one more.
func (e *engine) soonest(f int32) *planned {
	most := max(int(e.functions[f].Inflight), 1)
	var best *planned
	var first time.Duration
	for i := range e.states[f].plans {
		p := &e.states[f].plans[i]
		runs := e.beside(p.slot)
		if runs >= most || !e.open(e.pool.GPU(p.slot)) {
			continue
		}
		if done := p.each * time.Duration(runs+1); best == nil || done < first {
			best, first = p, done
		}
	}
	return best
}

// soon says whether a plan's instances will have taken all that waits for the
// function before one could be started for it. One whose work is overdue does
// not count.
func (e *engine) soon(f int32) bool {
	rate := 0.0
	for i := range e.states[f].plans {
		if p := &e.states[f].plans[i]; e.open(e.pool.GPU(p.slot)) && e.late(p) > e.now {
			rate += 1 / float64(p.each)
		}
	}
	extra := e.pool.Expected(f) - e.functions[f].Warm
	if extra > 0 { // none of its own is idle
		extra = max(extra, patience)
	}
	return rate > 0 && float64(e.queues.queues[f].len) <= rate*float64(extra)
}

// late is when the first of what an instance runs is overdue, having taken twice as
// long as expected, and not just for a moment; Never if nothing runs there.
func (e *engine) late(p *planned) time.Duration {
	at := Never
	for n := e.pool.Run(p.slot); n != none; n = e.runs[n].next {
		r := &e.runs[n]
		at = min(at, max(overdue(r.begin, r.until), r.until+patience)+1)
	}
	return at
}

// giveUp is when the first of what invocations wait for on a plan's instances
// is overdue.
func (e *engine) giveUp() time.Duration {
	at := Never
	for _, f := range e.planned {
		if q := &e.queues.queues[f]; q.len == 0 || !q.out {
			continue
		}
		for i := range e.states[f].plans {
			if late := e.late(&e.states[f].plans[i]); late > e.now {
				at = min(at, late)
			}
		}
	}
	return at
}

// measured takes note of how long an invocation took on a plan's instance.
func (e *engine) measured(r *run, executed time.Duration) {
	for i := range e.states[r.function].plans {
		if p := &e.states[r.function].plans[i]; p.slot == r.slot {
			p.learn(executed)
		}
	}
}

// plan makes an instance known that a plan has for a function.
func (e *engine) plan(f, slot int32, spec *Function) {
	p := planned{slot: slot, each: e.functions[f].Warm}
	if spec != nil {
		p.each = spec.Warm
	}
	p.each = min(max(p.each, 1), longest)
	e.states[f].plans = append(e.states[f].plans, p)
	e.planned = holding(e.planned, f, true)
}

// unplan forgets an instance, if it is a plan's.
func (e *engine) unplan(f, slot int32) {
	s := &e.states[f]
	s.plans = slices.DeleteFunc(s.plans, func(p planned) bool { return p.slot == slot })
	if len(s.plans) == 0 {
		e.planned = holding(e.planned, f, false)
	}
}

// blocked says whether a function has to wait for instances of its own, or for
// those of a plan, whatever else is free.
func (e *engine) blocked(f int32) bool {
	return e.pool.Blocked(f, e.queues.queues[f].len) || len(e.planned) > 0 && len(e.states[f].plans) > 0 && e.soon(f)
}

// running is how many invocations of a function run.
func (e *engine) running(f int32) int32 {
	return e.queues.queues[f].inFlight + e.states[f].planned
}
