package residency

import "time"

// link is an instance's place in a list: its neighbours, or none.
type link struct{ prev, next int32 }

// list is a list of idle instances, in order of finished.
type list struct{ head, tail int32 }

// linkOf selects one of the lists of an instance.
type linkOf func(*instance) *link

func idleOf(it *instance) *link { return &it.idle }
func warmOf(it *instance) *link { return &it.warm }

// insert adds an instance to a list.
func (l *list) insert(instances []instance, index int32, of linkOf) {
	after, before := l.tail, none
	for after != none && instances[after].finished > instances[index].finished {
		after, before = of(&instances[after]).prev, after
	}
	*of(&instances[index]) = link{prev: after, next: before}
	if after == none {
		l.head = index
	} else {
		of(&instances[after]).next = index
	}
	if before == none {
		l.tail = index
	} else {
		of(&instances[before]).prev = index
	}
}

// remove removes an instance from a list.
func (l *list) remove(instances []instance, index int32, of linkOf) {
	at := *of(&instances[index])
	if at.prev == none {
		l.head = at.next
	} else {
		of(&instances[at.prev]).next = at.next
	}
	if at.next == none {
		l.tail = at.prev
	} else {
		of(&instances[at.next]).prev = at.prev
	}
}

// listsIdle reports whether the GPUs' lists of idle instances are needed: for a limit on their
// number, or for Clear.
func (c *Config) listsIdle() bool { return c.Pool != Unlimited || c.UsesClear }

// movable reports whether the memory of an idle instance can be evicted. Memory that is being
// prefetched cannot. With NoHost, instances without memory take part as well.
func (l *ledger) movable(d *device, it *instance) bool {
	return it.resident && d.limit > 0 && (it.mem > 0 || l.config.NoHost) && it.stage != prefetching
}

// link adds an idle instance to its lists, as the most recently finished.
func (l *ledger) link(index int32, now time.Duration) {
	l.finishes++
	it := &l.instances[index]
	it.finished = l.finishes
	l.details[index].idleSince, l.details[index].moveFailed = now, false
	if l.expires {
		if idle := l.specs[it.function].Idle; idle > 0 {
			l.expiry = min(l.expiry, now+idle)
		}
	}
	l.relink(index)
}

// relink adds an idle instance to its lists, in order of finished.
func (l *ledger) relink(index int32) {
	it := &l.instances[index]
	d := &l.gpus[it.gpu]
	// The newest instance of the function is the end of the list; the row stores no head.
	after, before := l.rows.on(&l.hot[it.function], it.gpu), none
	for after != none && l.instances[after].finished > it.finished {
		after, before = l.instances[after].sameFunction.prev, after
	}
	it.sameFunction = link{prev: after, next: before}
	if after != none {
		l.instances[after].sameFunction.next = index
	}
	if before != none {
		l.instances[before].sameFunction.prev = index
	} else {
		l.setNewest(it.function, it.gpu, index)
	}
	if l.config.listsIdle() {
		d.idle.insert(l.instances, index, idleOf)
	}
	if l.movable(d, it) {
		d.warm.insert(l.instances, index, warmOf)
	}
	if l.tenants != nil {
		l.addIdle(index, 1)
	}
}

// unlink removes an idle instance from its lists.
func (l *ledger) unlink(index int32) {
	it := &l.instances[index]
	d := &l.gpus[it.gpu]
	if it.sameFunction.next != none {
		l.instances[it.sameFunction.next].sameFunction.prev = it.sameFunction.prev
	} else {
		l.setNewest(it.function, it.gpu, it.sameFunction.prev)
	}
	if it.sameFunction.prev != none {
		l.instances[it.sameFunction.prev].sameFunction.next = it.sameFunction.next
	}
	if l.config.listsIdle() {
		d.idle.remove(l.instances, index, idleOf)
	}
	if l.movable(d, it) {
		d.warm.remove(l.instances, index, warmOf)
	}
	if l.tenants != nil {
		l.addIdle(index, -1)
	}
}

// setNewest sets the idle instance of a function on a GPU that finished last.
func (l *ledger) setNewest(function, gpu, index int32) {
	l.touch(function, gpu)
	l.rows.set(&l.hot[function], gpu, index, index != none && (l.gpus[gpu].limit == 0 || l.instances[index].resident))
}
