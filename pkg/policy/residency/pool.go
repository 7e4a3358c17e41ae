package residency

import (
	"math"
	"time"
)

// Pool manages the instances on the GPUs of a node. Functions and GPUs are numbered from 0. Its
// own methods begin and end the life of instances; they take time to start, move and stop, and
// may end at any time, so the caller reports the end of each operation.
type Pool struct {
	*ledger
	placement
	memory
}

// New returns a pool without GPUs, functions and instances.
func New(c Config) *Pool {
	l := &ledger{config: c, expiry: never, tenants: newTenants(c.Tenants),
		instanceTable: instanceTable{adopted: map[ID]int32{}, names: map[int32]ID{}}, devices: devices{touched: c.Touched}}
	return &Pool{ledger: l, placement: placement{ledger: l, evict: eviction{l}}, memory: memory{ledger: l, evict: eviction{l}}}
}

// SetFunction adds or changes a function. If its memory size changed, its present instances stop
// when they become idle.
func (p *Pool) SetFunction(function int32, f Function) {
	p.Grow(int(function) + 1)
	n := &p.counts[function]
	renew := p.specs[function].Mem != f.Mem && n.existing > 0
	moves := p.tenants != nil && p.hot[function].tenant != f.Tenant
	if moves {
		p.setTenant(function, f.Tenant)
	}
	p.specs[function], n.retired = f, false
	counted := max(f.Mem, f.MeasuredMem, n.leastMem)
	p.sizesVary, p.hasSlices = p.sizesVary || counted > f.Mem, p.hasSlices || f.Slice > 0
	p.hot[function] = hotFields{duration: f.Duration, mem: f.Mem, countedMem: counted, slice: f.Slice, max: int32(f.Max), rowHead: p.hot[function].rowHead, tenant: f.Tenant}
	p.guard(function)
	if f.Idle > 0 {
		p.expiry, p.expires = 0, true
	}
	if renew {
		p.Renew(function)
	}
	if moves {
		p.bumpQueued(func(it *instance) bool { return p.hot[it.function].tenant == f.Tenant })
		p.trimTenant(function, none)
	}
}

// Renew stops the present instances of a function when they become idle, and cancels their
// starts. They no longer count towards the function's Min and Max.
func (p *Pool) Renew(function int32) {
	p.mayHaveObsolete = true
	p.counts[function].leastMem = 0
	for i := range p.instances {
		it := &p.instances[i]
		if it.function != function || it.pinned || it.hasEnded() {
			continue
		}
		before := p.share(int32(i))
		it.stale = true
		p.record(int32(i), before)
		if it.isIdle() {
			p.remove(int32(i))
		}
	}
	p.CancelStarts(function)
}

// Retire removes a function: it stops its instances when they become idle, and cancels their
// starts.
func (p *Pool) Retire(function int32) {
	p.mayHaveObsolete = true
	p.counts[function].retired = true
	f := &p.hot[function]
	for gpu := range p.rows.each(f, kind(GPUWarm)|kind(HostWarm), math.MaxInt) {
		for index := p.rows.on(f, gpu); index != none; index = p.rows.on(f, gpu) {
			p.remove(index)
		}
	}
	for i := range p.instances {
		if it := &p.instances[i]; it.function == function && it.isIdlePinned() {
			p.remove(int32(i))
		}
	}
	p.CancelStarts(function)
}

// SetSlice sets the slice of an instance (see Function.Slice), from its next invocation on.
func (p *Pool) SetSlice(index int32, slice float64) {
	p.details[index].slice = slice
	p.hasSlices = true
	p.touch(none, p.instances[index].gpu)
}

// RetireInstance makes an instance stop that is no longer needed: at once if it is idle, otherwise
// after its invocations, without a further one. If it starts without an invocation, its start is
// cancelled. It no longer counts towards its function's Min and Max. A pinned instance stays.
func (p *Pool) RetireInstance(index int32) {
	it := &p.instances[index]
	if it.pinned || it.stale || it.hasEnded() {
		return
	}
	p.mayHaveObsolete = true
	before := p.share(index)
	it.stale = true
	p.record(index, before)
	switch {
	case it.isIdle():
		p.remove(index)
	case it.stage == starting:
		p.stop(index, ToCancel)
	}
}

