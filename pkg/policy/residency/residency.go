// Package residency manages the instances of functions on GPUs: which instances exist, on which
// GPU, and whether their memory is on the GPU or on the host. The number of instances and their
// memory are bounded (MQFQ-Sticky, sections 4.2 and 4.3; LALB, section III-D). Its main type,
// Pool, decides where an invocation runs best and which instances make room for it. It does no
// I/O: the caller performs the changes that Changes returns, and calls Pool.Started, Pool.Moved or
// Pool.Lost when they are done. The policies of pkg/policy/queue use it.
//
//  1. An instance belongs to one function and one GPU. Memory that was moved to the host has to
//     return before the instance can run.
//  2. To make room, the pool evicts idle instances only: it moves their memory to the host or
//     stops them. Running and starting instances stay, and so do pinned instances, which another
//     controller starts and stops, such as those of a plan (see Pool.Adopt).
//  3. An invocation begins when the memory of its instance fits beside all memory on the GPU,
//     including memory on its way out. Until then it waits in the GPU's queue, first come, first
//     served.
//
// Comments refer to the rules R4 to R10 of docs/simulation.md.
package residency

import "time"

// Start is the kind of start of an invocation.
type Start uint8

// The kinds of start, from the slowest to the fastest.
const (
	Cold     Start = iota // no instance yet: the pool creates one
	HostWarm              // an instance whose memory is on the host
	GPUWarm               // an instance whose memory is on the GPU
)

func (s Start) String() string { return [...]string{"cold", "host-warm", "gpu-warm"}[s] }

// Function describes a function to the pool.
type Function struct {
	Duration [3]time.Duration // expected duration of an invocation, by Start
	Mem      int64            // bytes that an instance allocates on the GPU, as the function declares
	// MeasuredMem is the number of bytes that earlier instances were measured to use, including memory
	// that they did not allocate themselves, such as contexts; 0 means unknown. A new instance counts
	// for the larger of Mem and MeasuredMem. On a GPU that can never have that much free, it counts for
	// less, but at least for Mem.
	MeasuredMem int64
	Inflight    int // invocations that an instance runs at once; 0 means 1
	// Slice is the share of the GPU's capacity that an instance takes while it runs: its SM share
	// times its quota, at most 1. With 0, it takes the capacity of one of the GPU's slots (see
	// Pool.SetGPU).
	Slice float64
	Min   int // instances to keep
	Max   int // limit on instances; 0 means no limit
	// Idle is the time after which an idle instance beyond Min stops; 0 means never.
	Idle time.Duration
	// Placed reports that the caller places all instances of the function (Pool.StartOn): the pool
	// starts none for an invocation or for Min.
	Placed bool
	Tenant int32 // the owner, for Config.Tenants
}

// Unlimited is the value of Config.Pool for no limit. There, 0 is a limit: an instance stops after
// its invocations.
const Unlimited = -1

// Config holds the settings of a pool.
type Config struct {
	Pool int // limit on the instances of a GPU, running ones included, or Unlimited
	// UsesClear must be set if the caller uses Pool.Clear. The pool then keeps a list of the idle
	// instances of each GPU, which it otherwise needs only to enforce the limit Pool.
	UsesClear bool
	// NoHost makes the pool stop an instance instead of moving its memory to the host.
	NoHost bool
	// Tenants bounds the instances of each tenant on all GPUs together.
	Tenants TenantLimits
	// MayStart reports whether an instance of a function may be started on a GPU without an
	// invocation. nil permits all.
	MayStart func(function, gpu int32) bool
	// Starting, unless nil, is called when the number of starts of a function's instances that are in
	// progress changes from 0 to 1, and when it changes back to 0.
	Starting func(function int32, inProgress bool)
	// Worth returns what it is worth to keep an instance of a function, or its memory, on a GPU (R27):
	// the expected cost of evicting it, if the next start then takes longer by extra. To stop an
	// instance, the pool chooses the one that is worth least. To move memory to the host, it chooses
	// the instance whose memory is worth least per byte. If Worth is nil, EvictLast and the last
	// completions decide.
	Worth func(function int32, extra time.Duration) float64
	// Touched, unless nil, is called when the capacity, the memory or the instances of a GPU may
	// have changed. function is the function whose idle instances there changed, or -1.
	Touched func(function, gpu int32)
	// EvictLast, unless nil, reports whether to evict a function's instances last. Otherwise the
	// least recently finished instance goes first (R8).
	EvictLast func(function int32) bool
}

// ID identifies an instance and is never reused. The pool assigns 0 and greater IDs to the instances
// that it creates. The caller of Pool.Adopt assigns IDs less than None (-2, -3 and so on) to the
// instances that it adopts.
type ID int64

// None is the ID of no instance.
const None ID = -1

// Verb is the kind of a Change.
type Verb uint8

// The kinds of change. They say what the caller has to do.
const (
	ToRemove  Verb = iota // stop the instance
	ToOffload             // move its memory to the host
	ToStart               // start the instance without an invocation
	ToBegin               // begin its invocation, for which there is room now
	ToRequeue             // place its invocation again
	ToCancel              // cancel its start, and place its invocations again
)

// Change is an operation on an instance for the caller to perform.
type Change struct {
	Verb     Verb
	GPU      int32
	Function int32
	Instance ID
	Index    int32 // index of the instance, as Begin returns it
	// ForTenant reports that a limit on the instances of a tenant requires the change.
	ForTenant bool
}

// none is the index of no instance, and the number of no GPU and no function.
const none = int32(-1)
