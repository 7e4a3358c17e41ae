package residency

import (
	"math"
	"time"
)

const never = time.Duration(math.MaxInt64)

// ledger records the functions, the GPUs and the instances. The fields of an instance determine
// its share of the totals of its GPU and its function. To change one of these fields, a caller gets
// the share, changes the instance, and passes the earlier share to record.
type ledger struct {
	config Config
	functions
	devices
	instanceTable
	rows            rows
	mayHaveObsolete bool // a GPU or a function was removed or changed its memory, so instances may be obsolete
	sizesVary       bool // instances may count for other bytes than Function.Mem
	hasSlices       bool // some functions or instances have slices
	finishes        int64
	expires         bool          // some function has an Idle time
	expiry          time.Duration // no idle instance expires before
	changes         []Change
	reported        []Change                         // the last result of Changes
	tenants         *tenants                         // nil without limits for tenants
	byClass         map[durationKey][3]time.Duration // nil if no durations depend on the GPU
}

// share is what an instance adds to the totals of its GPU and its function.
type share struct {
	usage
	tally
	present int32 // device.instances
	busy    int32 // device.running
	units   int32 // device.used
	ending  int32 // holdings.stopping
}

// share returns the share of an instance.
func (l *ledger) share(index int32) (s share) {
	it := &l.instances[index]
	if it.inFlight > 0 && !it.pinned {
		s.busy, s.units = 1, l.capacityOf(index)
	}
	residual := int64(0)
	if l.sizesVary {
		residual = l.details[index].residual
	}
	size := it.mem + residual
	switch it.stage {
	case vacant, lost:
		return s
	case stopping:
		s.ending = 1
		if s.leaving = residual; it.resident {
			s.leaving = size
		}
		return s
	case offloading, receding:
		s.used, s.leaving = residual, it.mem
	default:
		if s.used = residual; it.resident {
			s.used = size
		}
	}
	if it.inFlight > 0 || it.pinned || it.stage == starting {
		s.usage.running = size
	}
	if s.present = 1; !it.stale {
		s.instances = 1
	}
	switch it.stage {
	case queued:
		s.queued = it.mem
	case launching:
		s.starts = 1
	case starting:
		s.starts, s.starting = 1, 1
	default:
	}
	if it.pinned {
		s.pinned, s.pending = size, s.starting
	}
	return s
}

// record updates the totals after a change of an instance. before is its share before
// the change.
func (l *ledger) record(index int32, before share) {
	it, after := &l.instances[index], l.share(index)
	d := &l.gpus[it.gpu]
	d.mem.running += after.usage.running - before.usage.running
	d.mem.used += after.used - before.used
	d.mem.pinned += after.pinned - before.pinned
	d.mem.queued += after.queued - before.queued
	d.mem.leaving += after.leaving - before.leaving
	d.instances += after.present - before.present
	if l.tenants != nil && !it.pinned {
		h := l.holdings(it.function)
		h.add(before.holdings(), -1)
		h.add(after.holdings(), 1)
	}
	l.counts[it.function].running += after.busy - before.busy
	if after.units != before.units || after.busy != before.busy {
		l.addLoad(it.gpu, 0, after.busy-before.busy, after.units-before.units)
	} else if after.usage.running != before.usage.running {
		l.updateFreeMem(it.gpu)
	}
	if after.tally == before.tally {
		return
	}
	n := &l.counts[it.function]
	wasStarting := n.starts > 0
	n.instances += after.instances - before.instances
	n.starting += after.starting - before.starting
	n.pending += after.pending - before.pending
	n.starts += after.starts - before.starts
	l.guard(it.function)
	if isStarting := n.starts > 0; isStarting != wasStarting && l.config.Starting != nil {
		l.config.Starting(it.function, isStarting)
	}
}

