package residency

import (
	"math"
	"time"
)

// instance is one instance. While idle, it is in a list of the idle instances of its function and GPU
// (sameFunction), and in lists of its GPU (devices.idle and devices.warm). It fits in a cache line.
type instance struct {
	function, gpu int32
	mem           int64
	idleSince     time.Duration // when it became idle
	finished      int64         // sequence number of its last completion
	reuse         int32         // how many instances had its index before
	run           int32         // set by SetRun
	inFlight      int16
	stage         stage
	resident      bool
	adopted       bool
	pinned        bool // it is neither stopped nor moved, and in no list
	stale         bool // it has an old version of its function; counts exclude it
	sliced        bool // it takes another part of the GPU's capacity than one of the GPU's slots
	moveFailed    bool // its memory failed to move
	sameFunction  link
}

// details holds the rarely used fields of an instance.
type details struct {
	capacity    int32         // capacity that it takes while it runs, if it is sliced
	slice       float64       // its slice, if the slices of its function vary; 0: the function's
	prefetchEnd time.Duration // when its prefetched memory arrives
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
	receding                 // moving its memory to the host ahead of need; otherwise like ready, with the memory on the host
	stopping                 // stopping
	lost                     // ended, but its invocations have not ended yet
)

// isIdle reports whether an instance is idle and thus in the lists.
func (it *instance) isIdle() bool {
	return (it.stage == ready || it.stage == prefetching || it.stage == receding) && it.inFlight == 0 && !it.pinned
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

// instanceTable stores the instances. The index of an instance identifies it until it ends, and is
// then reused for another instance. Its ID is never reused.
type instanceTable struct {
	instances []instance
	details   []details
	freed     []int32
	adopted   map[ID]int32
	names     map[int32]ID // IDs of adopted instances, by index
}

// add stores an instance and returns its index.
func (t *instanceTable) add(it instance, d details) int32 {
	if last := len(t.freed) - 1; last >= 0 {
		index := t.freed[last]
		t.freed = t.freed[:last]
		it.reuse = t.instances[index].reuse + 1
		t.instances[index], t.details[index] = it, d
		return index
	}
	t.instances, t.details = append(t.instances, it), append(t.details, d)
	return int32(len(t.instances) - 1)
}

// free makes the index of an instance available to others.
func (t *instanceTable) free(index int32) {
	if t.instances[index].adopted {
		delete(t.adopted, t.names[index])
		delete(t.names, index)
	}
	t.freed = append(t.freed, index)
}

// Instance returns the ID of an instance.
func (t *instanceTable) Instance(index int32) ID {
	it := &t.instances[index]
	if it.adopted {
		return t.names[index]
	}
	return ID(it.reuse)<<31 | ID(index)
}

// Index returns the index of an instance, or a negative number if there is no such instance.
func (t *instanceTable) Index(id ID) int32 {
	if id < None {
		if index, known := t.adopted[id]; known {
			return index
		}
		return none
	}
	index := int32(id & math.MaxInt32)
	if id == None || int(index) >= len(t.instances) {
		return none
	}
	if it := &t.instances[index]; it.reuse != int32(id>>31) || it.adopted || it.stage == vacant {
		return none
	}
	return index
}

// Function returns the function of an instance.
func (t *instanceTable) Function(index int32) int32 { return t.instances[index].function }

// GPU returns the GPU of an instance.
func (t *instanceTable) GPU(index int32) int32 { return t.instances[index].gpu }

// Pinned reports whether an instance is pinned.
func (t *instanceTable) Pinned(index int32) bool { return t.instances[index].pinned }

// IsStarting reports whether an instance is starting.
func (t *instanceTable) IsStarting(index int32) bool {
	stage := t.instances[index].stage
	return stage == starting || stage == launching
}

// IsStopping reports whether an instance is stopping. Such an instance runs no
// invocation.
func (t *instanceTable) IsStopping(index int32) bool { return t.instances[index].stage == stopping }

// IsLost reports whether an instance has ended, but not all of its invocations.
func (t *instanceTable) IsLost(index int32) bool { return t.instances[index].stage == lost }

// IsQueued reports whether an instance waits in its GPU's queue for room.
func (t *instanceTable) IsQueued(index int32) bool { return t.instances[index].stage == queued }

// Ready returns the time at which the prefetched memory of an instance arrives.
func (t *instanceTable) Ready(index int32) time.Duration { return t.details[index].prefetchEnd }

// Run returns the value that SetRun stored for an instance.
func (t *instanceTable) Run(index int32) int32 { return t.instances[index].run }

// SetRun stores the head of the list of invocations on an instance.
func (t *instanceTable) SetRun(index, run int32) { t.instances[index].run = run }

// capacityOf returns the capacity that a running instance takes.
func (t *instanceTable) capacityOf(index int32) int32 {
	if t.instances[index].sliced {
		return t.details[index].capacity
	}
	return unit
}
