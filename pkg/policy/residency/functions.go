package residency

import "time"

// hotFields holds the fields of a function that every dispatch uses. Together they are small, so that
// more functions fit in the caches.
type hotFields struct {
	duration   [3]time.Duration
	mem        int64
	countedMem int64 // bytes that a new instance counts for, at least mem; see device.countedMem
	slice      float64
	max        int32
	tenant     int32
	rowHead
	guarded bool // see functions.guard
}

// tally holds numbers of instances. pending ones are included in starting, and those in instances.
type tally struct {
	instances int32 // starting, running and idle ones, but no stale ones
	starting  int32 // instances that start without an invocation
	pending   int32 // pinned instances that are starting
	starts    int32 // starts in progress, with an invocation or without
}

// count holds the numbers of a function's instances.
type count struct {
	tally
	existing int32 // all instances, including stale ones and those that are stopping or lost
	running  int32 // instances with invocations, without pinned ones
	retired  bool
	barred   bool  // no instance may be started
	leastMem int64 // least bytes of an instance, because its last start failed with less
}

// functions holds what the pool knows of each function, and the numbers of its instances.
type functions struct {
	specs  []Function // the full descriptions
	hot    []hotFields
	counts []count
}

// Grow makes room for that many functions.
func (f *functions) Grow(n int) {
	if added := n - len(f.specs); added > 0 {
		f.specs = append(f.specs, make([]Function, added)...)
		f.counts = append(f.counts, make([]count, added)...)
		f.hot = append(f.hot, make([]hotFields, added)...)
	}
}

// BarStarts forbids or permits to start instances of a function.
func (f *functions) BarStarts(function int32, barred bool) {
	f.counts[function].barred = barred
	f.guard(function)
}

// guard updates whether a function's counts may forbid starts of its instances. For most
// functions they cannot, and Capped and Blocked skip the counts.
func (f *functions) guard(function int32) {
	n, c := &f.counts[function], &f.hot[function]
	c.guarded = c.max > 0 || n.barred || n.starting > 0 || f.specs[function].Placed
}

// Capped reports whether the pool may start no more instances of a function.
func (f *functions) Capped(function int32) bool {
	return f.hot[function].guarded && (f.specs[function].Placed || f.Limited(function))
}

// Limited reports whether a function may have no more instances.
func (f *functions) Limited(function int32) bool {
	c, n := &f.hot[function], &f.counts[function]
	return n.barred || c.max > 0 && n.instances >= c.max
}

// Count returns the number of instances of a function, and how many of them are starting without
// an invocation.
func (f *functions) Count(function int32) (all, starting int) {
	return int(f.counts[function].instances), int(f.counts[function].starting)
}

// Pending reports whether a pinned instance of the function is starting.
func (f *functions) Pending(function int32) bool { return f.counts[function].pending > 0 }

// HasNoInstances reports whether a retired function has no more instances, not even stopping ones.
func (f *functions) HasNoInstances(function int32) bool { return f.counts[function].existing == 0 }

// neededForMin reports whether one instance less would be fewer than the function's minimum.
func (f *functions) neededForMin(function int32) bool {
	least, n := f.specs[function].Min, &f.counts[function]
	return least > 0 && int(n.instances) <= least && !n.retired
}

// MightFit reports whether an invocation of the function might start now, given the result of
// MaxFreeMem. It is cheap; true does not guarantee that there is a place, but false means that
// there is none.
func (f *functions) MightFit(function int32, maxFreeMem int64) bool {
	return f.hot[function].mem <= maxFreeMem
}

// LowerLeastMem records that an instance of the function has started, and clears the effect of
// RaiseLeastMem.
func (f *functions) LowerLeastMem(function int32) {
	if n := &f.counts[function]; n.leastMem > 0 {
		n.leastMem = 0
		f.hot[function].countedMem = max(f.specs[function].Mem, f.specs[function].MeasuredMem)
	}
}
