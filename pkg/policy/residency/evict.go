package residency

import "time"

// full says whether a GPU must lose a container before it gets another.
func (p *Pool) full(d *device) bool {
	return p.config.Pool != Unlimited && int(d.exist) >= p.config.Pool
}

// removeFirst removes the first idle container of a GPU in eviction order;
// false when all are running.
func (p *Pool) removeFirst(gpu int32) bool {
	c := p.first(p.gpus[gpu].idle, idleOf, true)
	if c == none {
		return false
	}
	p.remove(c)
	return true
}

// remove removes an idle container.
func (p *Pool) remove(c int32) {
	it := &p.containers[c]
	d := &p.gpus[it.gpu]
	p.unlink(c)
	if it.resident {
		d.memUsed -= it.mem
	}
	d.exist--
	p.freed = append(p.freed, c)
	p.changes = append(p.changes, Change{Removed: true, GPU: it.gpu, Function: it.function, Container: c})
}

// makeRoom moves the memory of idle containers to the host until mem fits.
// The caller has checked that it fits beside what runs.
func (p *Pool) makeRoom(gpu int32, mem int64) {
	d := &p.gpus[gpu]
	for p.config.Mem != 0 && d.memUsed+mem > p.config.Mem {
		c := p.first(d.warm, warmOf, false)
		if c == none {
			return
		}
		it := &p.containers[c]
		p.drop(&d.warm, c, warmOf)
		it.resident = false
		d.memUsed -= it.mem
		p.changes = append(p.changes, Change{GPU: gpu, Function: it.function, Container: c})
	}
}

// first is the first container of a list in eviction order: of functions not
// to keep first, then the one that finished least recently (R8); or the one
// worth least.
func (p *Pool) first(l list, of linkOf, remove bool) int32 {
	if p.config.Worth != nil {
		c, _ := p.least(l, of, remove)
		return c
	}
	if p.config.Keep == nil {
		return l.head
	}
	for c := l.head; c != none; c = of(&p.containers[c]).next {
		if !p.config.Keep(p.containers[c].function) {
			return c
		}
	}
	return l.head
}

// least is the container of a list that is worth least, and how much: by the
// memory it frees, where that is what is short.
func (p *Pool) least(l list, of linkOf, remove bool) (least int32, worth float64) {
	least = none
	for c := l.head; c != none; c = of(&p.containers[c]).next {
		it := &p.containers[c]
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

// worth is what it costs to do without an idle container, or without its
// memory on the GPU; that of a function with several is shared among them.
func (p *Pool) worth(it *container, remove bool) float64 {
	f := &p.config.Function[it.function]
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
	return p.config.Worth(it.function, max(f.Duration[lower]-f.Duration[from], 0)) / float64(max(copies, 1))
}

// loss is what making room for a function on a GPU costs, about: nothing, or
// what goes first.
func (p *Pool) loss(gpu int, function int32, cold bool) float64 {
	d, mem := &p.gpus[gpu], p.config.Function[function].Mem
	if cold && p.full(d) {
		_, worth := p.least(d.idle, idleOf, true)
		return worth
	}
	if p.config.Mem != 0 && d.memUsed+mem > p.config.Mem {
		_, worth := p.least(d.warm, warmOf, false)
		return worth * float64(mem)
	}
	return 0
}

// others is the worth of what else has its memory on a GPU.
func (p *Pool) others(gpu, function int32) (sum float64) {
	for c := p.gpus[gpu].warm.head; c != none; c = p.containers[c].warm.next {
		if p.containers[c].function != function {
			sum += p.worth(&p.containers[c], false)
		}
	}
	return sum
}

// Prefetch brings the memory of a function's idle container back to its GPU, if
// it is on no other and fits there without what is to be kept. Ready is when it
// will be there.
func (p *Pool) Prefetch(function int32, ready time.Duration) (gpu, container int32, ok bool) {
	back := none
	for g := range p.idle(function) {
		switch start, c := p.lookUp(p.idle(function), g); {
		case start == GPUWarm:
			return none, none, false
		case start == HostWarm && back == none && p.yields(int32(g), p.containers[c].mem):
			back = c
		}
	}
	if back == none {
		return none, none, false
	}
	it := &p.containers[back]
	p.unlink(back)
	p.makeRoom(it.gpu, it.mem)
	it.resident, it.ready = true, ready
	p.gpus[it.gpu].memUsed += it.mem
	p.link(back)
	return it.gpu, back, true
}

// yields says whether memory can be made free without what is to be kept.
func (p *Pool) yields(gpu int32, mem int64) bool {
	d := &p.gpus[gpu]
	free := p.config.Mem - d.memUsed
	for c := d.warm.head; c != none && free < mem; c = p.containers[c].warm.next {
		if p.config.Keep != nil && !p.config.Keep(p.containers[c].function) {
			free += p.containers[c].mem
		}
	}
	return free >= mem
}

// Ready is when the memory of a container is there, if it was prefetched.
func (p *Pool) Ready(c int32) time.Duration { return p.containers[c].ready }

// removes says whether containers are ever removed.
func (c *Config) removes() bool { return c.Pool != Unlimited || c.Clears }

// listed says whether a container's memory can make room for another's.
func (c *container) listed(p *Pool) bool { return c.mem > 0 && p.config.Mem > 0 }

// linkOf tells which of its lists a container is looked at in.
type linkOf func(*container) *link

func idleOf(c *container) *link { return &c.idle }
func warmOf(c *container) *link { return &c.warm }

// unlink takes an idle container out of its lists.
func (p *Pool) unlink(c int32) {
	it := &p.containers[c]
	d := &p.gpus[it.gpu]
	if it.mine.next != none {
		p.containers[it.mine.next].mine.prev = it.mine.prev
	} else {
		p.idle(it.function)[it.gpu] = it.mine.prev
	}
	if it.mine.prev != none {
		p.containers[it.mine.prev].mine.next = it.mine.next
	}
	if p.config.removes() {
		p.drop(&d.idle, c, idleOf)
	}
	if it.resident && it.listed(p) {
		p.drop(&d.warm, c, warmOf)
	}
}

func (p *Pool) append(l *list, c int32, of linkOf) {
	*of(&p.containers[c]) = link{prev: l.tail, next: none}
	if l.tail == none {
		l.head = c
	} else {
		of(&p.containers[l.tail]).next = c
	}
	l.tail = c
}

func (p *Pool) drop(l *list, c int32, of linkOf) {
	at := *of(&p.containers[c])
	if at.prev == none {
		l.head = at.next
	} else {
		of(&p.containers[at.prev]).next = at.next
	}
	if at.next == none {
		l.tail = at.prev
	} else {
		of(&p.containers[at.next]).prev = at.prev
	}
}