// addRun records that an instance begins to run (n is 1), or that it runs nothing any more (-1). It
// does so without a share, because every invocation needs it.
func (l *ledger) addRun(index, n int32) {
	it := &l.instances[index]
	if it.inFlight += int16(n); it.pinned {
		return
	}
	l.counts[it.function].running += n
	l.gpus[it.gpu].mem.running += int64(n) * l.size(index)
	l.addLoad(it.gpu, 0, n, n*l.capacityOf(index))
}

// create adds an instance, without memory on its GPU and in no list.
func (l *ledger) create(function, gpu int32) int32 {
	f, n, d := &l.hot[function], &l.counts[function], &l.gpus[gpu]
	n.existing++
	n.instances++
	d.instances++
	if l.tenants != nil {
		l.holdings(function).instances++
	}
	return l.add(instance{function: function, gpu: gpu, mem: d.countedMem(f), stage: ready, run: none}, details{promised: f.mem})
}

// setStage changes the stage of an instance.
func (l *ledger) setStage(index int32, s stage) {
	before := l.share(index)
	l.instances[index].stage = s
	l.record(index, before)
}

// vacate removes an instance that has ended or was not started.
func (l *ledger) vacate(index int32) {
	l.setStage(index, vacant)
	l.counts[l.instances[index].function].existing--
	l.free(index)
}

// remove stops an idle instance, or a pinned one.
func (l *ledger) remove(index int32) {
	if !l.instances[index].pinned {
		l.unlink(index)
	}
	l.stop(index, ToRemove)
}

// stop makes an instance stop that is in no list. Its invocations do not run on it any more.
func (l *ledger) stop(index int32, verb Verb) {
	l.report(verb, index)
	before := l.share(index)
	it := &l.instances[index]
	it.resident = it.resident || it.stage == receding // until it has ended
	it.stage, it.inFlight = stopping, 0
	l.record(index, before)
	l.touch(none, it.gpu)
}

// size returns the bytes that an instance counts for while it runs.
func (l *ledger) size(index int32) int64 {
	if !l.sizesVary {
		return l.instances[index].mem
	}
	return l.instances[index].mem + l.details[index].residual
}

// memAfterReturn returns the bytes that an instance on the host will count for after its return.
func (l *ledger) memAfterReturn(index int32) int64 {
	it := &l.instances[index]
	return l.gpus[it.gpu].bound(it.mem, l.details[index].promised)
}

// sliceOf returns the slice of an instance of a function; of a new one, if index is none.
func (l *ledger) sliceOf(f *hotFields, index int32) float64 {
	if index != none && l.details[index].slice > 0 {
		return l.details[index].slice
	}
	return f.slice
}

// full reports whether a GPU must lose an instance before it gets another.
func (l *ledger) full(d *device) bool {
	return l.config.Pool != Unlimited && int(d.instances) >= l.config.Pool
}

// obsolete reports whether an instance has to stop when it becomes idle.
func (l *ledger) obsolete(it *instance) bool {
	d := &l.gpus[it.gpu]
	stranded := !it.resident && d.limit > 0 && l.hot[it.function].mem > d.available() // its memory cannot return
	return it.stale || !d.open || stranded || l.counts[it.function].retired
}

// Obsolete reports whether an instance has to stop when it becomes idle.
func (l *ledger) Obsolete(index int32) bool {
	return l.mayHaveObsolete && l.obsolete(&l.instances[index])
}

// report adds a change of an instance to the result of Changes.
func (l *ledger) report(v Verb, index int32) {
	it := &l.instances[index]
	l.changes = append(l.changes, Change{Verb: v, GPU: it.gpu, Function: it.function, Instance: l.Instance(index), Index: index})
}

// Changed reports whether Changes would return any.
func (l *ledger) Changed() bool { return len(l.changes) > 0 }

// Changes returns the changes since the last call. The result is valid until the next call.
func (l *ledger) Changes() []Change {
	l.changes, l.reported = l.reported[:0], l.changes
	return l.reported
}
