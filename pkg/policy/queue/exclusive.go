package queue

import (
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/reason"
)

// exclusive gives whole GPUs to clients (KaaS, section 4.1.4, the Exclusive policy). A client is
// a function; its pool is the set of its GPUs.
//
//  1. If a client's pool cannot serve it at once, the client takes a free GPU. If there is none,
//     and its pool is smaller than the largest one, it takes a GPU from that pool. Ties go to the
//     pool that lost a GPU least recently.
//  2. From that pool, it takes an idle GPU now. Otherwise it is promised a busy one, and gets it
//     when the work there has ended.
//  3. A GPU that changes hands loses all instances, so its new client begins with a cold start.
//  4. Instances of plans and other users occupy memory as well. A client takes no GPU that cannot
//     hold it beside them, and exchanges an idle GPU of its own that cannot.
type exclusive struct {
	ordinary
	engine   *view
	waiting  heap // waiting functions, by oldest head
	gpus     []ownership
	poolSize []int32 // by function: GPUs that it owns or is promised
	promised []int32 // by function: GPUs that it is promised
	lastLoss []int64 // by function: sequence number of its last loss of a GPU
	losses   int64
	blocked  []int32 // functions for which next found no place in this step
}

// ownership describes the owner of a GPU.
type ownership struct {
	owner       int32
	promisedTo  int32         // function that it is promised to, or none
	inFlight    int32         // invocations in flight
	expectedEnd time.Duration // expected end of the invocations in flight
	closed      bool          // the GPU is closed
}

func newExclusive(v *view) *exclusive { return &exclusive{ordinary: ordinary{v.queues}, engine: v} }

func (x *exclusive) shape(c *residency.Config) { c.UsesClear, c.MayStart = true, x.mayStart }

func (x *exclusive) grow(functions, gpus, _ int) {
	x.waiting.grow(functions)
	x.poolSize, x.promised, x.lastLoss = grown(x.poolSize, functions), grown(x.promised, functions), grown(x.lastLoss, functions)
	for len(x.gpus) < gpus {
		x.gpus = append(x.gpus, ownership{owner: none, promisedTo: none})
	}
	for i := range x.gpus {
		x.gpus[i].closed = x.engine.slots[i] == 0
	}
}

// forget releases the GPUs of a function.
func (x *exclusive) forget(f int32) {
	for i := range x.gpus {
		x.disown(int32(i), f)
	}
	x.poolSize[f], x.promised[f], x.lastLoss[f] = 0, 0, 0
}

// gpuRemoved takes the GPU from its owner and from the function that it is promised to.
func (x *exclusive) gpuRemoved(gpu int32) {
	g := &x.gpus[gpu]
	g.closed = true
	for _, f := range []int32{g.owner, g.promisedTo} {
		if f != none {
			x.disown(gpu, f)
		}
	}
}

// disown takes a GPU, or the promise of it, from a function.
func (x *exclusive) disown(gpu, f int32) {
	g := &x.gpus[gpu]
	if g.promisedTo == f {
		g.promisedTo = none
		x.poolSize[f]--
		x.promised[f]--
		if g.owner != none { // the owner keeps it
			x.poolSize[g.owner]++
		}
	}
	if g.owner == f {
		if g.owner = none; g.promisedTo == none {
			x.poolSize[f]--
		}
	}
}

func (x *exclusive) activated(_ time.Duration, f int32, _ bool) { x.resized(f) }

func (x *exclusive) resized(f int32) { x.waiting.set(f, key{a: x.queues.oldest(f)}) }

func (x *exclusive) deactivated(f int32) {
	x.waiting.remove(f)
	x.blocked = without(x.blocked, f)
}

func (x *exclusive) finished(_ time.Duration, _ int32, r *run, _ time.Duration) {
	x.gpus[r.gpu].inFlight--
}

// freed transfers a promised GPU that is idle now.
func (x *exclusive) freed(f, gpu int32) {
	if g := &x.gpus[gpu]; g.inFlight == 0 && g.promisedTo != none {
		x.promised[g.promisedTo]--
		g.owner, g.promisedTo = g.promisedTo, none
		x.engine.evict.Clear(gpu)
	}
	x.moved(f, gpu)
}

// advanced makes all waiting functions eligible again.
func (x *exclusive) advanced(time.Duration) {
	for _, f := range x.blocked {
		x.resized(f)
	}
	x.blocked = x.blocked[:0]
}

func (x *exclusive) reserves() bool { return x.anyUnpromised() }

// next serves functions in order of their oldest invocations. A function that gets no place does
// not stop later ones.
func (x *exclusive) next(_ time.Duration, c *choice) bool {
	for x.waiting.len() > 0 && x.anyUnpromised() {
		f := x.waiting.min().function
		code := ownGPUFree
		at, ok := x.bestOwned(f)
		if !ok && x.engine.pool.TenantAllows(f) {
			code = gpuReassigned
			at, ok = x.acquire(f)
		}
		if ok {
			return c.on(f, at, code, float64(x.poolSize[f]))
		}
		x.blocked = append(x.blocked, f)
		x.waiting.remove(f)
	}
	return false
}

func (x *exclusive) expects(_ time.Duration, r *run, _ time.Duration) {
	g := &x.gpus[r.gpu]
	g.expectedEnd = max(g.expectedEnd, r.expectedEnd)
}

