package residency

import "time"

// Instances start, move, stop and die in a time of their own: whoever drives a policy
// says when.

// Found describes an instance that another process started.
type Found struct {
	Resident bool  // its memory is on the GPU
	Pinned   bool  // see Adopt
	Starting bool  // with Pinned: it is not ready; Started follows, or Lost
	Mem      int64 // bytes of the GPU that it was promised; 0 is what its function asks for
}

// Adopt makes an instance known that runs already: what a plan started, or what
// was there before a restart. Its name is below None.
//
// One that is pinned is another's: it is neither stopped nor moved for anything, and
// not found as a place; who knows its slot has it run by Join and End, which takes
// no slot of its GPU. Its memory is taken as what runs takes it, from its start on.
// It goes when its GPU or its function does.
func (p *Pool) Adopt(id ID, function, gpu int32, found Found, now time.Duration) (slot int32, ok bool) {
	if id >= None || p.Slot(id) != none {
		return none, false
	}
	c := p.create(function, gpu)
	it, d := &p.instances[c], &p.gpus[gpu]
	it.adopted, p.adopted[id], p.names[c] = true, c, id
	if found.Mem > it.mem {
		it.mem, p.varies = found.Mem, true
	}
	p.more[c].least = max(p.more[c].least, found.Mem)
	it.resident = found.Resident || found.Pinned
	if it.pinned = found.Pinned; it.pinned {
		d.memRunning += it.mem
		d.pinned += it.mem
	}
	d.exist++
	if it.resident {
		d.memUsed += it.mem
	}
	switch {
	case it.pinned && found.Starting:
		it.stage = starting
		p.counts[function].starting++
		p.counts[function].pending++
		p.guard(function)
		p.starts(function, 1)
	case it.pinned:
		p.more[c].idle = now
	default:
		p.link(c, now)
	}
	if p.obsolete(it) {
		p.remove(c)
	}
	if found.Pinned {
		p.dropObsolete(gpu)
	}
	p.settle(gpu)
	return c, true
}

// Start starts an instance of a function that has nothing to run yet, where
// that takes nothing from others: on the GPU with the fewest of its own, then
// the fewest in all. It says so by a Started change.
func (p *Pool) Start(function int32) (slot int32, ok bool) {
	best, own := none, int32(0)
	for g := range p.gpus {
		d := &p.gpus[g]
		mem := p.need(d, &p.costs[function])
		if !d.open || p.full(d) || p.config.May != nil && !p.config.May(function, int32(g)) || d.mem > 0 && max(d.memUsed, d.memRunning)+d.leaving+mem > d.mem {
			continue
		}
		n := int32(0)
		for i := range p.instances {
			if it := &p.instances[i]; it.function == function && it.gpu == int32(g) && it.stage != vacant {
				n++
			}
		}
		if best == none || n < own || n == own && d.exist < p.gpus[best].exist {
			best, own = int32(g), n
		}
	}
	if best == none || p.Capped(function) {
		return none, false
	}
	c := p.create(function, best)
	it, d := &p.instances[c], &p.gpus[best]
	it.stage, it.resident = starting, true
	d.exist++
	d.memUsed += it.mem
	d.memRunning += it.mem
	p.counts[function].starting++
	p.guard(function)
	p.starts(function, 1)
	p.change(Started, c)
	return c, true
}

// Started says that the start of an instance has ended: it is ready, or runs what it was
// started for.
func (p *Pool) Started(slot int32, now time.Duration) {
	it := &p.instances[slot]
	if !p.Starts(slot) {
		return
	}
	if it.stage == launching {
		p.starts(it.function, -1)
		it.stage = ready
		return
	}
	p.begun(it)
	it.stage = ready
	if it.pinned {
		p.more[slot].idle = now
		return
	}
	p.gpus[it.gpu].memRunning -= it.mem + p.more[slot].stays
	p.link(slot, now)
	if p.obsolete(it) {
		p.remove(slot)
		return
	}
	p.Trim(it.gpu)
}

// begun takes an instance out of the counts of those that are starting without an
// invocation.
func (p *Pool) begun(it *instance) {
	n := &p.counts[it.function]
	n.starting--
	if it.pinned {
		n.pending--
	}
	p.guard(it.function)
	p.starts(it.function, -1)
}

// Pending reports whether a pinned instance of the function is starting.
func (p *Pool) Pending(function int32) bool { return p.counts[function].pending > 0 }

// Pinned reports whether the instance in a slot is pinned.
func (p *Pool) Pinned(slot int32) bool { return p.instances[slot].pinned }

