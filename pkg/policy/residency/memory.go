package residency

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// memory decides which instances have their memory on their GPU. It evicts idle instances, and
// keeps the queues of instances that wait for room. It bumps a queued instance that cannot get room:
// it removes the instance from the queue, and the change ToRequeue makes the caller place the
// instance's invocation again.
type memory struct {
	*ledger
	evict eviction
}

// makeRoom frees memory until mem more bytes fit: it moves the memory of idle instances to the
// host, or removes them. If that is not enough, it removes instances on the host that still use
// some GPU memory. It returns false if mem does not fit even then.
func (m *memory) makeRoom(gpu int32, mem int64) bool {
	for d := &m.gpus[gpu]; !d.fits(d.mem.used + mem); {
		index := m.evict.first(gpu, m.warm[gpu], m.config.NoHost)
		if index == none && m.config.NoHost {
			index = m.warm[gpu].first() // evict even instances that are needed for a minimum
		}
		switch {
		case index == none:
			if index = m.evict.parked(gpu); index == none {
				return false
			}
			m.remove(index)
		case m.config.NoHost || m.instances[index].moveFailed:
			m.remove(index)
		default:
			m.offload(index)
		}
	}
	return true
}

// offload moves the memory of an idle instance to the host.
func (m *memory) offload(index int32) {
	m.report(ToOffload, index)
	m.unlink(index)
	m.setStage(index, offloading)
}

// removeFirst removes the first idle instance of a GPU in eviction order. It returns false if
// there is none to remove.
func (m *memory) removeFirst(gpu int32) bool {
	index := m.evict.first(gpu, m.idle[gpu], true)
	if index == none {
		return false
	}
	m.remove(index)
	return true
}

// Trim removes idle instances of a GPU until their number is within the limit of the pool.
func (m *memory) Trim(gpu int32) {
	for d := &m.gpus[gpu]; m.config.Pool != Unlimited && int(d.instances) > m.config.Pool && m.removeFirst(gpu); {
	}
}

// SetMem changes the memory of a GPU for instances, in bytes; 0 means no limit.
func (m *memory) SetMem(gpu int32, mem int64) {
	d := &m.gpus[gpu]
	idle := m.idleOn(gpu)
	for _, index := range idle {
		m.unlink(index) // its lists depend on the memory limit
	}
	d.limit = mem
	m.updateFreeMem(gpu)
	for _, index := range idle {
		m.relink(index)
	}
	m.dropObsolete(gpu)
	m.largest = unmeasured
	m.serveQueue(gpu)
}

// idleOn returns the idle instances of a GPU.
func (m *memory) idleOn(gpu int32) (idle []int32) {
	for i := range m.instances {
		if it := &m.instances[i]; it.gpu == gpu && it.isIdle() {
			idle = append(idle, int32(i))
		}
	}
	return idle
}

// dropObsolete removes idle instances of a GPU that became obsolete (see obsolete) because the
// memory that can become free decreased, least recently finished first.
func (m *memory) dropObsolete(gpu int32) {
	idle := m.idleOn(gpu)
	slices.SortFunc(idle, func(a, b int32) int { return cmp.Compare(m.instances[a].finished, m.instances[b].finished) })
	for _, index := range idle {
		if m.obsolete(&m.instances[index]) {
			m.remove(index)
		}
	}
}

// Occupy sets the total bytes of a GPU's memory that are used by instances which the pool lists
// on another GPU: an instance that spans several GPUs belongs to the first of them. They count
// like the memory of running instances.
func (m *memory) Occupy(gpu int32, mem int64) {
	d := &m.gpus[gpu]
	added := mem - d.occupied
	d.occupied += added
	d.mem.running += added
	d.mem.used += added
	m.updateFreeMem(gpu)
	m.dropObsolete(gpu)
	m.serveQueue(gpu)
}

