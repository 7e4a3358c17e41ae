package residency

import (
	"iter"
	"math"
	"math/bits"
	"time"
)

// Place is a place for an invocation.
type Place struct {
	GPU   int32
	Start Start
	Index int32 // of the idle instance to use; negative for a cold start
	// Beside reports that the instance takes no slot if the GPU has none free, see Pool.Beside.
	Beside bool
}

// MaxConsidered is the number of GPUs whose losses or waiting times are compared for one
// invocation (R23, R24), so that a decision takes no longer on more GPUs.
const MaxConsidered = 64

// Any stands for any GPU; as the GPU to exclude, for none.
const Any = none

// placement finds GPUs and instances for invocations. It changes nothing.
type placement struct {
	*ledger
	evict eviction
}

// Best returns the place for an invocation (R10): among the GPUs with a free slot and enough
// memory beyond that of running instances, the one with the shortest duration, then the fewest
// running instances, then the lowest number. Unless Any, only is the only permitted GPU, and
// except an excluded GPU.
func (p *placement) Best(function, only, except int32) (best Place, found bool) {
	best.Index = none
	f := &p.hot[function]
	if only != Any {
		if only == except || !p.Free(only) || !p.room(only, f) || !p.tenantPermits(only, f) {
			return best, false
		}
		at := p.PlaceOn(function, only)
		if at.Start == Cold && p.Capped(function) {
			return best, false
		}
		return at, true
	}
	if p.byClass != nil {
		return p.bestOfClasses(function, except)
	}
	for remaining := p.kinds(function); remaining != 0; {
		of := remaining.shortest(f)
		remaining &^= of
		s := p.search(f, of)
		for at, ok := s.next(); ok; at, ok = s.next() {
			if at.GPU != except {
				at.Index = p.rows.on(f, at.GPU)
				return at, true
			}
		}
	}
	return best, false
}

// Cheapest returns the place for an invocation with the shortest duration, then the least loss,
// then the fewest running instances, then the lowest number (R23). The loss is the worth of the
// evicted instances. For a gpu-warm start, it is the worth of the other functions' idle memory on
// the GPU, which is not used in the meantime. Of the GPUs with the shortest duration, it compares
// the losses of the first MaxConsidered, in the order of the last two criteria.
func (p *placement) Cheapest(function int32) (at Place, loss float64, ok bool) {
	if p.byClass != nil {
		return p.cheapestOfClasses(function)
	}
	f := &p.hot[function]
	for remaining := p.kinds(function); remaining != 0 && !ok; {
		of := remaining.shortest(f)
		remaining &^= of
		s := p.search(f, of)
		place, found := s.next()
		if !found {
			continue
		}
		at, ok = place, true
		loss = p.lossAt(place, function, math.Inf(1))
		for n := 1; n < MaxConsidered && loss > 0; n++ {
			if place, found = s.next(); !found {
				break
			}
			if l := p.lossAt(place, function, loss); l < loss {
				at, loss = place, l
			}
		}
	}
	if ok {
		at.Index = p.rows.on(f, at.GPU)
	}
	return at, loss, ok
}

// lossAt returns the loss of an invocation of the function at that place. If the loss is at least enough, it may return any
// value from enough to the loss (see Cheapest).
func (p *placement) lossAt(at Place, function int32, enough float64) float64 {
	if at.Start == GPUWarm {
		return p.evict.othersWorth(at.GPU, function, enough)
	}
	return p.evict.loss(at.GPU, function, at.Start == Cold)
}

// Warm iterates over the GPUs that have an idle instance of the function with its memory there,
// lowest number first, among the first MaxConsidered GPUs that have an idle instance of it.
func (p *placement) Warm(function int32) iter.Seq[int32] {
	return p.rows.each(&p.hot[function], kind(GPUWarm), MaxConsidered)
}