// Measured says how many bytes of its GPU an instance takes, and how many of them stay
// there when its memory is moved to the host. It counts for that many from now on, but
// for no less than it was promised.
func (p *Pool) Measured(slot int32, mem, stays int64) {
	it := &p.instances[slot]
	d := &p.gpus[it.gpu]
	more := max(mem-stays, p.more[slot].least) - it.mem
	less := p.more[slot].stays - stays
	if more == 0 && less == 0 {
		return
	}
	p.varies = true
	switch it.stage {
	case ready, prefetches, starting, launching:
		linked := it.idles()
		if linked {
			p.unlink(slot)
		}
		it.mem += more
		if it.resident {
			d.memUsed += more
		}
		if it.pinned {
			d.pinned += more - less
		}
		if it.pinned || it.calls > 0 || it.stage == starting {
			d.memRunning += more - less
		}
		if linked {
			p.relink(slot)
		}
	case offloads, stops:
		it.mem += more
		if it.resident {
			d.leaving += more
		}
	default:
		return
	}
	p.more[slot].stays = stays
	if it.stage == stops {
		d.leaving -= less
	} else {
		d.memUsed -= less
	}
	if it.pinned {
		p.dropObsolete(it.gpu)
	}
	p.settle(it.gpu)
}

// Starved says that the start of the instance in a slot failed because its GPU had too
// little memory: an instance of the function needs more than was free there. It reports
// whether there will be more once what else is on the GPU has made room. Lost follows.
func (p *Pool) Starved(slot int32) bool {
	it := &p.instances[slot]
	d, f, n := &p.gpus[it.gpu], &p.costs[it.function], &p.counts[it.function]
	if d.mem == 0 {
		return false
	}
	free := d.free() + it.mem + p.more[slot].stays
	if p.need(d, f) <= free {
		n.floor = free + 1
		f.need = max(f.need, n.floor)
		p.varies = true
	}
	return p.need(d, f) > free
}

// Fed says that an instance of the function has started: what Starved found is over.
func (p *Pool) Fed(function int32) {
	if n := &p.counts[function]; n.floor > 0 {
		n.floor = 0
		p.costs[function].need = max(p.functions[function].Mem, p.functions[function].Need)
	}
}

// Moved says that the memory of an instance is where it was told to go, the
// host or the GPU, or that it could not go there.
func (p *Pool) Moved(slot int32, to Start, done bool) {
	it := &p.instances[slot]
	d := &p.gpus[it.gpu]
	switch {
	case it.stage == offloads && to == HostWarm:
		d.leaving -= it.mem
		it.stage = ready
		if it.resident = !done; !done {
			p.more[slot].stuck = true // it will be stopped, if there must be room
			d.memUsed += it.mem
		}
		p.relink(slot)
		if p.obsolete(it) {
			p.remove(slot)
		}
	case it.stage == prefetches && to == GPUWarm && it.calls > 0:
		it.stage = ready
	case it.stage == prefetches && to == GPUWarm:
		p.unlink(slot)
		if !done {
			d.memUsed -= it.mem
			it.resident = false
		}
		it.stage = ready
		p.relink(slot)
	default:
		return
	}
	p.settle(it.gpu)
}

// Lost says that an instance is no more, whether it was told to stop or not.
// What ran on it ends by End.
func (p *Pool) Lost(slot int32) {
	it := &p.instances[slot]
	d := &p.gpus[it.gpu]
	if it.stage == waits {
		p.undo(slot)
	}
	switch it.stage {
	case ready, prefetches:
		if it.idles() {
			p.unlink(slot)
		}
		if it.calls > 0 || it.pinned {
			d.memRunning -= it.mem + p.more[slot].stays
		}
		if it.pinned {
			d.pinned -= it.mem + p.more[slot].stays
		}
		if it.resident {
			d.memUsed -= it.mem
		}
		d.memUsed -= p.more[slot].stays
	case starting:
		d.memRunning -= it.mem + p.more[slot].stays
		d.memUsed -= it.mem + p.more[slot].stays
		if it.pinned {
			d.pinned -= it.mem + p.more[slot].stays
		}
		p.begun(it)
	case launching:
		d.memRunning -= it.mem + p.more[slot].stays
		d.memUsed -= it.mem + p.more[slot].stays
		p.starts(it.function, -1)
	case offloads, stops:
		if it.resident {
			d.leaving -= it.mem
		}
		if it.stage == stops {
			d.leaving -= p.more[slot].stays
		} else {
			d.memUsed -= p.more[slot].stays
		}
	default:
		return
	}
	if it.stage != stops {
		d.exist--
		p.uncount(it)
	}
	it.resident, it.mem, p.more[slot].stays = false, 0, 0
	if it.stage = lost; it.calls == 0 {
		p.vacate(slot)
	}
	p.settle(it.gpu)
}

