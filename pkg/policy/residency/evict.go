package residency

// eviction chooses the instances to evict. It changes nothing.
type eviction struct{ *ledger }

// first returns the first instance of a list of a GPU in eviction order, or none: the instance with the
// least worth or, without Config.Worth, instances of functions that Config.EvictLast does not
// protect, then the least recently finished (R8).
func (e eviction) first(gpu int32, l idleList, remove bool) int32 {
	if e.config.Worth != nil {
		index, _ := e.leastWorth(gpu, l, remove)
		return index
	}
	last := none
	for _, it := range l {
		if remove && e.neededForMin(it.function) {
			continue
		}
		if e.config.EvictLast == nil || !e.config.EvictLast(it.function) {
			return it.index
		}
		if last == none {
			last = it.index
		}
	}
	return last
}

// leastWorth returns the instance of a list of a GPU with the least worth, and that worth. Unless remove is
// set, it compares and returns the worth over the instance's memory.
func (e eviction) leastWorth(gpu int32, l idleList, remove bool) (least int32, worth float64) {
	least = none
	for _, entry := range l {
		if remove && e.neededForMin(entry.function) {
			continue
		}
		w := e.worth(entry.function, gpu, entry.resident, remove)
		if !remove {
			w /= float64(e.instances[entry.index].mem)
		}
		if least == none || w < worth {
			least, worth = entry.index, w
		}
	}
	return least, worth
}

// worth returns the cost of doing without an idle instance of a function, or without its memory on the
// GPU. The GPUs with idle instances of a function share the cost.
func (e eviction) worth(function, gpu int32, resident, remove bool) float64 {
	f, lower, from := &e.hot[function], HostWarm, GPUWarm
	if remove {
		lower = Cold
	}
	if !resident {
		from = HostWarm
	}
	extra := max(e.DurationOn(function, gpu, lower)-e.DurationOn(function, gpu, from), 0)
	return e.config.Worth(function, extra) / float64(max(f.warm+f.host, 1))
}

// loss returns the approximate cost of making room for a function on a GPU: that of the first
// instance to evict, or 0.
func (e eviction) loss(gpu, function int32, cold bool) float64 {
	d := &e.gpus[gpu]
	mem := d.countedMem(&e.hot[function])
	switch {
	case cold && e.full(d):
		_, worth := e.leastWorth(gpu, e.idle[gpu], true)
		return worth
	case !d.fits(d.mem.used + mem):
		_, worth := e.leastWorth(gpu, e.warm[gpu], false)
		return worth * float64(mem)
	}
	return 0
}

// othersWorth returns the worth of other functions' memory on a GPU, or a part of it that is at
// least enough.
func (e eviction) othersWorth(gpu, function int32, enough float64) (sum float64) {
	for _, f := range e.firstWarm[gpu] {
		if f == none {
			return sum
		}
		if f != function {
			sum += e.worth(f, gpu, true, false)
		}
		if sum >= enough {
			return sum
		}
	}
	for _, it := range e.warm[gpu][len(e.firstWarm[gpu]):] {
		if sum >= enough {
			break
		}
		if it.function != function {
			sum += e.worth(it.function, gpu, true, false)
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
