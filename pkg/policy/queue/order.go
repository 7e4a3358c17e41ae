package queue

import (
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// order says which function goes next. The engine tells it of every change; a
// function is in the order from began to ceased, or to left when that was its
// last. Orders that need little of this embed ordinary.
type order interface {
	// shape has the pool of instances behave as the order needs it to.
	shape(c *residency.Config)
	// grow: there are that many functions and GPUs, and slots on all GPUs.
	grow(functions, gpus, slots int)
	// changed: the function's costs or weight are others, or it is new.
	changed(function int32)
	// forget: the function's number will be another's.
	forget(function int32)
	// closed: the GPU takes no more.
	closed(gpu int32)

	// push, take, drop, putBack and list keep the invocations that wait: one that came;
	// the one that next chose; one that is somewhere among them, if it is; one that
	// had gone, where it was; and all of a function, oldest first.
	push(now time.Duration, function int32, m member)
	take(function int32) member
	drop(function int32, id int64) bool
	putBack(function int32, m member)
	list(function int32) []member

	// began: the function waits and did not; afresh says that nothing held it up
	// before.
	began(now time.Duration, function int32, afresh bool)
	// grew: more or fewer of its invocations wait, but some.
	grew(function int32)
	// ceased: it is not to go next, whether any wait or not.
	ceased(function int32)
	// opened: what happened at this instant has been told.
	opened(now time.Duration)
	// plans: next is to be called even though every GPU is full.
	plans() bool
	// next fills in the function that goes next; false if all had better wait.
	next(now time.Duration, c *choice) bool
	// left: the invocation that take gave runs.
	left(now time.Duration, function int32, r *run)
	// ended: it ended. Executed is how long it was executed, or what it is to be
	// taken to have been.
	ended(now time.Duration, function int32, r *run, executed time.Duration)
	// freed: its instance is free, or gone.
	freed(function, gpu int32)
	// moved: what the function would find on the GPU changed.
	moved(function, gpu int32)
	// wake is when to decide again although nothing happened.
	wake() time.Duration
	// why a function of which invocations wait does not go; empty if it is only
	// that others go first.
	why(function int32) string
}

// choice is a function, the GPUs it may use, and why it was chosen.
type choice struct {
	function     int32
	only, except int32 // as residency.Pool.Best takes them
	placed       bool  // the order chose the place itself
	taken        bool  // the invocation is out of its queue already
	assigned     bool  // it is only to wait for that place; the invocation is member
	elsewhere    bool  // Run: a false miss
	at           residency.Place
	member       member
	reason       Reason
}

// anywhere chooses a function, and leaves the GPU open. It is true.
func (c *choice) anywhere(function int32, rule string, value float64) bool {
	*c = choice{}
	c.function, c.only, c.except = function, residency.Any, residency.Any
	c.reason.Rule, c.reason.Value = rule, value
	return true
}

// on chooses a function, and a place for it. It is true.
func (c *choice) on(function int32, at residency.Place, rule string, value float64) bool {
	c.anywhere(function, rule, value)
	c.placed, c.at = true, at
	return true
}

// ordinary is what most orders do: an invocation is its function's oldest.
type ordinary struct{ queues *waiting }

func (o ordinary) push(_ time.Duration, f int32, m member)       { o.queues.push(f, m) }
func (o ordinary) take(f int32) member                           { return o.queues.pop(f) }
func (o ordinary) drop(f int32, id int64) bool                   { return o.queues.drop(f, id) }
func (o ordinary) putBack(f int32, m member)                     { o.queues.putBack(f, m) }
func (o ordinary) list(f int32) []member                         { return o.queues.list(f) }
func (ordinary) shape(*residency.Config)                         {}
func (ordinary) changed(int32)                                   {}
func (ordinary) forget(int32)                                    {}
func (ordinary) closed(int32)                                    {}
func (ordinary) opened(time.Duration)                            {}
func (ordinary) plans() bool                                     { return false }
func (ordinary) freed(int32, int32)                              {}
func (ordinary) moved(int32, int32)                              {}
func (ordinary) wake() time.Duration                             { return Never }
func (ordinary) why(int32) string                                { return "" }
func (ordinary) ended(time.Duration, int32, *run, time.Duration) {}
