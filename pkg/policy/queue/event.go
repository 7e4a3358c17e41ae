package queue

import (
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// Event is a pointer to one of the types below. Policies keep no pointer to an event after Step,
// so callers may reuse the memory. Events about an unknown invocation, or about an instance that
// was lost, have no effect.
type Event interface{ event() }

// Arrived adds an invocation. Later invocations have larger IDs.
type Arrived struct {
	Function int32
	ID       int64
	At       time.Duration // may be earlier than the step
	// Deadline is the time until which the invocation may wait, not counting the time during
	// which instances of its function start. 0 means no limit.
	Deadline time.Duration
	// Bound reports that the invocation is to run on Instance, as long as that lives (see bindings). Bound
	// invocations never start an instance before.
	Bound    bool
	Instance residency.ID
}

// Cancelled removes an invocation because its caller disconnected. If the invocation was
// dispatched, Completed or Failed follows.
type Cancelled struct {
	Function int32
	ID       int64
}

// Started reports that the instance of an invocation has started, and that the invocation runs.
type Started struct {
	Function int32
	Instance residency.ID
	ID       int64
}

// Execution describes the end of a dispatched invocation.
type Execution struct {
	Function int32
	Instance residency.ID
	ID       int64
	Executed time.Duration // from the dispatch to the end, without the start if there was one
}

// Sized reports that an invocation, which was dispatched, is expected to execute Times as long as usual
// invocations of its function do, for example because it is a request with many inferences.
type Sized struct {
	Function int32
	Instance residency.ID
	ID       int64
	Times    float64 // above 0
}

// Completed reports that an invocation was executed.
type Completed struct{ Execution }

// Failed reports that an invocation was not executed.
type Failed struct {
	Execution
	Starting    bool // the instance failed to start, and is lost
	OutOfMemory bool // Starting: the GPU had too little memory
	Requeue     bool // the invocation may run again, and returns to its place in the queue
	// Deadline, if Requeue is set, is the new deadline, as in Arrived; 0 keeps the old one.
	Deadline time.Duration
}

// Woke reports that the time of the last Wake action has been reached.
type Woke struct{}

// FunctionSet adds or changes a function.
type FunctionSet struct {
	Function int32
	Spec     Function
	// Renew reports that the function has a new version. The policy stops idle instances at once
	// and busy ones when they become idle, cancels starts, and forgets failed starts.
	Renew bool
}

// FunctionRemoved removes a function. Its waiting invocations run on instances that have started,
// or are rejected. Its number may be reused after the action Forget.
type FunctionRemoved struct{ Function int32 }

// Learned updates a function's Warm, Cold, Load, BatchSlope and MeasuredMem from Spec. If Class is not 0, it only
// sets Warm, Cold and Load for GPUs of that class, until FunctionSet has Renew set. If Only is not 0, it
// does so for the GPU with the number Only - 1, for which its class no longer counts; with durations of 0 in
// Spec, it counts again.
type Learned struct {
	Function int32
	Spec     Function
	Class    int32
	Only     int32
}

// GPUSet adds or changes a GPU.
type GPUSet struct {
	GPU   int32
	Slots int   // invocations that it runs at once (D); policies with OneAtATime use 1
	Mem   int64 // bytes; 0 means no limit
	Class int32 // GPUs of a class run a function equally fast, see Learned
}

// GPURemoved closes a GPU to new invocations. Lost and Failed report the losses.
type GPURemoved struct{ GPU int32 }

// Used reports the utilization of a GPU to policies that adapt D.
type Used struct {
	GPU  int32
	Busy float64 // 0 to 1
}

// Occupied reports the total memory on a GPU of instances that span it and were Adopted on
// another GPU.
type Occupied struct {
	GPU int32
	Mem int64 // bytes
}

// Ready reports that an instance has started, after the action Start or after Adopted with
// Starting.
type Ready struct {
	Function int32
	Instance residency.ID
	Warm     time.Duration // as in Adopted
	Batch    int32         // as in Adopted
}

// Adopted adds an instance that already runs. Its ID is less than residency.None. For a Pinned instance that is known and
// has started, it only changes Batch.
type Adopted struct {
	Function int32
	GPU      int32
	Instance residency.ID
	To       residency.Start // GPUWarm or HostWarm: the place of its memory
	Mem      int64           // bytes that it was promised; 0 means its function's Mem
	// Pinned reports that the instance belongs to a plan. The policy uses it before all others,
	// counts no slot for it, and neither stops nor moves it while its function and GPU exist.
	Pinned   bool
	Starting bool // Pinned: it has not started; Ready or Lost follows
	// Warm, for a Pinned instance, is the duration of an invocation on it; 0 means its function's
	// Warm.
	Warm time.Duration
	// Batch, for a Pinned instance of a function that BatchesItself, is the number of invocations
	// that it runs at once; 0 and 1 mean its function's Inflight.
	Batch int32
}

// Lost reports that an instance has ended, whether a Remove asked for it or not.
type Lost struct {
	Function    int32
	Instance    residency.ID
	OutOfMemory bool // the start failed because the GPU had too little memory
}

// Moved reports that an Offload or a Prefetch has ended.
type Moved struct {
	Function int32
	Instance residency.ID
	To       residency.Start // GPUWarm or HostWarm
	Failed   bool            // the move failed
}

// StartRequested asks for an instance of a function on a GPU that the caller has chosen. The action
// Start answers it. There is no answer if the function may have no more instances, or if the instance
// would need an eviction.
type StartRequested struct {
	Function int32
	GPU      int32
}

// Sliced reports that an instance has another slice than its function's Slice: the share of its GPU
// that it takes while it runs, at most 1. It holds from the next invocation on.
type Sliced struct {
	Function int32
	Instance residency.ID
	Slice    float64
}

// Retired reports that an instance is no longer needed. It takes no further invocation, and stops as
// soon as it is idle. An instance of a plan stays.
type Retired struct {
	Function int32
	Instance residency.ID
}

// Measured reports the memory use of an instance.
type Measured struct {
	Function int32
	Instance residency.ID
	Mem      int64 // bytes on the GPU
	Residual int64 // the part of Mem that remains on the GPU while the instance is on the host
}

func (*Arrived) event()         {}
func (*Cancelled) event()       {}
func (*Started) event()         {}
func (*Sized) event()           {}
func (*Completed) event()       {}
func (*Failed) event()          {}
func (*Woke) event()            {}
func (*FunctionSet) event()     {}
func (*FunctionRemoved) event() {}
func (*Learned) event()         {}
func (*GPUSet) event()          {}
func (*GPURemoved) event()      {}
func (*Used) event()            {}
func (*Occupied) event()        {}
func (*Ready) event()           {}
func (*Adopted) event()         {}
func (*Lost) event()            {}
func (*Moved) event()           {}
func (*StartRequested) event()  {}
func (*Sliced) event()          {}
func (*Retired) event()         {}
func (*Measured) event()        {}
