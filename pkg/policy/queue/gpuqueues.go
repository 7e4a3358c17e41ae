package queue

import (
	"slices"
	"time"
)

// gpuQueues holds the GPUs of lalb. Each GPU runs one invocation at a time and has a local queue.
type gpuQueues struct {
	gpus       []gpuQueue
	closed     []int32 // GPUs that are closed
	queued     []int32 // GPUs with a non-empty local queue, in no particular order
	idleQueued heap    // idle GPUs in queued, with the keys of idleGPUs.heap
	busy       heap    // busy GPUs, by the time at which their work becomes overdue
	busyQueued heap    // busy GPUs in queued, with the keys of busy
}

type gpuQueue struct {
	open, busy  bool
	model       int32 // busy: of the invocation in flight
	instance    int32 // busy: index of its instance
	queuedAt    int32 // index in gpuQueues.queued, plus 1
	dispatches  int64
	started     time.Duration // when the invocation in flight began
	expectedEnd time.Duration // its expected end
	local       []request     // invocations that wait for this GPU
	backlog     time.Duration // their total execution time
}

// free returns when a busy GPU is expected to be idle, after its local queue as well.
func (w *gpuQueue) free() time.Duration { return w.expectedEnd + w.backlog }

// key returns the sort key of an idle GPU (R19).
func (w *gpuQueue) key(g int32) key { return key{a: w.dispatches, c: int64(g)} }

// grow adds closed GPUs up to that number.
func (p *gpuQueues) grow(gpus int) {
	for g := len(p.gpus); g < gpus; g++ {
		p.closed = append(p.closed, int32(g))
	}
	p.gpus = grown(p.gpus, gpus)
	p.busy.grow(gpus)
	p.busyQueued.grow(gpus)
	p.idleQueued.grow(gpus)
}

// start marks a GPU as busy with an invocation of a model on an instance.
func (p *gpuQueues) start(g, model, instance int32, now, expectedEnd time.Duration) {
	w := &p.gpus[g]
	w.busy, w.model, w.instance = true, model, instance
	w.dispatches++
	p.setExpected(g, now, expectedEnd)
}

// setExpected sets when a busy GPU's work began and when it should end.
func (p *gpuQueues) setExpected(g int32, started, expectedEnd time.Duration) {
	w := &p.gpus[g]
	w.started, w.expectedEnd = started, expectedEnd
	p.busy.set(g, key{a: int64(overdue(started, expectedEnd))})
	p.updateIndexes(g)
}

// stop marks a GPU as idle.
func (p *gpuQueues) stop(g int32) {
	p.gpus[g].busy = false
	p.busy.remove(g)
	p.updateIndexes(g)
}

// updateIndexes updates the lists and heaps after a change of one GPU.
func (p *gpuQueues) updateIndexes(g int32) {
	w := &p.gpus[g]
	queued := len(w.local) > 0
	switch {
	case queued && w.queuedAt == 0:
		p.queued = append(p.queued, g)
		w.queuedAt = int32(len(p.queued))
	case !queued && w.queuedAt > 0:
		last := p.queued[len(p.queued)-1]
		p.queued[w.queuedAt-1], p.gpus[last].queuedAt = last, w.queuedAt
		p.queued, w.queuedAt = p.queued[:len(p.queued)-1], 0
	}
	if w.open && !w.busy && queued {
		p.idleQueued.set(g, w.key(g))
	} else {
		p.idleQueued.remove(g)
	}
	if w.busy && queued {
		p.busyQueued.set(g, key{a: int64(overdue(w.started, w.expectedEnd))})
	} else {
		p.busyQueued.remove(g)
	}
}

// extend expects overdue work to take twice as long as it has taken so far.
func (p *gpuQueues) extend(g int32, now time.Duration) {
	if w := &p.gpus[g]; overdue(w.started, w.expectedEnd) < now {
		p.setExpected(g, w.started, now+now-w.started)
	}
}

// overdueIn returns the GPUs in a heap (busy or busyQueued) whose work is overdue, in ascending
// order.
func (p *gpuQueues) overdueIn(of *heap, now time.Duration) (gpus []int32) {
	gpus = of.before(int64(now), 0, nil)
	slices.Sort(gpus)
	return gpus
}

// push appends an invocation with the given duration to a GPU's local queue.
func (p *gpuQueues) push(g int32, it request, duration time.Duration) {
	w := &p.gpus[g]
	w.local = append(w.local, it)
	w.backlog += duration
	p.updateIndexes(g)
}

// remove removes the invocation at index i from a GPU's local queue. The caller corrects the backlog.
func (p *gpuQueues) remove(g int32, i int) {
	w := &p.gpus[g]
	if i == 0 {
		w.local = w.local[1:]
	} else {
		w.local = slices.Delete(w.local, i, i+1)
	}
	p.updateIndexes(g)
}

// clear empties a GPU's local queue and returns its invocations.
func (p *gpuQueues) clear(g int32) []request {
	w := &p.gpus[g]
	local := w.local
	w.local, w.backlog = nil, 0
	p.updateIndexes(g)
	return local
}

// find returns the GPU and the index of an invocation in the local queues; g is none if it is in
// no local queue.
func (p *gpuQueues) find(id int64) (g int32, i int) {
	for _, g := range p.queued {
		if i := slices.IndexFunc(p.gpus[g].local, func(it request) bool { return it.id == id }); i >= 0 {
			return g, i
		}
	}
	return none, 0
}