func (x *exclusive) dispatched(_ time.Duration, f int32, r *run) {
	g := &x.gpus[r.gpu]
	g.inFlight++
	g.expectedEnd = max(g.expectedEnd, r.expectedEnd)
	if x.queues.queues[f].len > 0 {
		x.resized(f)
	} else {
		x.deactivated(f)
	}
}

// mayStart reports whether the function owns the GPU, or the GPU is free, and it is not promised.
func (x *exclusive) mayStart(f, gpu int32) bool {
	g := &x.gpus[gpu]
	return g.promisedTo == none && (g.owner == none || g.owner == f)
}

// moved makes a free GPU with an idle instance of the function its own. If the GPU belongs or is
// promised to another function, moved stops the instance.
func (x *exclusive) moved(f, gpu int32) {
	if x.engine.pool.PlaceOn(f, gpu).Index == none {
		return
	}
	switch g := &x.gpus[gpu]; {
	case !x.mayStart(f, gpu) && (g.owner != f || g.inFlight == 0):
		x.engine.evict.Dismiss(f, gpu)
	case g.owner == none && !g.closed:
		g.owner = f
		x.poolSize[f]++
	}
}

func (x *exclusive) reason(f int32) reason.Reason {
	if x.promised[f] > 0 {
		return reason.New(waitingForPromised)
	}
	return reason.Reason{}
}

// anyUnpromised reports whether a function could get a place: a GPU is not promised yet. Functions
// without GPUs always get such a GPU, so few functions are examined in vain.
func (x *exclusive) anyUnpromised() bool {
	for i := range x.gpus {
		if x.gpus[i].promisedTo == none && !x.gpus[i].closed {
			return true
		}
	}
	return false
}

// bestOwned returns the best place on the function's own GPUs.
func (x *exclusive) bestOwned(f int32) (best residency.Place, found bool) {
	if x.poolSize[f] == x.promised[f] {
		return best, false
	}
	pool := x.engine.pool
	for i := range x.gpus {
		g := &x.gpus[i]
		if g.owner != f || g.promisedTo != none {
			continue
		}
		at, ok := pool.Best(f, int32(i), residency.Any)
		if duration, bestDuration := pool.DurationOn(f, int32(i), at.Start), pool.DurationOn(f, best.GPU, best.Start); ok &&
			(!found || duration < bestDuration || duration == bestDuration && g.inFlight < x.gpus[best.GPU].inFlight) {
			best, found = at, true
		}
	}
	return best, found
}

// acquire gets the function a GPU: a free one, or one from the largest pool. It returns false if
// the function has to wait for the GPU, or gets none.
func (x *exclusive) acquire(f int32) (at residency.Place, found bool) {
	if x.promised[f] >= x.queues.queues[f].len {
		return at, false
	}
	free, victim, unsuitable, size := none, none, none, x.poolSize[f]
	for i := range x.gpus {
		g := &x.gpus[i]
		switch {
		case g.promisedTo != none || g.closed:
		case !x.engine.pool.FitsOn(int32(i), f):
			if g.owner == f && g.inFlight == 0 {
				unsuitable = int32(i)
				size--
			}
		case g.owner == none:
			if free == none {
				free = int32(i)
			}
		case g.owner != f && (victim == none || x.losesBefore(g.owner, victim)):
			victim = g.owner
		}
	}
	if free == none && (victim == none || size >= x.poolSize[victim]) {
		return at, false
	}
	if unsuitable != none {
		x.release(unsuitable)
	}
	if free != none {
		return x.assign(free, f)
	}
	gpu := x.victimGPU(victim, f)
	x.poolSize[victim]--
	x.losses++
	x.lastLoss[victim] = x.losses
	if x.gpus[gpu].inFlight > 0 {
		x.gpus[gpu].promisedTo = f
		x.poolSize[f]++
		x.promised[f]++
		return at, false
	}
	x.engine.evict.Clear(gpu)
	return x.assign(gpu, f)
}

// release frees an idle GPU, and makes functions without a place eligible again.
func (x *exclusive) release(gpu int32) {
	x.disown(gpu, x.gpus[gpu].owner)
	x.engine.evict.Clear(gpu)
	x.advanced(x.engine.now)
}

// losesBefore reports whether a's pool loses a GPU before b's.
func (x *exclusive) losesBefore(a, b int32) bool {
	if x.poolSize[a] != x.poolSize[b] {
		return x.poolSize[a] > x.poolSize[b]
	}
	if x.lastLoss[a] != x.lastLoss[b] {
		return x.lastLoss[a] < x.lastLoss[b]
	}
	return a < b
}

// victimGPU returns the GPU that a pool loses to a function: an idle one, or else the one whose
// work is expected to end first.
func (x *exclusive) victimGPU(victim, to int32) int32 {
	best := none
	for i := range x.gpus {
		g := &x.gpus[i]
		if g.owner != victim || g.promisedTo != none || g.closed || !x.engine.pool.FitsOn(int32(i), to) {
			continue
		}
		if best == none || g.inFlight == 0 && x.gpus[best].inFlight > 0 ||
			g.inFlight > 0 && x.gpus[best].inFlight > 0 && g.expectedEnd < x.gpus[best].expectedEnd {
			best = int32(i)
		}
	}
	return best
}

func (x *exclusive) assign(gpu, f int32) (residency.Place, bool) {
	x.gpus[gpu].owner = f
	x.poolSize[f]++
	return x.engine.pool.Best(f, gpu, residency.Any)
}
