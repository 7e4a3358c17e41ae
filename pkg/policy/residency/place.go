package residency

import (
	"math"
	"slices"
	"time"
)

// Place is where an invocation would run.
type Place struct {
	GPU   int32
	Start Start
	Slot  int32 // of the idle instance to use; negative for a cold start
}

// Any as a GPU is all of them, or none where one is excluded.
const Any = none

// Best is the GPU for an invocation: of those with a free slot where it fits
// beside what runs, the one with (shortest duration, fewest running, lowest
// index). Only, unless Any, is the one GPU allowed; except, unless Any, is one
// that is not.
func (p *Pool) Best(function, only, except int32) (best Place, found bool) {
	best.Slot = none
	if only != Any {
		return best, only != except && p.Free(only) && p.better(&best, false, function, only)
	}
	for g := range p.gpus {
		if d := &p.gpus[g]; d.taken < d.capacity && int32(g) != except {
			found = p.better(&best, found, function, int32(g)) || found
		}
	}
	return best, found
}

// better puts a GPU in the place of the best so far, if there is one, when an
// invocation can start there and it is better.
func (p *Pool) better(best *Place, found bool, function, gpu int32) bool {
	f, d, mine := &p.costs[function], &p.gpus[gpu], p.idle(function)
	if !p.room(gpu, f) {
		return false
	}
	start, c := p.lookUp(mine, int(gpu))
	if start == Cold && p.Capped(function) {
		return false
	}
	if found {
		duration, shortest := f.duration[start], f.duration[best.Start]
		if duration > shortest || duration == shortest && d.running >= p.gpus[best.GPU].running {
			return false
		}
	}
	*best = Place{GPU: gpu, Start: start, Slot: c}
	return true
}

// Cheapest is the GPU for an invocation where it starts soonest and, of those,
// where it is least in the way: (shortest duration, loss, fewest running,
// lowest index). Loss is the worth of what goes to make room, or, where the
// function's memory is there already, of what else is: that waits meanwhile.
func (p *Pool) Cheapest(function int32) (at Place, loss float64, ok bool) {
	mine := p.idle(function)
	for _, gpu := range p.shortest(function) {
		start, c := p.lookUp(mine, int(gpu))
		l := 0.0
		switch {
		case start != GPUWarm:
			l = p.loss(int(gpu), function, start == Cold)
		case len(p.ties) > 1:
			l = p.others(gpu, function)
		}
		if !ok || l < loss || l == loss && p.gpus[gpu].running < p.gpus[at.GPU].running {
			at, loss, ok = Place{GPU: gpu, Start: start, Slot: c}, l, true
		}
	}
	return at, loss, ok
}

// Most is the memory beside what runs of the GPU that has most of it, among those
// that could run more.
func (p *Pool) Most() (mem int64) {
	mem = -1
	for g := range p.gpus {
		switch d := &p.gpus[g]; {
		case d.taken >= d.capacity:
		case d.mem == 0:
			return math.MaxInt64
		default:
			mem = max(mem, d.mem-d.memRunning)
		}
	}
	return mem
}

// Could says whether an invocation of the function might start now, Most being
// what it is: a look that is cheap and wrong in one direction alone.
func (p *Pool) Could(function int32, most int64) bool {
	return p.costs[function].mem <= most
}

// shortest is the GPUs where an invocation could start now and takes least.
func (p *Pool) shortest(function int32) []int32 {
	f, mine := &p.costs[function], p.idle(function)
	p.ties = p.ties[:0]
	least := time.Duration(0)
	for g := range p.gpus {
		if !p.room(int32(g), f) {
			continue
		}
		start, _ := p.lookUp(mine, g)
		if start == Cold && p.Capped(function) {
			continue
		}
		d := f.duration[start]
		if len(p.ties) == 0 || d < least {
			p.ties, least = p.ties[:0], d
		}
		if d == least {
			p.ties = append(p.ties, int32(g))
		}
	}
	return p.ties
}

// Warm calls yield with each GPU that has an idle instance of the function
// with its memory there, lowest index first.
func (p *Pool) Warm(function int32, yield func(gpu int32)) {
	mine := p.idle(function)
	for g := range mine {
		if start, _ := p.lookUp(mine, g); start == GPUWarm {
			yield(int32(g))
		}
	}
}

