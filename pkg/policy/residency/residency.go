// Package residency manages the instances of functions on GPUs: which instances exist, on which
// GPU, and whether their memory is on the GPU or on the host. The number of instances and their
// memory are bounded (MQFQ-Sticky, sections 4.2 and 4.3; LALB, section III-D). Its main type,
// Pool, decides where an invocation runs best and which instances make room for it. It does no
// I/O: the caller performs the changes that Changes returns, and reports when they are done
// (Started, Moved, Lost). The policies of pkg/policy/queue use it.
//
//  1. An instance belongs to one function and one GPU. Memory that was moved to the host has to
//     return before the instance can run.
//  2. To make room, the pool evicts idle instances only: it moves their memory to the host or
//     stops them. Running, starting and pinned instances stay.
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
	Mem      int64            // bytes on the GPU
	// Need is the measured number of bytes of an instance, including memory that it does not
	// allocate itself, such as contexts. A value below Mem means Mem.
	Need     int64
	Inflight int // invocations that an instance runs at once; 0 means 1
	// Slice is the share of a GPU that an instance takes while it runs: SM share times quota,
	// above 0 to 1. 0 means one slot of the GPU.
	Slice float64
	// Min is the number of instances to keep, Max the limit on instances; 0 means no limit.
	Min, Max int
	// Idle is the time after which an idle instance beyond Min stops; 0 means never.
	Idle time.Duration
}

// Unlimited is the limit on instances that means no limit.
const Unlimited = -1

// Config holds the settings of a pool.
type Config struct {
	Pool int // limit on the instances of a GPU, running ones included, or Unlimited
	// UsesClear announces calls of Clear, so the pool lists idle instances even if there is no
	// limit on them.
	UsesClear bool
	// NoHost makes the pool stop an instance instead of moving its memory to the host.
	NoHost bool
	// MayStart reports whether an instance of a function may be started on a GPU without an
	// invocation. nil permits all.
	MayStart func(function, gpu int32) bool
	// Starting, unless nil, is called when the first start of an instance of a function begins,
	// and when the last one ends.
	Starting func(function int32, inProgress bool)
	// Worth returns the cost of doing without an instance whose next start would take longer by
	// extra. The pool stops the instance with the least cost, and moves the memory of the instance
	// with the least cost per byte. If Worth is nil, EvictLast and the last completions decide.
	Worth func(function int32, extra time.Duration) float64
	// Touched, unless nil, is called when the capacity, the memory or the instances of a GPU may
	// have changed. function is the function whose idle instances there changed, or -1.
	Touched func(function, gpu int32)
	// EvictLast, unless nil, reports whether to evict a function's instances last. Otherwise the
	// least recently finished instance goes first (R8).
	EvictLast func(function int32) bool
}

// ID identifies an instance and is never reused. The pool assigns IDs from 0. The caller of Adopt
// chooses IDs below None.
type ID int64

// None is the ID of no instance.
const None ID = -1

// Verb is the kind of a Change.
type Verb uint8

// The kinds of change.
const (
	Removed   Verb = iota // the instance is to be stopped
	Offloaded             // its memory is to be moved to the host
	Started               // the instance is to be started without an invocation
	Placed                // there is room now, and its invocation may begin
	Bumped                // its invocation is to be placed again
	Cancelled             // its start is to be cancelled, and its invocations placed again
)

// Change is an operation on an instance for the caller to perform.
type Change struct {
	Verb     Verb
	GPU      int32
	Function int32
	Instance ID
	Slot     int32 // the slot of the instance, as Begin returns it
}

const none = int32(-1)
