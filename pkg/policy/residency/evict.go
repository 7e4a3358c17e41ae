package residency

import "time"

// full says whether a GPU must lose an instance before it gets another.
func (p *Pool) full(d *device) bool {
	return p.config.Pool != Unlimited && int(d.exist) >= p.config.Pool
}

// removeFirst removes the first idle instance of a GPU in eviction order;
// false when all are running, or to be kept.
func (p *Pool) removeFirst(gpu int32) bool {
	c := p.first(p.gpus[gpu].idle, idleOf, true)
	if c == none {
		return false
	}
	p.remove(c)
	return true
}

// kept says whether an instance is one of the least number of its function's.
func (p *Pool) kept(it *instance) bool {
	least := p.functions[it.function].Min
	return least > 0 && int(p.counts[it.function].all) <= least && !p.counts[it.function].gone
}

// remove removes an idle instance.
func (p *Pool) remove(c int32) {
	it := &p.instances[c]
	d := &p.gpus[it.gpu]
	if it.pinned {
		d.memRunning -= it.mem + p.more[c].stays
		d.pinned -= it.mem + p.more[c].stays
		if it.stage == starting {
			p.begun(it)
		}
	} else {
		p.unlink(c)
	}
	p.depart(c, Removed)
}

// depart has an instance that runs nothing, and is in no list, go.
func (p *Pool) depart(c int32, how Verb) {
	it := &p.instances[c]
	d := &p.gpus[it.gpu]
	d.exist--
	p.uncount(it)
	p.change(how, c)
	if it.resident {
		d.memUsed -= it.mem
	}
	d.memUsed -= p.more[c].stays
	it.stage = stops
	if it.resident {
		d.leaving += it.mem
	}
	d.leaving += p.more[c].stays
}

// uncount takes an instance out of its function's number of instances.
func (p *Pool) uncount(it *instance) {
	if !it.stale {
		p.counts[it.function].all--
	}
}

// vacate gives a slot back.
func (p *Pool) vacate(c int32) {
	it := &p.instances[c]
	if it.adopted {
		delete(p.adopted, p.names[c])
		delete(p.names, c)
	}
	it.stage = vacant
	p.counts[it.function].held--
	p.freed = append(p.freed, c)
}

// makeRoom moves the memory of idle instances to the host, or removes them or those that
// are there already and keep some on the GPU, until mem fits. The caller has checked that
// it fits beside what runs.
func (p *Pool) makeRoom(gpu int32, mem int64) bool {
	d := &p.gpus[gpu]
	for d.mem != 0 && d.memUsed+mem > d.mem {
		c := p.first(d.warm, warmOf, p.config.NoHost)
		if c == none && p.config.NoHost {
			c = d.warm.head // more are kept than there is room for
		}
		if c == none {
			if c = p.parked(gpu); c == none {
				return false
			}
			p.remove(c)
			continue
		}
		if p.config.NoHost || p.more[c].stuck {
			p.remove(c)
		} else {
			p.offload(c)
		}
	}
	return true
}

// parked returns the idle instance whose memory is on the host, but for some of it, that
// finished least recently.
func (p *Pool) parked(gpu int32) int32 {
	first := none
	for i := range p.instances {
		if !p.varies {
			break
		}
		it := &p.instances[i]
		if it.gpu == gpu && it.idles() && !it.resident && p.more[i].stays > 0 && (first == none || it.finished < p.instances[first].finished) {
			first = int32(i)
		}
	}
	return first
}

// offload moves the memory of an idle instance to the host.
func (p *Pool) offload(c int32) {
	it := &p.instances[c]
	d := &p.gpus[it.gpu]
	p.change(Offloaded, c)
	d.memUsed -= it.mem
	p.unlink(c)
	it.stage = offloads
	d.leaving += it.mem
}

// first is the first instance of a list in eviction order: of functions not
// to keep first, then the one that finished least recently (R8); or the one
// worth least.
func (p *Pool) first(l list, of linkOf, remove bool) int32 {
	if p.config.Worth != nil {
		c, _ := p.least(l, of, remove)
		return c
	}
	last := none
	for c := l.head; c != none; c = of(&p.instances[c]).next {
		it := &p.instances[c]
		if remove && p.kept(it) {
			continue
		}
		if p.config.Keep == nil || !p.config.Keep(it.function) {
			return c
		}
		if last == none {
			last = c
		}
	}
	return last
}

// least is the instance of a list that is worth least, and how much: by the
// memory it frees, where that is what is short.
func (p *Pool) least(l list, of linkOf, remove bool) (least int32, worth float64) {
	least = none
	for c := l.head; c != none; c = of(&p.instances[c]).next {
		it := &p.instances[c]
		if remove && p.kept(it) {
			continue
		}
		w := p.worth(it, remove)
		if !remove {
			w /= float64(it.mem)
		}
		if least == none || w < worth {
			least, worth = c, w
		}
	}
	return least, worth
}