// CancelStarts cancels all starts of a function's instances, and bumps those in queues for room.
// The memory of an instance whose start was cancelled remains in use until Lost. The starts of
// pinned instances go on.
func (p *Pool) CancelStarts(function int32) {
	for i := range p.instances {
		if it := &p.instances[i]; it.function == function && !it.pinned && p.IsStarting(int32(i)) {
			p.stop(int32(i), ToCancel)
		}
	}
	p.Bump(function)
}

// SetGPU opens a GPU with a number of slots, which is the number of invocations that it can run at
// once, and of bytes of memory; 0 bytes mean no limit.
func (p *Pool) SetGPU(gpu int32, slots int, mem int64) {
	for int(gpu) >= len(p.gpus) {
		p.gpus, p.idle = append(p.gpus, device{class: none}), append(p.idle, nil)
		p.warm, p.firstWarm = append(p.warm, nil), append(p.firstWarm, [2]int32{none, none})
		p.rows.widen(p.hot)
	}
	d := &p.gpus[gpu]
	d.open, d.slots = true, int32(slots)
	p.SetSlots(gpu, slots)
	p.SetMem(gpu, mem)
}

// CloseGPU takes a GPU out of use: its idle instances stop at once, busy ones when they become
// idle.
func (p *Pool) CloseGPU(gpu int32) {
	p.mayHaveObsolete = true
	p.SetSlots(gpu, 0)
	p.gpus[gpu].open = false
	p.largest = unmeasured
	for i := range p.instances {
		if it := &p.instances[i]; it.gpu == gpu && (it.isIdle() || it.isIdlePinned()) {
			p.remove(int32(i))
		}
	}
}

// Clear removes all idle instances of a GPU.
func (p *Pool) Clear(gpu int32) {
	for len(p.idle[gpu]) > 0 {
		p.remove(p.idle[gpu][0].index)
	}
}

// Dismiss stops the idle instance of a function on a GPU that the function would use next.
func (p *Pool) Dismiss(function, gpu int32) {
	if index := p.rows.on(&p.hot[function], gpu); index != none {
		p.remove(index)
	}
}

// Found describes an instance that another process started.
type Found struct {
	Resident bool  // its memory is on the GPU
	Pinned   bool  // see Adopt
	Starting bool  // with Pinned: it is not ready; Started or Lost follows
	Mem      int64 // bytes that it was promised on the GPU; 0 means the function's Mem
}

// Adopt adds an instance that already runs, because a plan started it or because it survived a
// restart of the caller. Its ID must be less than None and new; otherwise Adopt returns false.
//
// A pinned instance belongs to another controller. The pool neither stops nor moves it to make
// room, and never returns it as a place. A caller that knows its index runs invocations on it
// with Join and End; they take no slot of the GPU. Its memory counts like that of a running instance,
// even while it starts. The pool removes it with its GPU or its function.
func (p *Pool) Adopt(id ID, function, gpu int32, found Found, now time.Duration) (index int32, ok bool) {
	if id >= None || p.Index(id) != none {
		return none, false
	}
	index = p.create(function, gpu)
	it, extra := &p.instances[index], &p.details[index]
	it.adopted, p.adopted[id], p.names[index] = true, index, id
	before := p.share(index)
	if found.Mem > it.mem {
		it.mem, p.sizesVary = found.Mem, true
	}
	extra.promised = max(extra.promised, found.Mem)
	it.pinned, it.resident = found.Pinned, found.Resident || found.Pinned
	if p.tenants != nil && found.Pinned {
		p.holdings(function).instances--
	}
	if found.Pinned && found.Starting {
		it.stage = starting
	}
	p.record(index, before)
	switch {
	case !found.Pinned:
		p.link(index, now)
	case !found.Starting:
		it.idleSince = now
	}
	if p.obsolete(it) {
		p.remove(index)
	}
	if found.Pinned {
		p.dropObsolete(gpu)
	}
	if p.tenants != nil {
		p.trimTenant(function, index)
	}
	p.serveQueue(gpu)
	return index, true
}