// Expected is the shortest duration of an invocation on any GPU, busy or not.
func (p *Pool) Expected(function int32) time.Duration {
	f, mine := &p.costs[function], p.idle(function)
	best := time.Duration(-1)
	for g := range p.gpus {
		start, _ := p.lookUp(mine, g)
		if d := f.duration[start]; best < 0 || d < best {
			best = d
		}
	}
	return max(best, 0)
}

// On is what an invocation of the function would find on a GPU, free or not.
func (p *Pool) On(function, gpu int32) Place {
	start, c := p.lookUp(p.idle(function), int(gpu))
	return Place{GPU: gpu, Start: start, Slot: c}
}

// idle is a function's row of mine; empty if it has none.
func (p *Pool) idle(function int32) []int32 {
	end := p.costs[function].row
	if end == 0 {
		return nil
	}
	return p.mine[int(end)-len(p.gpus) : end]
}

// lookUp is what a function with that row of mine finds on a GPU.
func (p *Pool) lookUp(mine []int32, gpu int) (Start, int32) {
	if mine == nil || mine[gpu] == none {
		return Cold, none
	}
	c := mine[gpu]
	if p.gpus[gpu].mem == 0 || p.instances[c].resident {
		return GPUWarm, c
	}
	return HostWarm, c
}

// Capped says whether a function may have no more instances.
func (p *Pool) Capped(function int32) bool {
	f := &p.costs[function]
	return f.guarded && (p.counts[function].barred || f.max > 0 && p.counts[function].all >= f.max)
}

// Blocked says whether a function has to wait for instances of its own,
// whatever else is free: it may have no more of them, a pinned one is starting, or as
// many are starting as invocations of it wait.
func (p *Pool) Blocked(function int32, waiting int32) bool {
	if !p.costs[function].guarded {
		return false
	}
	n := &p.counts[function]
	return (p.Capped(function) || n.pending > 0 || n.starting > 0 && n.starting >= waiting) && !p.idles(function)
}

// idles reports whether an instance of the function is idle.
func (p *Pool) idles(function int32) bool {
	return slices.ContainsFunc(p.idle(function), func(c int32) bool { return c != none })
}

// Count is how many instances of a function there are, and how many of those
// are starting without an invocation.
func (p *Pool) Count(function int32) (all, starting int) {
	return int(p.counts[function].all), int(p.counts[function].starting)
}

// Begin starts an invocation at a place that Best gave, making room for it,
// and returns its instance's slot. Now says whether there is room: if not, a
// Placed change says when.
func (p *Pool) Begin(function int32, at Place) (slot int32, now bool) {
	d := &p.gpus[at.GPU]
	c := at.Slot
	if c == none {
		for p.full(d) && p.removeFirst(at.GPU) {
		}
		c = p.create(function, at.GPU)
		d.exist++
	} else {
		p.unlink(c)
	}
	it := &p.instances[c]
	now = true
	if at.Slot == none {
		it.stage = launching
	}
	if !it.resident {
		it.mem = p.claim(d, c)
		p.makeRoom(at.GPU, it.mem)
		it.resident = true
		d.memUsed += it.mem
		if d.mem > 0 && d.memUsed-d.queued+d.leaving > d.mem {
			it.stage, now = waits, false
			d.queued += it.mem
			d.queue = append(d.queue, c)
		}
	}
	d.running++
	d.memRunning += it.mem + p.more[c].stays
	it.calls = 1
	need := p.needs(d, &p.costs[function])
	if it.sliced = need != unit; it.sliced {
		p.more[c].need = need
	}
	p.take(d, need)
	if it.stage == launching {
		p.starts(function, 1)
	}
	return c, now
}

// Join adds an invocation to an instance that runs and can take more; Spare
// tells of such an instance.
func (p *Pool) Join(slot int32) { p.instances[slot].calls++ }

// Spare is an instance of the function that runs and can take one more
// invocation, the one that has fewest.
func (p *Pool) Spare(function int32) (slot int32, ok bool) {
	most := int16(p.functions[function].Inflight)
	if most <= 1 {
		return none, false
	}
	slot = none
	for c := range p.instances {
		it := &p.instances[c]
		if it.function == function && it.calls > 0 && it.calls < most && !it.pinned && (it.stage == ready || it.stage == prefetches || it.stage == launching) &&
			!p.obsolete(it) && (slot == none || it.calls < p.instances[slot].calls) {
			slot = int32(c)
		}
	}
	return slot, slot != none
}