// Expected returns the shortest duration of an invocation on any GPU, busy or not.
func (p *placement) Expected(function int32) time.Duration {
	if p.byClass != nil {
		return p.expectedOfClasses(function)
	}
	of := p.possibleKinds(function)
	if of == 0 {
		return 0
	}
	f := &p.hot[function]
	return f.duration[bits.TrailingZeros8(uint8(of.shortest(f)))]
}

// kinds returns the kinds of start that an invocation of the function may have on any GPU, busy
// or not.
func (p *placement) kinds(function int32) kinds {
	of := p.possibleKinds(function)
	if p.Capped(function) {
		of &^= kind(Cold)
	}
	return of
}

// possibleKinds returns the kinds of start for which there is a GPU, even if the function is
// capped.
func (p *placement) possibleKinds(function int32) (of kinds) {
	f := &p.hot[function]
	if f.warm > 0 {
		of |= kind(GPUWarm)
	}
	if f.host > 0 {
		of |= kind(HostWarm)
	}
	if int(f.warm+f.host) < len(p.gpus) {
		of |= kind(Cold)
	}
	return of
}

// PlaceOn returns the place that an invocation of the function would have on a GPU, free or not.
func (p *placement) PlaceOn(function, gpu int32) Place {
	index := p.rows.on(&p.hot[function], gpu)
	switch {
	case index == none:
		return Place{GPU: gpu, Start: Cold, Index: none}
	case p.gpus[gpu].limit == 0 || p.instances[index].resident:
		return Place{GPU: gpu, Start: GPUWarm, Index: index}
	}
	return Place{GPU: gpu, Start: HostWarm, Index: index}
}

// Blocked reports whether a function has to wait for its own instances even if a GPU is free.
// That is so if it has no idle instance and is capped, a pinned instance is starting, or at least
// as many instances are starting as invocations wait.
func (p *placement) Blocked(function int32, waiting int32) bool {
	if !p.hot[function].guarded {
		return false
	}
	n := &p.counts[function]
	if !p.Capped(function) && n.pending == 0 && (n.starting == 0 || n.starting < waiting) {
		return false
	}
	return p.hot[function].warm+p.hot[function].host == 0
}

// Fits reports whether any GPU can ever hold an instance of the function. While there is no GPU,
// every function fits.
func (p *placement) Fits(function int32) bool {
	largest := p.largestGPU()
	return largest == 0 || p.hot[function].mem <= largest
}

// FitsOn reports whether an instance of the function could ever start on that GPU, in addition to
// its pinned instances and occupied memory.
func (p *placement) FitsOn(gpu, function int32) bool {
	d := &p.gpus[gpu]
	return d.fits(d.occupied + d.mem.pinned + p.hot[function].mem)
}

// Room reports whether an invocation of the function could start on that GPU now: the GPU has
// capacity, and enough memory beyond that of its running instances, and the limits of the function's
// tenant permit it.
func (p *placement) Room(gpu, function int32) bool {
	f := &p.hot[function]
	return p.room(gpu, f) && p.tenantPermits(gpu, f)
}

// room implements Room, except for the limits of the function's tenant.
func (p *placement) room(gpu int32, f *hotFields) bool {
	if !p.hasSlices && !p.sizesVary {
		return p.freeMem.of(gpu) >= f.mem // without a look at the GPU, because a search visits many
	}
	d := &p.gpus[gpu]
	if d.used+d.capacityFor(p.sliceOf(f, p.rows.on(f, gpu))) > d.capacity {
		return false
	}
	if d.limit == 0 {
		return true
	}
	mem := d.countedMem(f)
	if p.sizesVary {
		if index := p.rows.on(f, gpu); index != none {
			if p.instances[index].resident {
				return true // it needs no more memory
			}
			mem = p.memAfterReturn(index) + p.details[index].residual
		}
	}
	return d.mem.running+mem <= d.limit
}

