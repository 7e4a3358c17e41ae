package queue

import (
	pq "container/heap"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// What follows is of policies that are driven by what really happens.

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
			if e.queues.queues[f].out = e.pool.Blocked(f, e.queues.queues[f].len); !e.queues.queues[f].out {
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
	for _, f := range e.kept {
		for all, _ := e.pool.Count(f); all < int(e.functions[f].Min) && e.states[f].barred <= e.now; all++ {
			if _, ok := e.pool.Start(f); !ok {
				break
			}
		}
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

// A function whose starts failed several times in a row is tried again after
// one second, then two, up to a minute.
const (
	mostFailures = 3
	mostBarred   = time.Minute
)

func (e *engine) startFailed(f int32) {
	s := &e.states[f]
	if s.failures++; s.failures >= mostFailures {
		s.barred = e.now + min(time.Second<<min(s.failures-mostFailures, 10), mostBarred)
		e.changing = true
	}
}

// barred says whether a function is not to be started, and has no instance.
func (e *engine) barred(f int32) bool {
	s := &e.states[f]
	if s.failures < mostFailures || e.now >= s.barred {
		return false
	}
	all, starting := e.pool.Count(f)
	return all == starting
}

// deadline is until when an invocation may wait.
type deadline struct {
	at       time.Duration
	id       int64
	function int32
}

// deadlines is a heap, the first at the root. What no longer waits stays until
// its time comes.
type deadlines []deadline

func (d deadlines) Len() int { return len(d) }
func (d deadlines) Less(i, j int) bool {
	return d[i].at < d[j].at || d[i].at == d[j].at && d[i].id < d[j].id
}
func (d deadlines) Swap(i, j int) { d[i], d[j] = d[j], d[i] }
func (d *deadlines) Push(x any)   { *d = append(*d, x.(deadline)) }
func (d *deadlines) Pop() any {
	last := len(*d) - 1
	x := (*d)[last]
	*d = (*d)[:last]
	return x
}

func (d *deadlines) add(x deadline) { pq.Push(d, x) }

// expire rejects what has waited for as long as it may.
func (e *engine) expire(actions []Action) []Action {
	for len(e.deadlines) > 0 && e.deadlines[0].at <= e.now {
		d := pq.Pop(&e.deadlines).(deadline)
		if e.known(d.function) {
			if m, waits := e.waits(d.function, d.id); waits && e.remove(d.function, d.id) {
				actions = append(actions, reject(d.function, m, TooLate))
			}
		}
	}
	return e.changed(actions, "")
}

// waits is an invocation that waits.
func (e *engine) waits(f int32, id int64) (member, bool) {
	for _, m := range e.waitingFor(f) {
		if m.id == id {
			return m, true
		}
	}
	return member{}, false
}

// wake is when to decide again although nothing happens.
func (e *engine) wake() time.Duration {
	at := e.order.wake()
	if !e.config.Live {
		return at
	}
	if len(e.deadlines) > 0 {
		at = min(at, e.deadlines[0].at)
	}
	at = min(at, e.pool.Expire(e.now))
	for _, f := range e.kept {
		if all, _ := e.pool.Count(f); all < int(e.functions[f].Min) && e.states[f].barred > e.now {
			at = min(at, e.states[f].barred)
		}
	}
	return at
}