// Start starts an instance of a function without an invocation, if that evicts nothing. It
// chooses the GPU with the fewest instances of the function, then with the fewest instances. It
// reports a ToStart change. It returns false if no GPU has room or the function is capped.
func (p *Pool) Start(function int32) (index int32, ok bool) {
	if p.Capped(function) {
		return none, false
	}
	own := make([]int32, len(p.gpus)) // instances of the function
	for i := range p.instances {
		if it := &p.instances[i]; it.function == function && it.stage != vacant {
			own[it.gpu]++
		}
	}
	best := none
	for g := range p.gpus {
		if !p.mayStart(function, int32(g)) {
			continue
		}
		if d := &p.gpus[g]; best == none || own[g] < own[best] || own[g] == own[best] && d.instances < p.gpus[best].instances {
			best = int32(g)
		}
	}
	if best == none {
		return none, false
	}
	return p.startOn(function, best), true
}

// StartOn starts an instance of a function on a GPU without an invocation, like Start. Function.Placed
// does not forbid it. If needed is set, idle instances of the function's tenant make room within the
// tenant's limits. StartOn returns false until they have stopped.
func (p *Pool) StartOn(function, gpu int32, needed bool) (index int32, ok bool) {
	if p.Limited(function) || !p.hasRoomToStart(function, gpu) {
		return none, false
	}
	if mem := p.gpus[gpu].countedMem(&p.hot[function]); !p.tenantFits(function, mem) {
		if needed && p.tenantAllows(&p.hot[function], mem, 1) {
			p.makeTenantRoom(function, mem, 1, none)
		}
		return none, false
	}
	return p.startOn(function, gpu), true
}

// startOn starts an instance on a GPU where it may start.
func (p *Pool) startOn(function, gpu int32) (index int32) {
	index = p.create(function, gpu)
	before := p.share(index)
	p.instances[index].stage, p.instances[index].resident = starting, true
	p.record(index, before)
	p.report(ToStart, index)
	return index
}

// Started records that the start of an instance has ended. The instance is now idle, or runs the
// invocations for which it was started.
func (p *Pool) Started(index int32, now time.Duration) {
	it := &p.instances[index]
	wasLaunching := it.stage == launching
	if !p.IsStarting(index) {
		return
	}
	p.setStage(index, ready)
	switch {
	case wasLaunching:
	case it.pinned:
		it.idleSince = now
	default:
		p.becomeIdle(index, now)
	}
}

// becomeIdle makes an instance idle that has started or has ended its last invocation, and removes
// it if it is obsolete, or instances beyond the limit of the pool.
func (p *Pool) becomeIdle(index int32, now time.Duration) {
	p.link(index, now)
	if p.Obsolete(index) {
		p.remove(index)
		return
	}
	p.Trim(p.instances[index].gpu)
}

// Lost records that an instance has ended, on request or not. The caller ends its invocations
// with End.
func (p *Pool) Lost(index int32) {
	it := &p.instances[index]
	if it.stage == queued {
		p.dequeue(index)
	}
	if it.stage == vacant || it.stage == lost {
		return
	}
	if it.isIdle() {
		p.unlink(index)
	}
	before := p.share(index)
	it.stage, it.resident, it.mem, p.details[index].residual = lost, false, 0, 0
	p.record(index, before)
	if it.inFlight == 0 {
		p.vacate(index)
	}
	p.serveQueue(it.gpu)
}

