package queue

import (
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/reason"
)

// lalb implements locality-aware load balancing (LALB, section IV, Algorithms 1 and 2; R18 to
// R20). Each GPU runs one invocation at a time, and keeps instances as long as there is memory
// for them, evicting the least recently used. The limit bounds how often an invocation may be
// passed over by others whose model the GPU has. Without locality, lalb implements lb: the oldest
// invocation runs on any idle GPU.
//
// In the paper, an invocation that was sent to a busy GPU waits for it, regardless of how long
// its work takes; see Options.Patient.
type lalb struct {
	lalbQueue
	locality bool
	limit    int64
	idle     idleGPUs
	visited  int32 // the GPU whose visits were counted in this step
}

func newLALB(v *view, limit int, locality bool) *lalb {
	p := &lalb{locality: locality, limit: int64(limit), visited: none,
		lalbQueue: lalbQueue{engine: v, global: newRequests(), chosen: request{function: none}}, idle: idleGPUs{asideUpTo: firstKey}}
	p.copies.gpuQueues, p.idle.gpuQueues = &p.gpuQueues, &p.gpuQueues
	return p
}

func (p *lalb) shape(c *residency.Config) { c.Pool, c.NoHost = residency.Unlimited, true }

func (p *lalb) grow(functions, gpus, _ int) {
	p.gpuQueues.grow(gpus)
	p.idle.heap.grow(gpus)
	p.models.grow(functions)
	p.growModels(functions)
	p.closed = slices.DeleteFunc(p.closed, func(g int32) bool {
		w := &p.gpus[g]
		if w.open = p.engine.slots[g] > 0; w.open {
			p.idle.addIdle(g)
			p.copies.moveToIdle(g)
		}
		return w.open
	})
}

func (p *lalb) changed(f int32) {
	p.updateBacklogs()
	m := f
	if shared := p.engine.functions[f].Model; shared > 0 {
		m = shared - 1
	}
	if m == p.models.of[f] {
		p.releaseObsolete(m)
		return
	}
	p.growModels(int(m) + 1)
	p.setModel(f, m)
}

// setModel changes the model of a function, and that of its waiting invocations.
func (p *lalb) setModel(f, model int32) {
	old := p.models.of[f]
	if old == none {
		p.models.set(f, model)
		return
	}
	waiting := p.list(f)
	for _, m := range waiting {
		p.drop(f, m.id)
	}
	p.models.set(f, model)
	for g := range p.gpus {
		p.updateCopy(int32(g), old)
		p.updateCopy(int32(g), model)
	}
	for _, m := range waiting {
		p.requeue(f, m)
	}
}

// releaseObsolete places invocations again that wait for a GPU whose running instance has an old
// version.
func (p *lalb) releaseObsolete(model int32) {
	for g := range p.gpus {
		if w := &p.gpus[g]; w.busy && w.model == model && p.engine.pool.Obsolete(w.instance) {
			p.updateCopy(int32(g), model)
			p.release(int32(g))
		}
	}
}

func (p *lalb) forget(f int32) { p.models.set(f, none) }

// gpuRemoved places the invocations that wait for the GPU again.
func (p *lalb) gpuRemoved(g int32) {
	p.gpus[g].open = false
	p.closed = append(p.closed, g)
	p.idle.remove(g)
	p.release(g)
}

func (p *lalb) activated(time.Duration, int32, bool)               {}
func (p *lalb) resized(int32)                                      {}
func (p *lalb) deactivated(int32)                                  {}
func (p *lalb) reserves() bool                                     { return false }
func (p *lalb) finished(time.Duration, int32, *run, time.Duration) {}

// advanced begins a step: GPUs that were set aside and invocations that no GPU could run become
// eligible again. Unless Options.Patient is set, invocations that wait for a GPU with overdue work
// are placed again.
func (p *lalb) advanced(now time.Duration) {
	p.idle.restoreAside()
	p.visited = none
	for _, it := range p.unplaceable {
		p.global.requeue(it)
	}
	p.unplaceable = p.unplaceable[:0]
	if p.engine.config.Patient {
		return
	}
	for _, g := range slices.Backward(p.overdueIn(&p.busyQueued, now)) {
		p.extend(g, now)
		p.release(g)
	}
}

func (*lalb) relocations() (out, back []int32) { return nil, nil }

func (p *lalb) wake() time.Duration {
	if p.engine.config.Patient || p.busyQueued.len() == 0 {
		return Never
	}
	return time.Duration(p.busyQueued.min().key.a) + 1
}