// Waits says whether what was to begin on an instance waits for room.
func (p *Pool) Waits(slot int32) bool { return p.instances[slot].stage == waits }

// Withdraw takes back what was to begin on an instance that waits for room.
func (p *Pool) Withdraw(slot int32) {
	gpu := p.instances[slot].gpu
	p.undo(slot)
	p.settle(gpu)
}

// undo is Withdraw without looking at what else waits.
func (p *Pool) undo(slot int32) {
	it := &p.instances[slot]
	d := &p.gpus[it.gpu]
	p.withdraw(slot)
	d.running--
	d.memRunning -= it.mem + p.more[slot].stays
	d.memUsed -= it.mem
	p.take(d, -p.needed(slot))
	it.calls, it.resident, it.stage = 0, false, ready
	if it.unstarted() {
		d.exist--
		p.uncount(it)
		p.vacate(slot)
		return
	}
	p.relink(slot)
	if p.obsolete(it) {
		p.remove(slot)
	}
}

// withdraw takes an instance out of its GPU's queue for room.
func (p *Pool) withdraw(slot int32) {
	it := &p.instances[slot]
	d := &p.gpus[it.gpu]
	for i, c := range d.queue {
		if c == slot {
			d.queue = append(d.queue[:i], d.queue[i+1:]...)
			d.queued -= it.mem
			it.stage = ready
			return
		}
	}
}

// settle has begin what there is room for now, first come first served. Where
// memory could not be moved, something else goes, or what came last for the
// room is to be placed anew.
func (p *Pool) settle(gpu int32) {
	d := &p.gpus[gpu]
	for !p.makeRoom(gpu, 0) && len(d.queue) > 0 {
		last := d.queue[len(d.queue)-1]
		p.change(Bumped, last)
		p.undo(last)
	}
	for len(d.queue) > 0 {
		c := d.queue[0]
		if d.mem > 0 && d.memUsed-d.queued+p.instances[c].mem+d.leaving > d.mem {
			return
		}
		p.withdraw(c)
		if it := &p.instances[c]; it.unstarted() {
			it.stage = launching
			p.starts(it.function, 1)
		}
		p.change(Placed, c)
	}
}

// Expire stops idle instances that have been so for as long as their function
// lets them, beyond those to keep, and says when the next is to; never if none
// is.
func (p *Pool) Expire(now time.Duration) (next time.Duration) {
	if now < p.expiry {
		return p.expiry
	}
	return p.expire(now)
}

// expire is Expire where something may have idled for long enough.
func (p *Pool) expire(now time.Duration) (next time.Duration) {
	p.expiry = never
	for i := range p.instances {
		it := &p.instances[i]
		idle := time.Duration(0)
		if it.stage != vacant {
			idle = p.functions[it.function].Idle
		}
		if idle == 0 || !it.idles() || p.kept(it) {
			continue
		}
		if now-p.more[i].idle >= idle {
			p.remove(int32(i))
		} else {
			p.expiry = min(p.expiry, p.more[i].idle+idle)
		}
	}
	return p.expiry
}

// Standing is how an instance stands.
type Standing struct {
	Instance      ID
	Function, GPU int32
	Mem           int64 // bytes on the GPU now
	Calls         int   // invocations that it runs
	State         string
	Since         time.Duration // idle: since when
}

// Instances are all there are, in no order that lasts.
func (p *Pool) Instances() []Standing {
	var out []Standing
	for i := range p.instances {
		it := &p.instances[i]
		if it.stage == vacant {
			continue
		}
		s := Standing{Instance: p.Instance(int32(i)), Function: it.function, GPU: it.gpu, Calls: int(it.calls), Since: p.more[i].idle,
			State: [...]string{ready: "idle", waits: "waits for room", starting: "starting", launching: "starting", offloads: "offloading",
				prefetches: "prefetching", stops: "stopping", lost: "lost"}[it.stage]}
		if it.resident && it.stage != waits {
			s.Mem = it.mem
		}
		if it.stage == ready && it.calls > 0 {
			s.State = "running"
		}
		out = append(out, s)
	}
	return out
}

// Dismiss stops the idle instance of a function on a GPU that it would use next.
func (p *Pool) Dismiss(function, gpu int32) {
	if _, c := p.lookUp(p.idle(function), int(gpu)); c != none {
		p.remove(c)
	}
}
