// Package queue decides which invocation goes next and where: thirteen policies
// behind one interface, from first come first served to MQFQ-Sticky, LALB and
// CFS-affinity. A policy turns what happened into what to do; it does no I/O
// and knows no clock, so that the simulator and a gateway run the same bytes.
//
// Functions and GPUs come and go, costs are learned, starts and moves take time
// and fail, callers leave: all of that is events. Functions and GPUs are numbers
// here; Numbers keeps those of functions by name for whoever drives a policy.
//
// The rules R1 to R20 that comments name are those of docs/simulation.md.
package queue

import (
	"math"
	"time"

	"github.com/gfaas/gfaas/pkg/policy"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// Policy decides. Completions come before arrivals of the same instant (R1).
type Policy = policy.Stepper[Event, Action, Snapshot]

// EventKind says what happened.
type EventKind uint8

// The kinds of event, and what they carry. Of an invocation that nobody knows,
// or of an instance that is gone, they change nothing.
const (
	Completed    EventKind = iota // ID ran on Instance to its end; Executed
	Failed                        // ID did not: Executed, Starting, Short, Again and then Deadline
	Started                       // ID's start is over, it executes now
	Cancelled                     // ID's caller left: it waits no more; what runs goes on to Completed or Failed
	Arrived                       // ID of Function came; At, Deadline
	Woke                          // the time of the last Wake has come
	Used                          // how busy GPU was, for policies that adapt D
	FunctionSet                   // Function is as Spec says from now on
	FunctionGone                  // Function is removed: what waits goes to instances that have started, or is rejected; Forget says when its number is free
	Learned                       // Function's Warm, Cold, Load and Need are as in Spec
	GPUSet                        // GPU is there, as Machine says
	GPUGone                       // GPU takes no more; what is lost with it, Lost and Failed say
	Ready                         // Instance, which a Start asked for or which was Adopted while it was Starting, is ready; Spec as in Adopted
	Adopted                       // Instance (named below residency.None) of Function on GPU was found running; To: where its memory is; Mem: what it was promised, 0 for what its function asks for
	Lost                          // Instance is no more, asked for or not; Short
	Moved                         // Instance's memory went To, or, with Fault, it did not
	Occupied                      // Mem bytes of GPU are taken in all by instances that span it and are known (Adopted) on another
	Measured                      // Instance takes Mem bytes of its GPU, of which Stays stay there when its memory is moved to the host
)

// Event is something that happened.
type Event struct {
	Kind     EventKind
	Starting bool            // Failed: the instance could not be started, and is gone; Adopted and Pinned: it is not ready yet, Ready or Lost follows
	Short    bool            // Failed and Starting, Lost: it could not be started because its GPU had too little memory
	Again    bool            // Failed: it may run again, and waits where it was
	Fault    bool            // Moved: it could not move
	Renew    bool            // FunctionSet: it is another version: instances that there are stop when they have nothing to do, starts are cancelled, and failures are forgotten
	Pinned   bool            // Adopted: a plan's, used first, beside all slots, and neither stopped nor moved while its function and GPU are there
	To       residency.Start // Moved, Adopted: GPUWarm or HostWarm
	Function int32
	GPU      int32
	Instance residency.ID
	ID       int64         // ids of invocations grow
	At       time.Duration // Arrived: when, which may be earlier
	// Deadline is, for Arrived and Failed, until when an invocation may wait, not counting
	// the time while instances of its function start. 0 is for ever, and after a start
	// that failed the deadline that it had.
	Deadline time.Duration
	// Executed is how long an invocation took from its dispatch to its end, less
	// the start where there was one.
	Executed time.Duration
	Busy     float64   // Used: 0 to 1
	Mem      int64     // Occupied, Measured, Adopted
	Stays    int64     // Measured
	Spec     *Function // FunctionSet, Learned; Adopted and Pinned: its Warm is that of this instance, nil is the function's
	Machine  *GPU      // GPUSet
}

// GPU is what a policy knows of a GPU.
type GPU struct {
	Slots int   // invocations that it runs at once (D); policies that run one at a time run one
	Mem   int64 // bytes; 0 is no limit
}

// ActionKind says what to do.
type ActionKind uint8

// The kinds of action.
const (
	Run      ActionKind = iota // run ID on Instance now; one that is not there yet is started for it
	Reject                     // ID is not run; see Reason
	Assign                     // ID waits for that GPU alone from now on (LALB)
	Remove                     // stop an idle instance, or cancel its start: what Run sent there waits again. Lost says when it is gone
	Offload                    // move an idle instance's memory to the host: Moved says when
	Prefetch                   // move an idle instance's memory to the GPU: Moved says when
	Wake                       // come back with a Woke event at the time At; never, if that is Never
	Start                      // start an instance that has nothing to run yet: Ready or Lost
	Forget                     // nothing of Function is left
)

func (k ActionKind) String() string {
	return [...]string{"run", "reject", "assign", "remove", "offload", "prefetch", "wake", "start", "forget"}[k]
}

// Never is the time of a Wake that is not to come.
const Never = time.Duration(math.MaxInt64)

// Action is something to do, and why.
type Action struct {
	Kind      ActionKind
	Start     residency.Start // Run: what the invocation is expected to find
	Elsewhere bool            // Run: a false miss: cached on another GPU (R18)
	Function  int32
	GPU       int32
	Instance  residency.ID
	ID        int64
	Arrived   time.Duration // Run, Reject, Assign: when the invocation came
	Expected  time.Duration // Run: how long it should take, starting and loading included
	At        time.Duration // Wake
	Reason    Reason
}

// Answer returns the event by which a driver that starts, moves and stops instances in no
// time answers an action, and reports whether the action wants one.
func (a *Action) Answer() (e Event, wanted bool) {
	e = Event{Function: a.Function, GPU: a.GPU, Instance: a.Instance}
	switch a.Kind {
	case Start:
		e.Kind = Ready
	case Remove:
		e.Kind = Lost
	case Offload:
		e.Kind, e.To = Moved, residency.HostWarm
	case Prefetch:
		e.Kind, e.To = Moved, residency.GPUWarm
	case Run, Reject, Assign, Wake, Forget:
		return e, false
	}
	return e, true
}

// Reason is why an action is taken: the rule that decided and what it looked
// at. It is a value, so that nobody pays for text that is not printed.
type Reason struct {
	Rule     string
	Waiting  int32   // invocations of the function that wait, this one included
	InFlight int32   // invocations of it that run, without this one
	Value    float64 // what the rule compares: see Rule
}

// The rules by which invocations are rejected.
const (
	TooLarge    = "larger than the memory of a GPU"
	QueueFull   = "its queue is full"
	TooLate     = "it waited for as long as it may"
	NoFunction  = "there is no such function"
	StartFailed = "its function failed to start several times in a row"
)

// Function is what a policy knows of a function.
type Function struct {
	Warm, Cold, Load time.Duration
	Mem              int64 // bytes on the GPU
	Need             int64 // as in residency.Function
	Weight           float64
	// Model is 1 plus the number of the function whose instances an invocation may use
	// too under lb, lalb and lalb-o3, as in the simulator's caches of models (R18); 0 is
	// those of its own function alone.
	Model  int32
	Tenant int32
	Queue  int32 // how many invocations may wait; 0 is no limit

	// These are as in residency.Function.
	Inflight, Min, Max int32
	Slice              float64
	Idle               time.Duration

	Name string // for Snapshot
}

// expected is how long an invocation takes by how it starts (R5).
func (f *Function) expected(how residency.Start) time.Duration {
	switch how {
	case residency.Cold:
		return f.Cold
	case residency.HostWarm:
		return f.Warm + f.Load
	}
	return f.Warm
}

// resident is what a pool has to know.
func (f *Function) resident() residency.Function {
	return residency.Function{
		Duration: [3]time.Duration{residency.Cold: f.Cold, residency.HostWarm: f.Warm + f.Load, residency.GPUWarm: f.Warm},
		Mem:      f.Mem, Need: f.Need, Inflight: int(f.Inflight), Slice: f.Slice, Min: int(f.Min), Max: int(f.Max), Idle: f.Idle}
}
