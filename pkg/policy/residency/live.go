package residency

import "time"

// What follows is of pools whose instances start, move, stop and die in a time
// of their own.

// Adopt makes an instance known that runs already: what a plan started, or what
// was there before a restart. Its name is below None. Resident says whether its
// memory is on the GPU.
//
// One that is pinned is another's: it is neither stopped nor moved for anything, and
// not found as a place; who knows its slot has it run by Join and End, which takes
// no slot of its GPU. Its memory is taken as what runs takes it. It goes when its
// GPU or its function does.
func (p *Pool) Adopt(id ID, function, gpu int32, resident, pinned bool, now time.Duration) (slot int32, ok bool) {
	if id >= None || p.Slot(id) != none {
		return none, false
	}
	c := p.create(function, gpu)
	it, d := &p.instances[c], &p.gpus[gpu]
	it.adopted, p.adopted[id], p.names[c] = true, c, id
	it.resident = resident || pinned
	if it.pinned = pinned; pinned {
		d.memRunning += it.mem
		d.pinned += it.mem
	}
	resident = it.resident
	d.exist++
	if resident {
		d.memUsed += it.mem
	}
	if pinned {
		p.more[c].idle = now
	} else {
		p.link(c, now)
	}
	if p.obsolete(it) {
		p.remove(c)
	}
	p.settle(gpu)
	return c, true
}

// Start starts an instance of a function that has nothing to run yet, where
// that takes nothing from others: on the GPU with the fewest of its own, then
// the fewest in all. It says so by a Started change.
func (p *Pool) Start(function int32) (slot int32, ok bool) {
	best, own, mem := none, int32(0), p.functions[function].Mem
	for g := range p.gpus {
		d := &p.gpus[g]
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
	d.memUsed += mem
	d.memRunning += mem
	p.counts[function].starting++
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
	p.starts(it.function, -1)
	if it.stage == launching {
		it.stage = ready
		return
	}
	d := &p.gpus[it.gpu]
	d.memRunning -= it.mem
	p.counts[it.function].starting--
	it.stage = ready
	p.link(slot, now)
	if p.obsolete(it) {
		p.remove(slot)
		return
	}
	p.Trim(it.gpu)
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
			d.memRunning -= it.mem
		}
		if it.pinned {
			d.pinned -= it.mem
		}
		if it.resident {
			d.memUsed -= it.mem
		}
	case starting:
		d.memRunning -= it.mem
		d.memUsed -= it.mem
		p.counts[it.function].starting--
		p.starts(it.function, -1)
	case launching:
		d.memRunning -= it.mem
		d.memUsed -= it.mem
		p.starts(it.function, -1)
	case offloads, stops:
		if it.resident {
			d.leaving -= it.mem
		}
	default:
		return
	}
	if it.stage != stops {
		d.exist--
		p.uncount(it)
	}
	it.resident, it.mem = false, 0
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
	d.memRunning -= it.mem
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