// worth is what it costs to do without an idle instance, or without its
// memory on the GPU; that of a function with several is shared among them.
func (p *Pool) worth(it *instance, remove bool) float64 {
	f := &p.costs[it.function]
	lower := HostWarm
	if remove {
		lower = Cold
	}
	from := GPUWarm
	if !it.resident {
		from = HostWarm
	}
	copies := 0
	for _, c := range p.idle(it.function) {
		if c != none {
			copies++
		}
	}
	return p.config.Worth(it.function, max(f.duration[lower]-f.duration[from], 0)) / float64(max(copies, 1))
}

// loss is what making room for a function on a GPU costs, about: nothing, or
// what goes first.
func (p *Pool) loss(gpu int, function int32, cold bool) float64 {
	d := &p.gpus[gpu]
	mem := p.need(d, &p.costs[function])
	if cold && p.full(d) {
		_, worth := p.least(d.idle, idleOf, true)
		return worth
	}
	if d.mem != 0 && d.memUsed+mem > d.mem {
		_, worth := p.least(d.warm, warmOf, false)
		return worth * float64(mem)
	}
	return 0
}

// others is the worth of what else has its memory on a GPU.
func (p *Pool) others(gpu, function int32) (sum float64) {
	for c := p.gpus[gpu].warm.head; c != none; c = p.instances[c].warm.next {
		if p.instances[c].function != function {
			sum += p.worth(&p.instances[c], false)
		}
	}
	return sum
}

// Prefetch brings the memory of a function's idle instance back to its GPU, if
// it is on no other and there is room for it. Ready is when it will be there.
func (p *Pool) Prefetch(function int32, ready time.Duration) (slot int32, ok bool) {
	back := none
	for g := range p.idle(function) {
		switch start, c := p.lookUp(p.idle(function), g); {
		case start == GPUWarm:
			return none, false
		case start == HostWarm && back == none && p.gpus[g].free() >= p.instances[c].mem:
			back = c
		}
	}
	if back == none {
		return none, false
	}
	it := &p.instances[back]
	p.unlink(back)
	it.mem = p.claim(&p.gpus[it.gpu], back)
	p.makeRoom(it.gpu, it.mem)
	it.resident, p.more[back].ready = true, ready
	p.gpus[it.gpu].memUsed += it.mem
	it.stage = prefetches
	p.link(back, p.more[back].idle)
	return back, true
}

// free returns the bytes of a GPU that nothing has, and nothing waits for.
func (d *device) free() int64 { return d.mem - d.memUsed - d.leaving }

// Ready is when the memory of an instance is there, if it was prefetched.
func (p *Pool) Ready(c int32) time.Duration { return p.more[c].ready }

// lists reports whether the idle instances of a GPU are listed: without a limit on them
// nothing looks for one.
func (c *Config) lists() bool { return c.Pool != Unlimited || c.Clears }

// listed says whether an instance's memory can make room for another's: not while
// it is on its way. One that is to go takes its turn even if it has none.
func (p *Pool) listed(d *device, it *instance) bool {
	return d.mem > 0 && (it.mem > 0 || p.config.NoHost) && it.stage != prefetches
}

// idles says whether an instance is in the lists.
func (it *instance) idles() bool {
	return (it.stage == ready || it.stage == prefetches) && it.calls == 0 && !it.pinned
}

// unstarted reports whether an instance has yet to be started: nothing ended on it.
func (it *instance) unstarted() bool { return it.finished == 0 }

// rests says whether an instance is pinned and runs nothing.
func (it *instance) rests() bool {
	return it.pinned && (it.stage == ready || it.stage == starting) && it.calls == 0
}

// linkOf tells which of its lists an instance is looked at in.
type linkOf func(*instance) *link

func idleOf(it *instance) *link { return &it.idle }
func warmOf(it *instance) *link { return &it.warm }

// unlink takes an idle instance out of its lists.
func (p *Pool) unlink(c int32) {
	it := &p.instances[c]
	d := &p.gpus[it.gpu]
	if it.mine.next != none {
		p.instances[it.mine.next].mine.prev = it.mine.prev
	} else {
		p.idle(it.function)[it.gpu] = it.mine.prev
	}
	if it.mine.prev != none {
		p.instances[it.mine.prev].mine.next = it.mine.next
	}
	if p.config.lists() {
		p.drop(&d.idle, c, idleOf)
	}
	if it.resident && p.listed(d, it) {
		p.drop(&d.warm, c, warmOf)
	}
}

// insert puts an instance in a list, behind all that finished before it.
func (p *Pool) insert(l *list, c int32, of linkOf) {
	after, before := l.tail, none
	for after != none && p.instances[after].finished > p.instances[c].finished {
		after, before = of(&p.instances[after]).prev, after
	}
	*of(&p.instances[c]) = link{prev: after, next: before}
	if after == none {
		l.head = c
	} else {
		of(&p.instances[after]).next = c
	}
	if before == none {
		l.tail = c
	} else {
		of(&p.instances[before]).prev = c
	}
}

func (p *Pool) drop(l *list, c int32, of linkOf) {
	at := *of(&p.instances[c])
	if at.prev == none {
		l.head = at.next
	} else {
		of(&p.instances[at.prev]).next = at.next
	}
	if at.next == none {
		l.tail = at.prev
	} else {
		of(&p.instances[at.next]).prev = at.prev
	}
}
