package queue

import (
	"iter"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/reason"
)

// view is the part of the engine that orders read. Orders change only the queues.
type view struct {
	config    Config
	now       time.Duration
	functions []Function
	classes   bool // durations may depend on the GPU
	// anyBatches reports whether the instances of some function run batches.
	anyBatches bool
	ranUntil   []time.Duration // by function: the end of its last invocation
	queues     *waiting
	slots      []int     // by GPU: concurrent invocations; 0 if the GPU is closed
	pool       instances // nil until the order has adapted the pool's configuration
	evict      evictor   // used by orders that give whole GPUs to functions
}

// warmOn returns the expected duration of a gpu-warm invocation on a GPU.
func (v *view) warmOn(f, gpu int32) time.Duration {
	if !v.classes {
		return v.functions[f].Warm
	}
	return v.pool.DurationOn(f, gpu, residency.GPUWarm)
}

// open reports whether a GPU accepts invocations.
func (v *view) open(gpu int32) bool { return gpu >= 0 && int(gpu) < len(v.slots) && v.slots[gpu] > 0 }

// known reports whether a function accepts invocations.
func (v *view) known(f int32) bool {
	return f >= 0 && int(f) < len(v.queues.queues) && v.queues.queues[f].known
}

// instances lists the methods of residency.Pool that orders read from.
type instances interface {
	Free(gpu int32) bool
	EachFree(yield func(gpu int32) bool)
	MaxFreeMem() int64
	Best(function, only, except int32) (residency.Place, bool)
	Cheapest(function int32) (at residency.Place, loss float64, ok bool)
	Warm(function int32) iter.Seq[int32]
	PlaceOn(function, gpu int32) residency.Place
	Expected(function int32) time.Duration
	Blocked(function, waiting int32) bool
	DurationOn(function, gpu int32, start residency.Start) time.Duration
	Capped(function int32) bool
	TenantAllows(function int32) bool
	MightFit(function int32, most int64) bool
	FitsOn(gpu, function int32) bool
	Room(gpu, function int32) bool
	Serves(function, gpu int32) bool
	Obsolete(instance int32) bool
	Running(function int32) bool
}

// batches reports whether the instances of a function run batches.
func (v *view) batches(f int32) bool { return v.functions[f].Batches && v.functions[f].Inflight > 1 }

// evictor lists the methods of residency.Pool with which exclusive removes instances.
type evictor interface {
	Clear(gpu int32)
	Dismiss(function, gpu int32)
}

// order is the part of a policy that chooses the next function. The engine reports every change
// to it. A function is active, which means that next may choose it, from activated until
// deactivated, or until dispatched if it has no further waiting invocation. Orders that need few
// of the methods embed ordinary.
type order interface {
	// shape adapts the configuration of the pool of instances to the order.
	shape(c *residency.Config)
	// grow reports the numbers of functions and GPUs, and the total number of slots.
	grow(functions, gpus, slots int)
	// changed reports that a function was added, or that its costs or weight changed.
	changed(function int32)
	// forget reports that a function was removed and that its number may be reused.
	forget(function int32)
	// gpuRemoved reports that the GPU is closed.
	gpuRemoved(gpu int32)

	// The next five methods store the waiting invocations. push adds a new one. pop removes and
	// returns the invocation that next chose. drop removes the invocation with that ID, and
	// reports whether it was waiting. requeue returns an invocation that pop removed to its
	// place. list returns all invocations of a function, oldest first.
	push(now time.Duration, function int32, m member)
	pop(function int32) member
	drop(function int32, id int64) bool
	requeue(function int32, m member)
	list(function int32) []member

	// activated reports that next may choose the function from now on. afresh is false if the
	// engine had only set the function aside during this step.
	activated(now time.Duration, function int32, afresh bool)
	// resized reports that the number of its waiting invocations changed, but not to 0.
	resized(function int32)
	// deactivated reports that next must not choose the function, even if invocations wait.
	deactivated(function int32)
	// advanced reports that all events of this instant have been reported.
	advanced(now time.Duration)
	// reserves reports whether next may choose a busy GPU for later. The engine then calls next
	// even if every GPU is full.
	reserves() bool
	// next fills in the choice. It returns false if every function should wait.
	next(now time.Duration, c *choice) bool
	// expects reports that the expected end of a dispatched invocation has changed. end is that of all
	// invocations on its instance.
	expects(now time.Duration, r *run, end time.Duration)
	// dispatched reports that the engine dispatched the invocation that pop returned.
	dispatched(now time.Duration, function int32, r *run)
	// finished reports that the invocation completed, failed or was requeued. executed is the time
	// to charge for it, measured or assumed.
	finished(now time.Duration, function int32, r *run, executed time.Duration)
	// freed reports that an instance of the function is idle, or was removed.
	freed(function, gpu int32)
	// moved reports that the kind of start that the function would have on the GPU may have
	// changed.
	moved(function, gpu int32)
	// relocations returns the functions whose memory should move to the host ahead of need, and those
	// whose memory should return, according to the changes since the last call.
	relocations() (out, back []int32)
	// wake returns the time at which to decide again even without an event.
	wake() time.Duration
	// since returns the arrival time of the oldest waiting invocation of a function.
	since(function int32) time.Duration
	// prefers reports whether next may prefer functions for other reasons than the times of arrival or
	// of execution. The engine then sets a function whose instances run batches aside, if another one has waited
	// longer, and for the batch window.
	prefers() bool
	// isThrottled reports whether next must not choose the function now, although its invocations wait.
	isThrottled(function int32) bool
	// reason explains why a function with waiting invocations is not dispatched. It returns the zero
	// Reason if the only reason is that others go first.
	reason(function int32) reason.Reason
}

