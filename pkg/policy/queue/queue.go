// Package queue decides which invocation runs next, and on which GPU. It implements thirteen
// policies behind one interface, from first come, first served to MQFQ-Sticky, LALB and
// CFS-affinity.
//
// A Policy receives events and returns actions. It does no I/O and reads no clock, so the
// simulator (pkg/sim) and the daemons (pkg/daemon/gateway, pkg/daemon/kernel) run the same code.
//
//   - Every change is an event. Functions and GPUs are added and removed, costs are learned, starts
//     and moves take time and may fail, and callers disconnect.
//   - Functions and GPUs are numbers. Numbers assigns them to function names.
//   - The engine keeps the functions, the queues and the invocations in flight. A residency.Pool
//     keeps the instances. Each policy adds an order, which chooses the next function.
//
// Comments refer to the rules R1 to R34 of docs/simulation.md. Config and Kind list the policies
// and their parameters with the papers' names.
package queue

import (
	"math"
	"time"

	"github.com/gfaas/gfaas/pkg/policy"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// Policy schedules invocations. The caller reports the completions of an instant before its
// arrivals (R1).
type Policy = policy.Stepper[Event, Action, Snapshot]

// ActionKind is a kind of action.
type ActionKind uint8

// The kinds of action.
const (
	Run      ActionKind = iota // run ID on Instance now; start the instance first if it does not exist yet
	Reject                     // ID will not run; see Reason
	Assign                     // ID now waits for that GPU only (LALB)
	Remove                     // stop an idle instance, or cancel its start: invocations that Run sent there wait again. Lost confirms it
	Offload                    // move an idle instance's memory to the host; Moved confirms it, unless a Run or a Prefetch of the instance precedes that
	Prefetch                   // move an idle instance's memory to the GPU; Moved confirms it
	Wake                       // send a Woke event at the time At; send none if At is Never
	Start                      // start an instance that has no invocation yet; Ready or Lost follows
	Forget                     // the engine keeps no more state for Function
)

func (k ActionKind) String() string {
	return [...]string{"run", "reject", "assign", "remove", "offload", "prefetch", "wake", "start", "forget"}[k]
}

// Never is the time of a Wake that the caller need not deliver.
const Never = time.Duration(math.MaxInt64)

// Action is an operation for the caller to perform, with its reason.
type Action struct {
	Kind      ActionKind
	Start     residency.Start // Run: the expected kind of start
	FalseMiss bool            // Run: a false miss: another GPU has the model cached (R18)
	Function  int32
	GPU       int32
	Instance  residency.ID
	ID        int64
	Arrived   time.Duration // Run, Reject, Assign: the arrival time of the invocation
	Expected  time.Duration // Run: the expected duration, including starting and loading
	At        time.Duration // Wake
	Reason    Reason
}

// Confirmation returns the event with which the caller confirms the action, for callers that
// start, move and stop instances in no time. It reports whether the action needs such an event.
func (a *Action) Confirmation() (e Event, needed bool) {
	switch a.Kind {
	case Start:
		return &Ready{Function: a.Function, Instance: a.Instance}, true
	case Remove:
		return &Lost{Function: a.Function, Instance: a.Instance}, true
	case Offload:
		return &Moved{Function: a.Function, Instance: a.Instance, To: residency.HostWarm}, true
	case Prefetch:
		return &Moved{Function: a.Function, Instance: a.Instance, To: residency.GPUWarm}, true
	case Run, Reject, Assign, Wake, Forget:
	}
	return nil, false
}

// Function describes a function to a policy.
type Function struct {
	Warm, Cold, Load time.Duration
	Mem              int64 // bytes on the GPU
	MeasuredMem      int64 // see residency.Function
	Weight           float64
	// Model is 1 plus the number of a function with the same model: under lb, lalb and lalb-o3,
	// invocations may also use that function's instances, like the simulator's caches of models
	// (R18). 0 means only the function's own instances.
	Model  int32
	Tenant int32
	Queue  int32 // limit on waiting invocations; 0 means no limit

	// The next fields are those of residency.Function.
	Inflight, Min, Max int32
	Slice              float64
	Idle               time.Duration
	Placed             bool

	BatchesItself bool // a planned instance runs Adopted.Batch invocations at once, if that is above 1

	// Batches, with Inflight above 1, makes the instances run batches (see batching). Without it,
	// invocations join a running instance only while no other invocation needs a slot, as in records of
	// earlier releases.
	Batches     bool
	BatchWindow time.Duration // how long invocations join a batch although others wait for another instance
	// BatchSlope is how much longer the invocations of a batch take for each further one that executes: with
	// n of them, each takes 1 + BatchSlope × (n - 1) times as long as alone (R33).
	BatchSlope float64

	Name string // for Snapshot
}

// durations returns the duration of an invocation for each kind of start (R5).
func (f *Function) durations() [3]time.Duration {
	return [3]time.Duration{residency.Cold: f.Cold, residency.HostWarm: f.Warm + f.Load, residency.GPUWarm: f.Warm}
}

// resident returns the description of the function for residency.Pool.
func (f *Function) resident() residency.Function {
	return residency.Function{
		Duration: f.durations(), Mem: f.Mem, MeasuredMem: f.MeasuredMem, Inflight: int(f.Inflight), Slice: f.Slice, Min: int(f.Min), Max: int(f.Max), Idle: f.Idle, Placed: f.Placed,
		Tenant: f.Tenant}
}