// Spare returns the running instance of the function with the fewest invocations, among those
// that can accept one more.
func (p *placement) Spare(function int32) (index int32, ok bool) {
	if index = none; p.specs[function].Inflight <= 1 || p.counts[function].running == 0 {
		return none, false
	}
	for c := range p.instances {
		if it := &p.instances[c]; it.function == function && p.Accepts(int32(c)) && (index == none || it.inFlight < p.instances[index].inFlight) {
			index = int32(c)
		}
	}
	return index, index != none
}

// SpareWithoutRoom returns the number of invocations that may join the instances of a function that wait for room, once they
// begin.
func (p *placement) SpareWithoutRoom(function int32) (spare int32) {
	if p.specs[function].Inflight <= 1 || p.counts[function].running == 0 {
		return 0
	}
	for i := range p.instances {
		if it := &p.instances[i]; it.function == function && it.stage == queued && it.inFlight > 0 && !p.obsolete(it) {
			spare += int32(p.specs[function].Inflight) - int32(it.inFlight)
		}
	}
	return spare
}

// Accepts reports whether an instance runs invocations and can accept one more.
func (p *placement) Accepts(index int32) bool {
	it := &p.instances[index]
	return it.inFlight > 0 && it.inFlight < int16(p.specs[it.function].Inflight) && !it.pinned &&
		(it.stage == ready || it.stage == prefetching || it.stage == launching) && !p.obsolete(it)
}

// Running reports whether a function has an instance that runs invocations, or is about to, and accepts
// further ones as soon as it runs fewer. Pinned instances do not count.
func (p *placement) Running(function int32) bool {
	if p.counts[function].running == 0 {
		return false
	}
	return !p.mayHaveObsolete || p.anyInstance(function, func(it *instance) bool {
		return it.inFlight > 0 && !it.pinned && !it.hasEnded() && !p.obsolete(it)
	})
}

// Beside returns a place for an invocation that needs no slot, because its instance only uses memory
// that no other needs: an idle instance with its memory on the GPU or, if the function has no instance,
// a GPU where one can start without an eviction. If the function has a slice, the slices of the running
// instances on the GPU and its own are at most the whole GPU.
func (p *placement) Beside(function int32) (at Place, found bool) {
	f := &p.hot[function]
	for gpu := range p.rows.each(f, kind(GPUWarm), MaxConsidered) {
		at = p.PlaceOn(function, gpu)
		if d := &p.gpus[gpu]; d.open && d.capacity > 0 && p.hasShare(gpu, p.sliceOf(f, at.Index)) {
			at.Beside = true
			return at, true
		}
	}
	if p.counts[function].existing > 0 || p.Capped(function) {
		return at, false
	}
	for gpu := range p.gpus {
		if g := int32(gpu); p.gpus[g].capacity > 0 && p.mayStart(function, g) && p.hasShare(g, f.slice) {
			return Place{GPU: g, Start: Cold, Index: none, Beside: true}, true
		}
	}
	return at, false
}

// mayStart reports whether an instance of a function may start on a GPU without an invocation, if that
// evicts nothing.
func (p *placement) mayStart(function, gpu int32) bool {
	return p.hasRoomToStart(function, gpu) && p.tenantFits(function, p.gpus[gpu].countedMem(&p.hot[function]))
}

// hasRoomToStart implements mayStart, except for the limits of the function's tenant.
func (p *placement) hasRoomToStart(function, gpu int32) bool {
	d := &p.gpus[gpu]
	return d.open && !p.full(d) && (p.config.MayStart == nil || p.config.MayStart(function, gpu)) &&
		d.fits(max(d.mem.used, d.mem.running)+d.mem.leaving+d.countedMem(&p.hot[function]))
}

// hasShare reports whether a slice is free on a GPU: the slices of its running instances, without
// those that take a slot, and this one are at most the whole GPU. Without a slice, it returns true.
func (p *placement) hasShare(gpu int32, slice float64) bool {
	if slice <= 0 {
		return true
	}
	d := &p.gpus[gpu]
	units := d.capacityFor(slice)
	for i := range p.instances {
		if it := &p.instances[i]; it.gpu == gpu && it.inFlight > 0 && it.sliced && !it.pinned {
			units += p.details[i].capacity
		}
	}
	return units <= d.slots*unit
}

