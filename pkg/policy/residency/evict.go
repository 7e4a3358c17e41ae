package residency

// eviction chooses the instances to evict. It changes nothing.
type eviction struct{ *ledger }

// first returns the first instance of a list in eviction order, or none: the instance with the
// least worth or, without Config.Worth, instances of functions that Config.EvictLast does not
// protect, then the least recently finished (R8).
func (e eviction) first(l list, of linkOf, remove bool) int32 {
	if e.config.Worth != nil {
		index, _ := e.leastWorth(l, of, remove)
		return index
	}
	last := none
	for index := l.head; index != none; index = of(&e.instances[index]).next {
		it := &e.instances[index]
		if remove && e.neededForMin(it.function) {
			continue
		}
		if e.config.EvictLast == nil || !e.config.EvictLast(it.function) {
			return index
		}
		if last == none {
			last = index
		}
	}
	return last
}

// leastWorth returns the instance of a list with the least worth, and that worth. Unless remove is
// set, it compares and returns the worth over the instance's memory.
func (e eviction) leastWorth(l list, of linkOf, remove bool) (least int32, worth float64) {
	least = none
	for index := l.head; index != none; index = of(&e.instances[index]).next {
		it := &e.instances[index]
		if remove && e.neededForMin(it.function) {
			continue
		}
		w := e.worth(it, remove)
		if !remove {
			w /= float64(it.mem)
		}
		if least == none || w < worth {
			least, worth = index, w
		}
	}
	return least, worth
}

// worth returns the cost of doing without an idle instance, or without its memory on the GPU. The
// GPUs with idle instances of a function share the cost.
func (e eviction) worth(it *instance, remove bool) float64 {
	lower, from := HostWarm, GPUWarm
	if remove {
		lower = Cold
	}
	if !it.resident {
		from = HostWarm
	}
	warm, host := e.rows.count(&e.hot[it.function])
	extra := max(e.DurationOn(it.function, it.gpu, lower)-e.DurationOn(it.function, it.gpu, from), 0)
	return e.config.Worth(it.function, extra) / float64(max(warm+host, 1))
}

// loss returns the approximate cost of making room for a function on a GPU: that of the first
// instance to evict, or 0.
func (e eviction) loss(gpu, function int32, cold bool) float64 {
	d := &e.gpus[gpu]
	mem := d.countedMem(&e.hot[function])
	switch {
	case cold && e.full(d):
		_, worth := e.leastWorth(d.idle, idleOf, true)
		return worth
	case !d.fits(d.mem.used + mem):
		_, worth := e.leastWorth(d.warm, warmOf, false)
		return worth * float64(mem)
	}
	return 0
}

// othersWorth returns the worth of other functions' memory on a GPU, or a part of it that is at
// least enough.
func (e eviction) othersWorth(gpu, function int32, enough float64) (sum float64) {
	for index := e.gpus[gpu].warm.head; index != none && sum < enough; index = e.instances[index].warm.next {
		if e.instances[index].function != function {
			sum += e.worth(&e.instances[index], false)
		}
	}
	return sum
}

// parked returns the idle instance on the host, with some memory on the GPU, that finished least
// recently, or none.
func (e eviction) parked(gpu int32) int32 {
	first := none
	for i := range e.instances {
		if !e.sizesVary {
			break
		}
		it := &e.instances[i]
		if it.gpu == gpu && it.isIdle() && !it.resident && e.details[i].residual > 0 && (first == none || it.finished < e.instances[first].finished) {
			first = int32(i)
		}
	}
	return first
}
