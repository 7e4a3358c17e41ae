package residency

import "time"

// Place is where an invocation would run.
type Place struct {
	GPU       int32
	Start     Start
	Container int32 // the idle one to use; negative for a cold start
}

// Any as a GPU is all of them, or none where one is excluded.
const Any = none

// Best is the GPU for an invocation: of those with a free slot where it fits
// beside what runs, the one with (shortest duration, fewest running, lowest
// index). Only, unless Any, is the one GPU allowed; except, unless Any, is one
// that is not.
func (p *Pool) Best(function, only, except int32) (Place, bool) {
	f, mine := &p.config.Function[function], p.idle(function)
	best, found := Place{Container: none}, false
	var shortest time.Duration
	for g := range p.gpus {
		gpu := int32(g)
		d := &p.gpus[g]
		if d.running >= d.slots || gpu == except || only != Any && gpu != only {
			continue
		}
		if p.config.Mem != 0 && d.memRunning+f.Mem > p.config.Mem {
			continue
		}
		start, c := p.lookUp(mine, g)
		duration := f.Duration[start]
		if !found || duration < shortest || duration == shortest && d.running < p.gpus[best.GPU].running {
			best, found, shortest = Place{GPU: gpu, Start: start, Container: c}, true, duration
		}
	}
	return best, found
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
			at, loss, ok = Place{GPU: gpu, Start: start, Container: c}, l, true
		}
	}
	return at, loss, ok
}

// shortest is the GPUs where an invocation could start now and takes least.
func (p *Pool) shortest(function int32) []int32 {
	f, mine := &p.config.Function[function], p.idle(function)
	p.ties = p.ties[:0]
	least := time.Duration(0)
	for g := range p.gpus {
		if !p.room(int32(g), function) {
			continue
		}
		start, _ := p.lookUp(mine, g)
		d := f.Duration[start]
		if len(p.ties) == 0 || d < least {
			p.ties, least = p.ties[:0], d
		}
		if d == least {
			p.ties = append(p.ties, int32(g))
		}
	}
	return p.ties
}

// Warm calls yield with each GPU that has an idle container of the function
// with its memory there.
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
	f, mine := &p.config.Function[function], p.idle(function)
	best := time.Duration(-1)
	for g := range p.gpus {
		start, _ := p.lookUp(mine, g)
		if d := f.Duration[start]; best < 0 || d < best {
			best = d
		}
	}
	return best
}

// idle is a function's row of mine; empty if it has none.
func (p *Pool) idle(function int32) []int32 {
	end := p.row[function]
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
	if p.config.Mem == 0 || p.containers[c].resident {
		return GPUWarm, c
	}
	return HostWarm, c
}

// Begin starts an invocation at a place that Best gave, making room for it,
// and returns its container.
func (p *Pool) Begin(function int32, at Place) int32 {
	d := &p.gpus[at.GPU]
	c := at.Container
	if c == none {
		for p.full(d) && p.removeFirst(at.GPU) {
		}
		c = p.create(function, at.GPU)
		d.exist++
	} else {
		p.unlink(c)
	}
	it := &p.containers[c]
	if !it.resident {
		p.makeRoom(at.GPU, it.mem)
		it.resident = true
		d.memUsed += it.mem
	}
	d.running++
	d.memRunning += it.mem
	p.free--
	return c
}

// End ends the invocation that a container runs. The container is idle, and
// the pool is cut to its limit.
func (p *Pool) End(c int32) {
	it := &p.containers[c]
	d := &p.gpus[it.gpu]
	d.running--
	d.memRunning -= it.mem
	if d.running < d.slots {
		p.free++
	}
	p.link(c)
	p.Trim(it.gpu)
}

// link puts an idle container in its lists, as the one finished last.
func (p *Pool) link(c int32) {
	it := &p.containers[c]
	d := &p.gpus[it.gpu]
	if p.row[it.function] == 0 {
		for range p.gpus {
			p.mine = append(p.mine, none)
		}
		p.row[it.function] = int32(len(p.mine))
	}
	last := &p.idle(it.function)[it.gpu]
	it.mine = link{prev: *last, next: none}
	if *last != none {
		p.containers[*last].mine.next = c
	}
	*last = c
	if p.config.removes() {
		p.append(&d.idle, c, idleOf)
	}
	if it.listed(p) {
		p.append(&d.warm, c, warmOf)
	}
}

// Trim removes idle containers of a GPU until at most as many exist as may.
func (p *Pool) Trim(gpu int32) {
	d := &p.gpus[gpu]
	for p.config.Pool != Unlimited && int(d.exist) > p.config.Pool && p.removeFirst(gpu) {
	}
}

// Clear removes all idle containers of a GPU.
func (p *Pool) Clear(gpu int32) {
	for p.removeFirst(gpu) {
	}
}

func (p *Pool) create(function, gpu int32) int32 {
	it := container{function: function, gpu: gpu, mem: p.config.Function[function].Mem}
	if last := len(p.freed) - 1; last >= 0 {
		c := p.freed[last]
		p.freed = p.freed[:last]
		p.containers[c] = it
		return c
	}
	p.containers = append(p.containers, it)
	return int32(len(p.containers) - 1)
}