// FitsWithPinned reports whether an instance of the function could start on an open GPU if all instances
// there were idle, except for the pinned ones.
func (p *placement) FitsWithPinned(function int32) bool {
	for gpu := range p.gpus {
		if p.gpus[gpu].open && p.FitsOn(int32(gpu), function) {
			return true
		}
	}
	return false
}

// Serves reports whether a function has an instance on a GPU that accepts further invocations,
// busy or not.
func (p *placement) Serves(function, gpu int32) bool {
	if !p.mayHaveObsolete {
		return true // all instances accept invocations
	}
	return p.anyInstance(function, func(it *instance) bool {
		return it.gpu == gpu && !it.hasEnded() && !p.obsolete(it)
	})
}

// Usable reports whether a function has a started instance that accepts invocations, busy or not.
func (p *placement) Usable(function int32) bool {
	return p.anyInstance(function, func(it *instance) bool {
		switch it.stage {
		case ready, offloading, prefetching, receding:
			return !p.obsolete(it)
		case queued:
			return !it.unstarted() && !p.obsolete(it)
		default:
			return false
		}
	})
}

// Starting reports whether an instance of a function is starting, or will start as soon as there
// is room for it.
func (p *placement) Starting(function int32) bool {
	return p.counts[function].starts > 0 ||
		p.anyInstance(function, func(it *instance) bool { return it.stage == queued && it.unstarted() })
}

// anyInstance reports whether an instance of a function matches.
func (p *placement) anyInstance(function int32, matches func(*instance) bool) bool {
	for i := range p.instances {
		if it := &p.instances[i]; it.function == function && matches(it) {
			return true
		}
	}
	return false
}

// search iterates over the GPUs where an invocation of a function could start now with one of the
// given kinds of start: those with the fewest running instances first, then the lowest number.
type search struct {
	p       *placement
	f       *hotFields
	kinds   kinds
	running int // index in devices.byRunning of the current set
	page    int
	word    uint64 // remaining GPUs of page
	// The GPUs of page where the memory of an idle instance is on the GPU, and on the host.
	warm, host uint64
}

func (p *placement) search(f *hotFields, of kinds) search {
	return search{p: p, f: f, kinds: of, page: -1}
}

// next returns the next GPU, without the slot, and reports whether there is one.
func (s *search) next() (at Place, found bool) {
	for s.word != 0 || s.nextPage() {
		first := s.word & -s.word
		s.word &^= first
		at.GPU, at.Start, at.Index = int32(s.page*pageGPUs+bits.TrailingZeros64(first)), Cold, none
		switch {
		case s.warm&first != 0:
			at.Start = GPUWarm
		case s.host&first != 0:
			at.Start = HostWarm
		}
		if s.p.visits++; s.p.room(at.GPU, s.f) && s.p.tenantPermits(at.GPU, s.f) {
			return at, true
		}
	}
	return at, false
}

// nextPage moves to the next page with GPUs, and reports whether there is one.
func (s *search) nextPage() bool {
	nonEmpty := s.p.rows.nonEmptyPages(s.f, s.kinds)
	for s.running < len(s.p.byRunning) {
		open := &s.p.byRunning[s.running]
		if s.page = open.next(s.page+1, nonEmpty); s.page < 0 {
			s.running++
			continue
		}
		if roomy := s.p.freeMem.nextPage(s.page, s.f.mem); roomy < 0 {
			s.page = -1
			s.running++
			continue
		} else if roomy > s.page {
			s.page = roomy - 1
			continue
		}
		s.p.visits++
		if s.kinds == kind(GPUWarm) {
			s.warm = s.p.rows.warm(s.f, s.page)
		} else {
			s.warm, s.host = s.p.rows.bits(s.f, s.page)
		}
		if s.word = open.words[s.page] & s.kinds.choose(s.warm, s.host); s.word != 0 {
			return true
		}
	}
	return false
}