// Begin starts an invocation at a place that Best returned, and evicts instances for it. It
// returns the index of its instance. started is false if the invocation has to wait for room; a
// ToBegin change follows when there is room.
func (p *Pool) Begin(function int32, at Place) (index int32, started bool) {
	d := &p.gpus[at.GPU]
	index = at.Index
	if index == none {
		for p.full(d) && p.removeFirst(at.GPU) {
		}
		index = p.create(function, at.GPU)
	} else {
		p.unlink(index)
	}
	slice := p.sliceOf(&p.hot[function], index)
	it, units := &p.instances[index], d.capacityFor(slice)
	if at.Beside && slice <= 0 && d.used+units > d.capacity {
		units = 0
	}
	if it.stage == receding { // the invocation ends the move; its memory fits, because it is still on the GPU
		p.setStage(index, ready)
	}
	if it.sliced = units != unit; it.sliced {
		p.details[index].capacity = units
	}
	if it.resident {
		p.addRun(index, 1)
		return index, true
	}
	before := p.share(index)
	it.inFlight = 1
	if at.Index == none {
		it.stage = launching
	}
	it.mem = p.memAfterReturn(index)
	if p.tenants != nil {
		p.makeTenantRoom(it.function, it.mem, 0, index)
	}
	p.makeRoom(at.GPU, it.mem)
	it.resident = true
	if !d.fits(d.mem.used+it.mem-d.mem.queued+d.mem.leaving) || p.waitsForTenant(it.function, it.mem) {
		it.stage = queued
		d.queue = append(d.queue, index)
	}
	p.record(index, before)
	return index, it.stage != queued
}

// Join adds an invocation to a running instance that can accept it, see Spare and Accepts.
func (p *Pool) Join(index int32) { p.instances[index].inFlight++ }

// End ends an invocation on an instance. After the last invocation, the instance becomes idle,
// and instances beyond the limit of the pool are removed.
func (p *Pool) End(index int32, now time.Duration) {
	it := &p.instances[index]
	if it.inFlight > 1 {
		it.inFlight--
		return
	}
	if it.stage == launching { // an end implies that the instance has started
		p.setStage(index, ready)
	}
	p.addRun(index, -1)
	switch {
	case it.stage == lost:
		p.vacate(index)
	case !it.pinned:
		p.becomeIdle(index, now)
	default:
		if it.idleSince = now; p.Obsolete(index) {
			p.remove(index)
		}
	}
}

// Expire stops idle instances whose function's Idle time has passed, except for the minimum to
// keep. It returns the time at which the next one may expire, or never.
func (p *Pool) Expire(now time.Duration) (next time.Duration) {
	if now >= p.expiry {
		p.expire(now)
	}
	return p.expiry
}

// expire implements Expire when an instance may have expired.
func (p *Pool) expire(now time.Duration) {
	p.expiry = never
	for i := range p.instances {
		it := &p.instances[i]
		idle := p.specs[it.function].Idle
		if idle == 0 || !it.isIdle() || p.neededForMin(it.function) {
			continue
		}
		if since := it.idleSince; now-since >= idle {
			p.remove(int32(i))
		} else {
			p.expiry = min(p.expiry, since+idle)
		}
	}
}

// InstanceStatus describes the state of an instance.
type InstanceStatus struct {
	Instance      ID
	Function, GPU int32
	Mem           int64 // bytes on the GPU
	InFlight      int   // invocations in flight
	State         string
	Since         time.Duration // when it became idle
}

// Instances returns all instances, in no particular order.
func (p *Pool) Instances() []InstanceStatus {
	var list []InstanceStatus
	for i := range p.instances {
		it := &p.instances[i]
		if it.stage == vacant {
			continue
		}
		s := InstanceStatus{Instance: p.Instance(int32(i)), Function: it.function, GPU: it.gpu, InFlight: int(it.inFlight), Since: it.idleSince,
			State: [...]string{ready: "idle", queued: "waits for room", starting: "starting", launching: "starting", offloading: "offloading",
				prefetching: "prefetching", receding: "offloading", stopping: "stopping", lost: "lost"}[it.stage]}
		if it.resident && it.stage != queued {
			s.Mem = it.mem
		}
		if it.stage == ready && it.inFlight > 0 {
			s.State = "running"
		}
		list = append(list, s)
	}
	return list
}