func (p *lalb) next(now time.Duration, c *choice) bool {
	for p.global.total > 0 || p.idleQueued.len() > 0 {
		var g int32
		if p.global.total > 0 {
			var visits int64
			g, visits = p.idle.first()
			if p.copies.visits += visits; g == none {
				return false
			}
		} else { // GPUs before the first with a local queue have no work
			least := p.idleQueued.min()
			g = least.function
			p.idle.setAsideBefore(least.key)
		}
		p.copies.visits++
		if p.serve(now, g, c) {
			return true
		}
		p.idle.setAside(g)
		p.visited = none
	}
	return false
}

// serve chooses an invocation for idle GPU g, or another place for an invocation (Algorithm 1).
func (p *lalb) serve(now time.Duration, g int32, c *choice) bool {
	w := &p.gpus[g]
	for len(w.local) > 0 {
		it := w.local[0]
		p.leaveLocal(g, 0)
		if p.canRun(g, it.function) {
			return p.run(c, g, &it, firstInGPUQueue)
		}
		p.global.requeue(it)
	}
	r := p.global
	if !p.locality {
		for r.head != none {
			it := p.global.pop(r.head)
			if at := p.idleGPUFor(g, it.function); at != none {
				return p.run(c, at, it, oldestInvocation)
			}
			p.unplaceable = append(p.unplaceable, *it)
		}
		return false
	}
	for p.visited != g && r.head != none && (r.marks >= p.limit || p.isAged(now, g)) {
		if it := &r.nodes[r.head]; p.copies.cached.has(it.model, g) && p.canRun(g, it.function) {
			return p.run(c, g, p.global.pop(r.head), modelCached)
		}
		if p.balance(now, g, c) {
			return true
		}
	}
	if p.visited != g {
		hit := p.firstHit(g)
		r.visit(hit)
		if hit != none {
			return p.run(c, g, p.global.pop(hit), modelCached)
		}
		p.visited = g
	}
	for r.head != none {
		if p.balance(now, g, c) {
			return true
		}
	}
	return false
}

// isAged reports whether the oldest invocation, which no running instance serves, has waited for the batch
// window of the function that would be preferred to it on the GPU. It then counts as passed over
// often enough.
func (p *lalb) isAged(now time.Duration, g int32) bool {
	if !p.engine.anyBatches {
		return false
	}
	hit, head := p.firstHit(g), &p.global.nodes[p.global.head]
	if hit == none || hit == p.global.head {
		return false
	}
	f := p.global.nodes[hit].function
	return p.engine.batches(f) && now-max(head.at, p.engine.ranUntil[head.function]) >= p.engine.functions[f].BatchWindow && !p.engine.pool.Running(head.function)
}

// canRun reports whether a GPU could run an invocation of the function at once.
func (p *lalb) canRun(g, f int32) bool {
	pool := p.engine.pool
	return !p.gpus[g].busy && pool.Room(g, f) && !pool.Blocked(f, p.engine.queues.queues[f].len) &&
		(pool.PlaceOn(f, g).Index != none || !pool.Capped(f))
}

// idleGPUFor returns GPU g, or else the first idle GPU that could run an invocation of the
// function (R19), or none.
func (p *lalb) idleGPUFor(g, f int32) int32 {
	if p.canRun(g, f) {
		return g
	}
	return p.idle.find(func(g int32) bool { return p.canRun(g, f) })
}

// firstHit returns the oldest invocation whose model the GPU has, if the GPU can run it, or none.
// It scans the head of the queue first, where that invocation usually is.
func (p *lalb) firstHit(g int32) int32 {
	const near = 64
	r, hit := p.global, none
	n, i := r.head, 0
	for ; n != none && i < near && hit == none && !r.mixed; n, i = r.nodes[n].next, i+1 {
		if p.copies.cached.has(r.nodes[n].model, g) {
			hit = n
		}
	}
	if hit == none && n != none {
		hit = p.foremost(g)
	}
	if hit == none || !p.canRun(g, r.nodes[hit].function) {
		return none
	}
	return hit
}

// instanceOn returns an idle instance on the GPU of any function with the model, if there is one.
func (p *lalb) instanceOn(g, model int32) (residency.Place, bool) {
	for _, f := range p.models.functions[model] {
		if at := p.engine.pool.PlaceOn(f, g); at.Index != none {
			return at, true
		}
	}
	return residency.Place{}, false
}

// updateCopy updates whether a GPU has the model, in an idle or a running instance.
func (p *lalb) updateCopy(g, model int32) {
	w := &p.gpus[g]
	cached := w.busy && w.model == model && !p.engine.pool.Obsolete(w.instance)
	if !cached {
		_, cached = p.instanceOn(g, model)
	}
	p.copies.set(model, g, cached)
}

