package queue

import (
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// order says which function goes next. The engine tells it of every change of
// a function's queue; a function is in the order exactly while it waits.
type order interface {
	// joined: an invocation came to the function's queue.
	joined(now time.Duration, function int32)
	// next is the function that goes next, of one or more that wait.
	next(now time.Duration) choice
	// left: the oldest invocation of the function was dispatched.
	left(now time.Duration, function int32, at residency.Place, expected time.Duration)
	// ended: an invocation of the function completed.
	ended(now time.Duration, function int32, executed time.Duration)
}

// follower is an order that looks at what is on GPUs.
type follower interface {
	// moved: what the function would find there changed.
	moved(function int32)
}

// choice is a function, the GPUs it may use, and why it was chosen.
type choice struct {
	function     int32
	only, except int32 // as residency.Pool.Best takes them
	placed       bool  // the order chose the place itself
	at           residency.Place
	reason       Reason
}

// anywhere is a choice that leaves the GPU open.
func anywhere(function int32, rule string, value float64) choice {
	return choice{function: function, only: residency.Any, except: residency.Any, reason: Reason{Rule: rule, Value: value}}
}

// engine runs an order on a pool of containers: what all policies but lb, lalb
// and exclusive share.
type engine struct {
	functions []Function
	queues    *waiting
	pool      *residency.Pool
	order     order
	follower  follower // the order, if it is one
	last      int64    // the invocation dispatched last
	batches   *batches // of the batch policy alone
	adaptive  *adaptive
	prefetch  bool
}

// Step applies events and dispatches.
func (e *engine) Step(now time.Duration, events []Event, actions []Action) []Action {
	for i := range events {
		switch ev := &events[i]; ev.Kind {
		case Completed:
			actions = e.completed(now, ev, actions)
		case Arrived:
			if !e.pool.Fits(ev.Function) {
				actions = append(actions, reject(ev))
				continue
			}
			e.queues.push(ev.Function, ev.ID, ev.At)
			e.order.joined(now, ev.Function)
			if e.prefetch && e.queues.queues[ev.Function].len == 1 {
				actions = e.anticipate(now, ev.Function, actions)
			}
		case Used:
			if e.adaptive != nil {
				e.pool.SetSlots(ev.GPU, e.adaptive.sample(ev.GPU, ev.Busy))
			}
		}
	}
	if e.batches != nil {
		actions = e.goOn(now, actions)
	}
	for e.queues.total > 0 && e.pool.Free() > 0 {
		c := e.order.next(now)
		if c.function < 0 {
			break // all that could go had better wait
		}
		at, ok := c.at, c.placed
		if !ok {
			at, ok = e.pool.Best(c.function, c.only, c.except)
		}
		if !ok {
			break // it waits, and nothing overtakes it (R10)
		}
		actions = e.start(now, c, at, actions)
	}
	return actions
}

// anticipate brings back the memory of a container that an invocation will
// want, where there is room or what is there is not wanted (section 4.3).
func (e *engine) anticipate(now time.Duration, f int32, actions []Action) []Action {
	gpu, container, ok := e.pool.Prefetch(f, now+e.functions[f].Load)
	actions = e.changed(actions)
	if ok {
		actions = append(actions, Action{Kind: Prefetch, Function: f, GPU: gpu, Container: container,
			Reason: Reason{Rule: "its queue became active"}})
	}
	return actions
}

func reject(ev *Event) Action {
	return Action{Kind: Reject, Function: ev.Function, ID: ev.ID, Arrived: ev.At, GPU: none, Container: none,
		Reason: Reason{Rule: "larger than the memory of a GPU"}}
}

func (e *engine) start(now time.Duration, c choice, at residency.Place, actions []Action) []Action {
	q := &e.queues.queues[c.function]
	c.reason.Waiting, c.reason.InFlight = q.len, q.inFlight
	container := e.pool.Begin(c.function, at)
	actions = append(e.changed(actions), Action{Kind: Run, Start: at.Start, Function: c.function, GPU: at.GPU, Container: container,
		Expected: e.pool.Duration(c.function, at.Start), Reason: c.reason})
	if e.prefetch && at.Start == residency.GPUWarm {
		actions[len(actions)-1].Expected += max(e.pool.Ready(container)-now, 0)
	}
	run := &actions[len(actions)-1]
	run.ID, run.Arrived = e.queues.pop(c.function)
	e.last = run.ID
	q.inFlight++
	if e.batches != nil {
		e.take(container, c.function, at.GPU)
	}
	e.order.left(now, c.function, at, run.Expected)
	return actions
}

func (e *engine) completed(now time.Duration, ev *Event, actions []Action) []Action {
	e.queues.queues[ev.Function].inFlight--
	if o, ok := e.order.(*gfaas); ok {
		o.over(ev.Function, ev.GPU, ev.ID)
	}
	e.order.ended(now, ev.Function, ev.Executed)
	if e.batches != nil && e.batches.goesOn(ev) {
		e.pool.Trim(ev.GPU)
	} else {
		e.pool.End(ev.Container)
		if e.follower != nil {
			e.follower.moved(ev.Function)
		}
	}
	return e.changed(actions)
}

// changed tells what left a GPU.
func (e *engine) changed(actions []Action) []Action {
	changes := e.pool.Changes()
	if e.follower != nil {
		for _, c := range changes {
			e.follower.moved(c.Function)
		}
	}
	return appendChanges(actions, changes)
}

// appendChanges turns what left a GPU into actions.
func appendChanges(actions []Action, changes []residency.Change) []Action {
	for _, c := range changes {
		kind := Offload
		if c.Removed {
			kind = Remove
		}
		actions = append(actions, Action{Kind: kind, Function: c.Function, GPU: c.GPU, Container: c.Container,
			Reason: Reason{Rule: "first in eviction order"}})
	}
	return actions
}
