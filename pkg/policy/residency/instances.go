package residency

import (
	"math"
	"time"
)

// instance is one instance. While idle, it is in three lists: that of its function and GPU
// (sameFunction), that of its GPU (idle) and, if its memory is on the GPU, that of its GPU's
// instances with memory (warm). It fits in a cache line.
type instance struct {
	function, gpu int32
	mem           int64
	finished      int64 // sequence number of its last completion
	reuse         int32 // how many instances used the slot before
	run           int32 // set by SetRun
	inFlight      int16
	stage         stage
	resident      bool
	adopted       bool
	pinned        bool // it is neither stopped nor moved, and in no list
	stale         bool // it has an old version of its function; counts exclude it
	sliced        bool // its part of the GPU's capacity differs from a slot
	sameFunction  link
	idle          link
	warm          link
}

// details holds the rarely used fields of an instance.
type details struct {
	capacity    int32         // capacity that it takes while it runs, if it is sliced
	idleSince   time.Duration // when it became idle
	prefetchEnd time.Duration // when its prefetched memory arrives
	moveFailed  bool          // its memory failed to move
	promised    int64         // bytes that it was promised, the least that it counts for
	residual    int64         // bytes in addition to mem that stay on the GPU while mem is on the host
}

// stage is the state of an instance.
type stage uint8

const (
	vacant      stage = iota // no instance
	ready                    // running, or idle and in lists
	queued                   // in its GPU's queue for room
	starting                 // starting without an invocation
	launching                // starting with its invocations
	offloading               // moving its memory to the host
	prefetching              // moving its memory to the GPU; otherwise like ready
	stopping                 // stopping
	lost                     // ended, but its invocations have not ended yet
)

// isIdle reports whether an instance is idle and thus in the lists.
func (it *instance) isIdle() bool {
	return (it.stage == ready || it.stage == prefetching) && it.inFlight == 0 && !it.pinned
}

// isIdlePinned reports whether an instance is pinned and runs nothing.
func (it *instance) isIdlePinned() bool {
	return it.pinned && (it.stage == ready || it.stage == starting) && it.inFlight == 0
}

// hasEnded reports whether an instance does not exist, has ended or is stopping.
func (it *instance) hasEnded() bool {
	return it.stage == vacant || it.stage == stopping || it.stage == lost
}

// unstarted reports whether an instance still has to be started: no invocation ended on it.
func (it *instance) unstarted() bool { return it.finished == 0 }

// slots stores the instances. The number of a slot identifies an instance until it ends; its ID
// is never reused.
type slots struct {
	instances []instance
	details   []details
	freed     []int32
	adopted   map[ID]int32
	names     map[int32]ID // IDs of adopted instances, by slot
}

// add stores an instance and returns its slot.
func (s *slots) add(it instance, d details) int32 {
	if last := len(s.freed) - 1; last >= 0 {
		c := s.freed[last]
		s.freed = s.freed[:last]
		it.reuse = s.instances[c].reuse + 1
		s.instances[c], s.details[c] = it, d
		return c
	}
	s.instances, s.details = append(s.instances, it), append(s.details, d)
	return int32(len(s.instances) - 1)
}

// free makes the slot of an instance available to others.
func (s *slots) free(c int32) {
	if s.instances[c].adopted {
		delete(s.adopted, s.names[c])
		delete(s.names, c)
	}
	s.freed = append(s.freed, c)
}

// Instance returns the ID of the instance in a slot.
func (s *slots) Instance(slot int32) ID {
	it := &s.instances[slot]
	if it.adopted {
		return s.names[slot]
	}
	return ID(it.reuse)<<31 | ID(slot)
}

// Slot returns the slot of an instance, or a negative number if there is no such instance.
func (s *slots) Slot(id ID) int32 {
	if id < None {
		if slot, known := s.adopted[id]; known {
			return slot
		}
		return none
	}
	slot := int32(id & math.MaxInt32)
	if id == None || int(slot) >= len(s.instances) {
		return none
	}
	if it := &s.instances[slot]; it.reuse != int32(id>>31) || it.adopted || it.stage == vacant {
		return none
	}
	return slot
}

// Function returns the function of the instance in a slot.
func (s *slots) Function(slot int32) int32 { return s.instances[slot].function }

// GPU returns the GPU of the instance in a slot.
func (s *slots) GPU(slot int32) int32 { return s.instances[slot].gpu }

// Pinned reports whether the instance in a slot is pinned.
func (s *slots) Pinned(slot int32) bool { return s.instances[slot].pinned }

// IsStarting reports whether the instance in a slot is starting.
func (s *slots) IsStarting(slot int32) bool {
	stage := s.instances[slot].stage
	return stage == starting || stage == launching
}

// IsStopping reports whether the instance in a slot is stopping. Such an instance runs no
// invocation.
func (s *slots) IsStopping(slot int32) bool { return s.instances[slot].stage == stopping }

// IsLost reports whether the instance in a slot has ended, but not all of its invocations.
func (s *slots) IsLost(slot int32) bool { return s.instances[slot].stage == lost }

// IsQueued reports whether the instance in a slot waits in its GPU's queue for room.
func (s *slots) IsQueued(slot int32) bool { return s.instances[slot].stage == queued }

// Ready returns the time at which the prefetched memory of an instance arrives.
func (s *slots) Ready(slot int32) time.Duration { return s.details[slot].prefetchEnd }

// Run returns the value that SetRun stored for the instance in a slot.
func (s *slots) Run(slot int32) int32 { return s.instances[slot].run }

// SetRun stores the head of the list of invocations on the instance in a slot.
func (s *slots) SetRun(slot, run int32) { s.instances[slot].run = run }

// capacityOf returns the capacity that the running instance in a slot takes.
func (s *slots) capacityOf(slot int32) int32 {
	if s.instances[slot].sliced {
		return s.details[slot].capacity
	}
	return unit
}