// Prefetch moves the memory of an idle instance of a function back to its GPU, if no GPU has such
// memory and there is room. ready is the expected time of arrival.
func (m *memory) Prefetch(function int32, ready time.Duration) (index int32, ok bool) {
	f := &m.hot[function]
	if f.warm > 0 {
		return none, false
	}
	for gpu := range m.rows.each(f, kind(HostWarm), math.MaxInt) {
		index := m.rows.on(f, gpu)
		it := &m.instances[index]
		before := m.share(index)
		if m.gpus[gpu].free()+before.leaving < it.mem || !m.tenantFitsMem(function, it.mem-before.leaving) {
			continue
		}
		m.unlink(index)
		it.mem = m.memAfterReturn(index)
		it.resident, it.stage, m.details[index].prefetchEnd = true, prefetching, ready
		m.record(index, before)
		m.link(index, it.idleSince)
		return index, true
	}
	return none, false
}

// Recede moves the memory of a function's idle instances to the host ahead of need, least recently
// finished first. Unlike instances that makeRoom chooses, they can be used before the move has ended;
// their memory then returns. Memory that failed to move since the instance's last invocation stays.
func (m *memory) Recede(function int32) {
	if m.config.NoHost {
		return
	}
	f := &m.hot[function]
	var idle []int32
	for gpu := range m.rows.each(f, kind(GPUWarm)|kind(HostWarm), math.MaxInt) {
		first := len(idle)
		for index := m.rows.on(f, gpu); index != none; index = m.instances[index].sameFunction.prev {
			if m.movable(&m.gpus[gpu], &m.instances[index]) && !m.instances[index].moveFailed {
				idle = append(idle, index)
			}
		}
		slices.Reverse(idle[first:])
	}
	for _, index := range idle {
		m.report(ToOffload, index)
		m.unlink(index)
		before := m.share(index)
		m.instances[index].resident, m.instances[index].stage = false, receding
		m.record(index, before)
		m.relink(index)
	}
}

// Moved records that the memory of an instance has moved to the host or to the GPU, or failed to
// move if ok is false.
func (m *memory) Moved(index int32, to Start, ok bool) {
	it := &m.instances[index]
	switch {
	case (it.stage == offloading || it.stage == receding) && to == HostWarm:
		it.moveFailed = it.moveFailed || !ok // evictions stop it instead
		if it.stage == receding {
			m.unlink(index)
		}
		m.arrived(index, !ok)
		if m.obsolete(it) {
			m.remove(index)
		}
	case it.stage == prefetching && to == GPUWarm && it.inFlight > 0:
		it.stage = ready
	case it.stage == prefetching && to == GPUWarm:
		m.unlink(index)
		m.arrived(index, ok)
	default:
		return
	}
	m.serveQueue(it.gpu)
}

// arrived makes an instance ready whose memory is on its GPU, or on the host.
func (m *memory) arrived(index int32, resident bool) {
	before := m.share(index)
	it := &m.instances[index]
	it.stage, it.resident = ready, resident
	m.record(index, before)
	m.relink(index)
}

// Measured records how many bytes of its GPU an instance uses, and how many of them stay
// there while the instance is on the host. From now on, the instance counts for the
// measured bytes, but at least for the bytes that were promised to it at its start.
func (m *memory) Measured(index int32, mem, stays int64) {
	it, extra := &m.instances[index], &m.details[index]
	mem = max(mem-stays, extra.promised)
	if it.stage == vacant || it.stage == queued || it.stage == lost || mem == it.mem && stays == extra.residual {
		return
	}
	m.sizesVary = true
	linked := it.isIdle()
	if linked {
		m.unlink(index)
	}
	before := m.share(index)
	it.mem, extra.residual = mem, stays
	m.record(index, before)
	if linked {
		m.relink(index)
	}
	if it.pinned {
		m.dropObsolete(it.gpu)
	} else if m.tenants != nil {
		m.trimTenant(it.function, index)
	}
	m.serveQueue(it.gpu)
}

