package residency

import (
	"slices"
	"time"
)

// link is an instance's place in a list: its neighbours, or none.
type link struct{ prev, next int32 }

// idleInstance is an entry of a list of idle instances. It repeats fields of the instance, so that a
// search for an instance to evict reads the list in sequence, and not one instance after another.
type idleInstance struct {
	function, index int32
	resident        bool
}

// idleList lists idle instances, least recently finished first. Lists are short: their length is bounded
// by the limit of the pool, or by the memory of a GPU.
type idleList []idleInstance

// insert adds an instance to a list. newest reports that it finished last of all.
func (l *idleList) insert(instances []instance, index int32, newest bool) {
	it, at := &instances[index], len(*l)
	for !newest && at > 0 && instances[(*l)[at-1].index].finished > it.finished {
		at--
	}
	*l = slices.Insert(*l, at, idleInstance{it.function, index, it.resident})
}

// remove removes an instance from a list.
func (l *idleList) remove(index int32) {
	at := slices.IndexFunc(*l, func(it idleInstance) bool { return it.index == index })
	*l = slices.Delete(*l, at, at+1)
}

// first returns the first instance of a list, or none.
func (l idleList) first() int32 {
	if len(l) == 0 {
		return none
	}
	return l[0].index
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
	it.idleSince, it.moveFailed = now, false
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
	newest := it.finished == l.finishes
	if l.config.listsIdle() {
		l.idle[it.gpu].insert(l.instances, index, newest)
	}
	if l.movable(&l.gpus[it.gpu], it) {
		l.warm[it.gpu].insert(l.instances, index, newest)
		l.updateFirstWarm(it.gpu)
	}
	if l.tenants != nil {
		l.addIdle(index, 1)
	}
}

// unlink removes an idle instance from its lists.
func (l *ledger) unlink(index int32) {
	it := &l.instances[index]
	if it.sameFunction.next != none {
		l.instances[it.sameFunction.next].sameFunction.prev = it.sameFunction.prev
	} else {
		l.setNewest(it.function, it.gpu, it.sameFunction.prev)
	}
	if it.sameFunction.prev != none {
		l.instances[it.sameFunction.prev].sameFunction.next = it.sameFunction.next
	}
	if l.config.listsIdle() {
		l.idle[it.gpu].remove(index)
	}
	if l.movable(&l.gpus[it.gpu], it) {
		l.warm[it.gpu].remove(index)
		l.updateFirstWarm(it.gpu)
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