// balance sends the oldest invocation to the GPU where it ends first (Algorithm 2,
// LocalityLoadBalance): GPU g, unless another idle GPU has its model, or a busy GPU with the
// model will be free before the model could be loaded. With GPUs of several classes, it compares the
// times at which the invocation would end, and GPU g may yield to a faster idle one. It returns false if no GPU can take the
// invocation now.
func (p *lalb) balance(now time.Duration, g int32, c *choice) bool {
	it := p.global.pop(p.global.head)
	if !p.engine.config.Patient {
		for _, gpu := range p.overdueIn(&p.busy, now) {
			if p.copies.cached.has(it.model, gpu) {
				p.extend(gpu, now)
			}
		}
	}
	idle, busy := p.copies.find(it.model, func(gpu int32) bool { return p.canRun(gpu, it.function) })
	switch {
	case idle != none:
		return p.run(c, idle, it, modelCachedIdle)
	case busy != none:
		wait, batch := p.gpus[busy].free()-now, p.engine.nextBatchOn(it.function, busy)
		if wait+batch < p.afterLoad(it.function, p.fastestFor(g, it.function)) {
			p.joinLocal(busy, *it)
			c.anywhere(it.function, modelCachedBusy, float64(wait)/1e6)
			c.assigned, c.at, c.member = true, residency.Place{GPU: busy}, it.member
			return true
		}
	}
	at := p.idleGPUFor(p.fastestFor(g, it.function), it.function)
	if at == none {
		p.unplaceable = append(p.unplaceable, *it)
		return false
	}
	if busy == none {
		return p.run(c, at, it, modelNotCached)
	}
	return p.run(c, at, it, loadIsFaster)
}

// fastestFor returns GPU g or, with GPUs of several classes, the idle GPU on which an invocation of the
// function that first loads its model ends first.
func (p *lalb) fastestFor(g, f int32) int32 {
	if !p.engine.classes {
		return g
	}
	return p.fastestIdle(g, f)
}

// fastestIdle implements fastestFor if there are several classes.
func (p *lalb) fastestIdle(g, f int32) int32 {
	best, runs := g, p.canRun(g, f)
	p.idle.find(func(other int32) bool {
		if p.canRun(other, f) && (!runs || p.afterLoad(f, other) < p.afterLoad(f, best)) {
			best, runs = other, true
		}
		return false
	})
	return best
}

// afterLoad returns the duration of the next batch of a function, or of one invocation if it forms none, on
// a GPU that first loads its model.
func (p *lalb) afterLoad(f, g int32) time.Duration {
	batch := p.engine.nextBatchOn(f, g)
	if !p.engine.classes {
		return p.engine.functions[f].Load + batch
	}
	return p.engine.pool.DurationOn(f, g, residency.HostWarm) - p.engine.warmOn(f, g) + batch
}

// run chooses an invocation for an idle GPU. It returns true.
func (p *lalb) run(c *choice, g int32, it *request, code reason.Code) bool {
	p.chosen = *it
	at, cached := p.instanceOn(g, it.model)
	if !cached {
		at = residency.Place{GPU: g, Start: residency.Cold, Index: none}
	}
	c.on(it.function, at, code, 0)
	c.popped = true
	c.reason.Waiting = p.global.models[it.model].len + 1
	c.falseMiss = !cached && p.copies.models[it.model].n > 0
	return true
}

func (p *lalb) expects(_ time.Duration, r *run, end time.Duration) {
	if w := &p.gpus[r.gpu]; w.busy && w.expectedEnd != end {
		p.setExpected(r.gpu, w.started, end)
		p.copies.updateBusyKeys(r.gpu)
	}
}

func (p *lalb) dispatched(now time.Duration, f int32, r *run) {
	if r.joined {
		w := &p.gpus[r.gpu]
		p.setExpected(r.gpu, w.started, max(w.expectedEnd, r.expectedEnd))
		p.copies.updateBusyKeys(r.gpu)
		return
	}
	p.idle.heap.remove(r.gpu)
	p.start(r.gpu, p.models.of[f], r.instance, now, r.expectedEnd)
	p.updateCopy(r.gpu, p.models.of[f])
	if p.visited == r.gpu {
		p.visited = none
	}
}

func (p *lalb) freed(f, g int32) {
	began := p.gpus[g].model // the function may have another model since
	p.stop(g)
	p.copies.moveToIdle(g)
	p.idle.addIdle(g)
	p.updateCopy(g, began)
	p.updateCopy(g, p.models.of[f])
}

func (p *lalb) moved(f, g int32) { p.updateCopy(g, p.models.of[f]) }