// choice is the decision of an order: a function, the GPUs that it may use, and the reason.
type choice struct {
	function     int32
	only, except int32 // arguments for residency.Pool.Best
	placed       bool  // at is set: the order chose the place itself
	popped       bool  // the invocation was removed from its queue already
	assigned     bool  // only assign member to the GPU of at, where it waits
	falseMiss    bool  // Run: a false miss
	at           residency.Place
	member       member
	reason       Reason
}

// anywhere chooses a function and leaves the GPU to the engine. value is that of the code's
// parameter, if it has one. It returns true.
func (c *choice) anywhere(function int32, code reason.Code, value float64) bool {
	*c = choice{}
	c.function, c.only, c.except = function, residency.Any, residency.Any
	c.reason.Code, c.reason.Value = code, value
	return true
}

// on chooses a function and its place. It returns true.
func (c *choice) on(function int32, at residency.Place, code reason.Code, value float64) bool {
	c.anywhere(function, code, value)
	c.placed, c.at = true, at
	return true
}

// ordinary implements methods of order for orders that keep the invocations of each function in a
// queue and dispatch the oldest first. Its reporting methods do nothing.
type ordinary struct{ queues *waiting }

func (o ordinary) push(_ time.Duration, f int32, m member)          { o.queues.push(f, m) }
func (o ordinary) pop(f int32) member                               { return o.queues.pop(f) }
func (o ordinary) drop(f int32, id int64) bool                      { return o.queues.drop(f, id) }
func (o ordinary) requeue(f int32, m member)                        { o.queues.requeue(f, m) }
func (o ordinary) list(f int32) []member                            { return o.queues.list(f) }
func (o ordinary) since(f int32) time.Duration                      { return o.queues.since(f) }
func (ordinary) prefers() bool                                      { return false }
func (ordinary) isThrottled(int32) bool                             { return false }
func (ordinary) shape(*residency.Config)                            {}
func (ordinary) changed(int32)                                      {}
func (ordinary) forget(int32)                                       {}
func (ordinary) gpuRemoved(int32)                                   {}
func (ordinary) advanced(time.Duration)                             {}
func (ordinary) reserves() bool                                     { return false }
func (ordinary) expects(time.Duration, *run, time.Duration)         {}
func (ordinary) freed(int32, int32)                                 {}
func (ordinary) moved(int32, int32)                                 {}
func (ordinary) relocations() (out, back []int32)                   { return nil, nil }
func (ordinary) wake() time.Duration                                { return Never }
func (ordinary) reason(int32) reason.Reason                         { return reason.Reason{} }
func (ordinary) finished(time.Duration, int32, *run, time.Duration) {}