// RaiseLeastMem records that the start of an instance failed because its GPU had too
// little memory, so an instance of the function needs more than was free. It reports whether
// evictions can free more memory there. Call it before Lost.
func (m *memory) RaiseLeastMem(index int32) bool {
	it := &m.instances[index]
	d, f, n := &m.gpus[it.gpu], &m.hot[it.function], &m.counts[it.function]
	if d.limit == 0 {
		return false
	}
	free := d.free() + m.size(index)
	if d.countedMem(f) <= free {
		n.leastMem = free + 1
		f.countedMem = max(f.countedMem, n.leastMem)
		m.sizesVary = true
	}
	return d.countedMem(f) > free
}

// Withdraw removes an instance from its GPU's queue for room, with its invocation.
func (m *memory) Withdraw(index int32) {
	gpu := m.instances[index].gpu
	m.dequeue(index)
	m.serveQueue(gpu)
}

// dequeue implements Withdraw. The caller then calls serveQueue.
func (m *memory) dequeue(index int32) {
	it := &m.instances[index]
	d := &m.gpus[it.gpu]
	d.queue = slices.DeleteFunc(d.queue, func(other int32) bool { return other == index })
	before := m.share(index)
	it.inFlight, it.resident, it.stage = 0, false, ready
	m.record(index, before)
	if it.unstarted() {
		m.vacate(index)
		return
	}
	m.relink(index)
	if m.obsolete(it) {
		m.remove(index)
	}
}

// bumpQueued bumps the instances in the queues for room that match.
func (m *memory) bumpQueued(matches func(*instance) bool) {
	for g := range m.gpus {
		bumped := false
		for _, index := range slices.Backward(slices.Clone(m.gpus[g].queue)) {
			if matches(&m.instances[index]) {
				m.report(ToRequeue, index)
				m.dequeue(index)
				bumped = true
			}
		}
		if bumped {
			m.serveQueue(int32(g))
		}
	}
}

// BumpStarts bumps the invocations of a function that wait for room to start an instance.
func (m *memory) BumpStarts(function int32) {
	m.bumpQueued(func(it *instance) bool { return it.function == function && it.unstarted() })
}

// Bump bumps the invocations of a function that wait for room.
func (m *memory) Bump(function int32) {
	m.bumpQueued(func(it *instance) bool { return it.function == function })
}

// serveQueue serves the queue of a GPU whose memory has changed. With limits for tenants, instances
// in the queues of other GPUs may have room now as well.
func (m *memory) serveQueue(gpu int32) {
	m.serveQueueOf(gpu)
	if m.tenants != nil {
		m.serveQueuesExcept(gpu)
	}
}

// serveQueuesExcept serves the queues of all other GPUs.
func (m *memory) serveQueuesExcept(gpu int32) {
	for g := range m.gpus {
		if int32(g) != gpu && len(m.gpus[g].queue) > 0 {
			m.serveQueueOf(int32(g))
		}
	}
}

// serveQueueOf reports ToBegin for the queued instances of a GPU that have room now, in order. If there
// is no more instance to evict for the queue, it bumps the newest queued instances.
func (m *memory) serveQueueOf(gpu int32) {
	m.touch(none, gpu)
	d := &m.gpus[gpu]
	for !m.makeRoom(gpu, 0) && len(d.queue) > 0 {
		last := d.queue[len(d.queue)-1]
		m.report(ToRequeue, last)
		m.dequeue(last)
	}
	for len(d.queue) > 0 {
		index := d.queue[0]
		it := &m.instances[index]
		if m.tenants != nil {
			if m.trimTenant(it.function, none); m.exceedsTenant(index) {
				m.report(ToRequeue, index)
				m.dequeue(index)
				continue
			}
		}
		if !d.fits(d.mem.used-d.mem.queued+it.mem+d.mem.leaving) || m.waitsForTenant(it.function, 0) {
			return
		}
		d.queue = slices.Delete(d.queue, 0, 1)
		if it.unstarted() {
			m.setStage(index, launching)
		} else {
			m.setStage(index, ready)
		}
		m.report(ToBegin, index)
	}
}