// End ends an invocation that an instance runs. When it was the last the
// instance is idle, and the pool is cut to its limit.
func (p *Pool) End(c int32, now time.Duration) {
	it := &p.instances[c]
	if it.calls--; it.calls > 0 {
		return
	}
	if it.pinned {
		p.endPinned(c, now)
		return
	}
	d := &p.gpus[it.gpu]
	d.running--
	d.memRunning -= it.mem + p.more[c].stays
	p.take(d, -p.needed(c))
	if it.stage == launching { // what ended on it tells that it has started
		p.starts(it.function, -1)
		it.stage = ready
	}
	switch {
	case it.stage == lost:
		p.vacate(c)
		return
	case p.parts && p.obsolete(it):
		p.link(c, now)
		p.remove(c)
		return
	}
	p.link(c, now)
	p.Trim(it.gpu)
}

// endPinned has an instance be idle that is pinned, unless it is to go.
func (p *Pool) endPinned(c int32, now time.Duration) {
	it := &p.instances[c]
	p.more[c].idle = now
	switch {
	case it.stage == lost:
		p.vacate(c)
	case p.obsolete(it):
		p.remove(c)
	}
}

// link puts an idle instance in its lists, as the one finished last.
func (p *Pool) link(c int32, now time.Duration) {
	p.finishes++
	it := &p.instances[c]
	it.finished = p.finishes
	p.more[c].idle, p.more[c].stuck = now, false
	if p.expires {
		if idle := p.functions[it.function].Idle; idle > 0 {
			p.expiry = min(p.expiry, now+idle)
		}
	}
	p.relink(c)
}

// relink puts an idle instance in its lists, in order of finished.
func (p *Pool) relink(c int32) {
	it := &p.instances[c]
	d := &p.gpus[it.gpu]
	if f := &p.costs[it.function]; f.row == 0 {
		for range p.gpus {
			p.mine = append(p.mine, none)
		}
		f.row = int32(len(p.mine))
	}
	// The newest of its function's is the list's end; the row has no head.
	newest := &p.idle(it.function)[it.gpu]
	after, before := *newest, none
	for after != none && p.instances[after].finished > it.finished {
		after, before = p.instances[after].mine.prev, after
	}
	it.mine = link{prev: after, next: before}
	if after != none {
		p.instances[after].mine.next = c
	}
	if before != none {
		p.instances[before].mine.prev = c
	} else {
		*newest = c
	}
	if p.config.lists() {
		p.insert(&d.idle, c, idleOf)
	}
	if it.resident && p.listed(d, it) {
		p.insert(&d.warm, c, warmOf)
	}
}

// Trim removes idle instances of a GPU until at most as many exist as may.
func (p *Pool) Trim(gpu int32) {
	d := &p.gpus[gpu]
	for p.config.Pool != Unlimited && int(d.exist) > p.config.Pool && p.removeFirst(gpu) {
	}
}

// Clear removes all idle instances of a GPU.
func (p *Pool) Clear(gpu int32) {
	for c := p.gpus[gpu].idle.head; c != none; c = p.gpus[gpu].idle.head {
		p.remove(c)
	}
}

func (p *Pool) create(function, gpu int32) int32 {
	f := &p.costs[function]
	it := instance{function: function, gpu: gpu, mem: p.need(&p.gpus[gpu], f), stage: ready, run: none}
	rest := more{least: f.mem}
	n := &p.counts[function]
	n.all++
	n.held++
	if last := len(p.freed) - 1; last >= 0 {
		c := p.freed[last]
		p.freed = p.freed[:last]
		it.use = p.instances[c].use + 1
		p.instances[c], p.more[c] = it, rest
		return c
	}
	p.instances, p.more = append(p.instances, it), append(p.more, rest)
	return int32(len(p.instances) - 1)
}

// Duration is how long an invocation should take with that start.
func (p *Pool) Duration(function int32, start Start) time.Duration {
	return p.costs[function].duration[start]
}
