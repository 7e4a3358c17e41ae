package queue

import (
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// order is the part of a policy that chooses the function that goes next. The engine
// reports every change to it. A function takes part from began until ceased, or until left
// if no further invocation of it waits. Orders that need few of the methods embed ordinary.
type order interface {
	// shape adapts the configuration of the pool of instances to the order.
	shape(c *residency.Config)
	// grow reports the numbers of functions, of GPUs, and of slots on all GPUs.
	grow(functions, gpus, slots int)
	// changed reports a new function, or new costs or a new weight of one.
	changed(function int32)
	// forget reports that the function is removed. Its number can be used again.
	forget(function int32)
	// closed reports that the GPU is removed.
	closed(gpu int32)

	// The next five methods keep the waiting invocations. push adds a new one. take
	// removes and returns the one that next chose. drop removes the one with that id, and
	// reports whether it was waiting. putBack returns one that take had removed to its
	// place. list returns all of a function, oldest first.
	push(now time.Duration, function int32, m member)
	take(function int32) member
	drop(function int32, id int64) bool
	putBack(function int32, m member)
	list(function int32) []member

	// began reports that the function may go next from now on. afresh is false if the engine
	// had only set it aside during this step.
	began(now time.Duration, function int32, afresh bool)
	// grew reports that the number of its waiting invocations changed, but not to 0.
	grew(function int32)
	// ceased reports that it must not go next, whether invocations of it wait or not.
	ceased(function int32)
	// opened reports that all events of this instant have been reported.
	opened(now time.Duration)
	// plans reports whether next is to be called even if every GPU is full.
	plans() bool
	// next fills in the choice. It returns false if all functions should wait.
	next(now time.Duration, c *choice) bool
	// left reports that the invocation which take returned was dispatched.
	left(now time.Duration, function int32, r *run)
	// ended reports that the invocation ended. executed is the time to charge for it: how
	// long it was executed, or an assumed time.
	ended(now time.Duration, function int32, r *run, executed time.Duration)
	// freed reports that an instance of the function is idle, or was removed.
	freed(function, gpu int32)
	// moved reports that the function may have another kind of start on the GPU now.
	moved(function, gpu int32)
	// wake returns when to decide again even if nothing happens.
	wake() time.Duration
	// why returns the reason why a function with waiting invocations does not go; empty if
	// only others go first.
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

// anywhere chooses a function, and leaves the GPU to the engine. It returns true.
func (c *choice) anywhere(function int32, rule string, value float64) bool {
	*c = choice{}
	c.function, c.only, c.except = function, residency.Any, residency.Any
	c.reason.Rule, c.reason.Value = rule, value
	return true
}

// on chooses a function, and a place for it. It returns true.
func (c *choice) on(function int32, at residency.Place, rule string, value float64) bool {
	c.anywhere(function, rule, value)
	c.placed, c.at = true, at
	return true
}

// ordinary has the methods of an order that keeps the invocations of a function in a queue
// and takes the oldest first. Reports that most orders do not need have no effect.
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
