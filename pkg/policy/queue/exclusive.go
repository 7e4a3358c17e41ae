package queue

import (
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// exclusive gives whole GPUs to clients (KaaS, section 4.1.4, the Exclusive
// policy). A client is a function; its pool is the GPUs it has. A client whose
// pool cannot serve at once takes a GPU of the largest pool (ties: the one
// that lost a GPU least recently) if its own is smaller: an idle one now, else
// one that is busy when what runs there has ended. A GPU that changes hands
// loses all containers, so that its new client begins with a cold start.
//
// A plan's instances and others may have a GPU's memory: a client takes none
// that could not hold it beside those, and swaps one of its own that cannot.
type exclusive struct {
	ordinary
	engine   *engine
	waits    heap // functions that wait, by oldest head
	gpus     []owned
	size     []int32 // by function: GPUs it has or is promised
	promised []int32 // by function: GPUs that it waits for
	lost     []int64 // by function: when it lost a GPU last, as a count
	losses   int64
	blocked  []int32 // looked at in vain since things changed last
}

// owned is whose a GPU is.
type owned struct {
	owner int32
	next  int32 // who gets it when what runs has ended
	runs  int32
	until time.Duration // expected end of what runs
	gone  bool
}

func newExclusive(e *engine) *exclusive { return &exclusive{ordinary: ordinary{e.queues}, engine: e} }

func (x *exclusive) shape(c *residency.Config) { c.Clears, c.May = true, x.may }

func (x *exclusive) grow(functions, gpus, _ int) {
	x.waits.grow(functions)
	x.size, x.promised, x.lost = grown(x.size, functions), grown(x.promised, functions), grown(x.lost, functions)
	for len(x.gpus) < gpus {
		x.gpus = append(x.gpus, owned{owner: none, next: none})
	}
	for i := range x.gpus {
		x.gpus[i].gone = x.engine.slots[i] == 0
	}
}

// forget gives back what a function has.
func (x *exclusive) forget(f int32) {
	for i := range x.gpus {
		x.disown(int32(i), f)
	}
	x.size[f], x.promised[f], x.lost[f] = 0, 0, 0
}

// closed takes a GPU from whoever has it or is to have it.
func (x *exclusive) closed(gpu int32) {
	g := &x.gpus[gpu]
	g.gone = true
	for _, f := range []int32{g.owner, g.next} {
		if f != none {
			x.disown(gpu, f)
		}
	}
}

// disown takes a GPU, or the promise of it, from a function.
func (x *exclusive) disown(gpu, f int32) {
	g := &x.gpus[gpu]
	if g.next == f {
		g.next = none
		x.size[f]--
		x.promised[f]--
		if g.owner != none { // it keeps it after all
			x.size[g.owner]++
		}
	}
	if g.owner == f {
		if g.owner = none; g.next == none {
			x.size[f]--
		}
	}
}

func (x *exclusive) began(_ time.Duration, f int32, _ bool) { x.grew(f) }

func (x *exclusive) grew(f int32) { x.waits.set(f, key{a: x.queues.oldest(f)}) }

func (x *exclusive) ceased(f int32) {
	x.waits.remove(f)
	x.blocked = without(x.blocked, f)
}

func (x *exclusive) ended(_ time.Duration, _ int32, r *run, _ time.Duration) { x.gpus[r.gpu].runs-- }

// freed hands a GPU that is promised over.
func (x *exclusive) freed(f, gpu int32) {
	if g := &x.gpus[gpu]; g.runs == 0 && g.next != none {
		x.promised[g.next]--
		g.owner, g.next = g.next, none
		x.engine.pool.Clear(gpu)
	}
	x.moved(f, gpu)
}

// opened looks at everybody again.
func (x *exclusive) opened(time.Duration) {
	for _, f := range x.blocked {
		x.grew(f)
	}
	x.blocked = x.blocked[:0]
}

func (x *exclusive) plans() bool { return x.something() }

// next serves clients in order of their oldest invocations. What one cannot
// have, a later one may.
func (x *exclusive) next(_ time.Duration, c *choice) bool {
	for x.waits.len() > 0 && x.something() {
		f := x.waits.min().function
		rule := "a GPU of its own is free"
		at, ok := x.own(f)
		if !ok {
			rule = "a GPU changed hands"
			at, ok = x.acquire(f)
		}
		if ok {
			return c.on(f, at, rule, float64(x.size[f]))
		}
		x.blocked = append(x.blocked, f)
		x.waits.remove(f)
	}
	return false
}

func (x *exclusive) left(_ time.Duration, f int32, r *run) {
	g := &x.gpus[r.gpu]
	g.runs++
	g.until = max(g.until, r.until)
	if x.queues.queues[f].len > 0 {
		x.grew(f)
	} else {
		x.ceased(f)
	}
}

// may says whether a GPU is the client's, or nobody's yet.
func (x *exclusive) may(f, gpu int32) bool {
	g := &x.gpus[gpu]
	return g.next == none && (g.owner == none || g.owner == f)
}

// moved has an instance that was found or started on a GPU make that GPU its
// client's, or go if the GPU is another's.
func (x *exclusive) moved(f, gpu int32) {
	if x.engine.pool.On(f, gpu).Slot == none {
		return
	}
	switch g := &x.gpus[gpu]; {
	case !x.may(f, gpu) && (g.owner != f || g.runs == 0):
		x.engine.pool.Dismiss(f, gpu)
	case g.owner == none && !g.gone:
		g.owner = f
		x.size[f]++
	}
}

func (x *exclusive) why(f int32) string {
	if x.promised[f] > 0 {
		return "waits for a GPU that is promised to it"
	}
	return ""
}

// something says whether any client could get anything: a GPU that is not
// promised yet. A client without GPUs always gets one of those, so that few
// clients are looked at in vain.
func (x *exclusive) something() bool {
	for i := range x.gpus {
		if x.gpus[i].next == none && !x.gpus[i].gone {
			return true
		}
	}
	return false
}

// own is the best place on the client's own GPUs.
func (x *exclusive) own(f int32) (best residency.Place, found bool) {
	if x.size[f] == x.promised[f] {
		return best, false
	}
	spec, pool := &x.engine.functions[f], x.engine.pool
	for i := range x.gpus {
		g := &x.gpus[i]
		if g.owner != f || g.next != none {
			continue
		}
		at, ok := pool.Best(f, int32(i), residency.Any)
		if took, least := spec.expected(at.Start), spec.expected(best.Start); ok &&
			(!found || took < least || took == least && g.runs < x.gpus[best.GPU].runs) {
			best, found = at, true
		}
	}
	return best, found
}

// acquire gets the client a GPU: one that nobody has, or one of the largest pool.
// Found is false when it has to wait for it, or gets none.
func (x *exclusive) acquire(f int32) (at residency.Place, found bool) {
	if x.promised[f] >= x.queues.queues[f].len {
		return at, false
	}
	free, victim, useless, size := none, none, none, x.size[f]
	for i := range x.gpus {
		g := &x.gpus[i]
		switch {
		case g.next != none || g.gone:
		case !x.engine.pool.Holds(int32(i), f):
			if g.owner == f && g.runs == 0 {
				useless = int32(i)
				size--
			}
		case g.owner == none:
			if free == none {
				free = int32(i)
			}
		case g.owner != f && (victim == none || x.larger(g.owner, victim)):
			victim = g.owner
		}
	}
	if free == none && (victim == none || size >= x.size[victim]) {
		return at, false
	}
	if useless != none {
		x.giveUp(useless)
	}
	if free != none {
		return x.give(free, f)
	}
	gpu := x.surrender(victim, f)
	x.size[victim]--
	x.losses++
	x.lost[victim] = x.losses
	if x.gpus[gpu].runs > 0 {
		x.gpus[gpu].next = f
		x.size[f]++
		x.promised[f]++
		return at, false
	}
	x.engine.pool.Clear(gpu)
	return x.give(gpu, f)
}

// giveUp has an idle GPU be nobody's, and those whom none could be given look again.
func (x *exclusive) giveUp(gpu int32) {
	x.disown(gpu, x.gpus[gpu].owner)
	x.engine.pool.Clear(gpu)
	x.opened(x.engine.now)
}

// larger says whether a's pool is to lose a GPU before b's.
func (x *exclusive) larger(a, b int32) bool {
	if x.size[a] != x.size[b] {
		return x.size[a] > x.size[b]
	}
	if x.lost[a] != x.lost[b] {
		return x.lost[a] < x.lost[b]
	}
	return a < b
}

// surrender is the GPU that a pool loses to a client: an idle one, else the one whose
// work should end first.
func (x *exclusive) surrender(victim, to int32) int32 {
	best := none
	for i := range x.gpus {
		g := &x.gpus[i]
		if g.owner != victim || g.next != none || g.gone || !x.engine.pool.Holds(int32(i), to) {
			continue
		}
		if best == none || g.runs == 0 && x.gpus[best].runs > 0 ||
			g.runs > 0 && x.gpus[best].runs > 0 && g.until < x.gpus[best].until {
			best = int32(i)
		}
	}
	return best
}

func (x *exclusive) give(gpu, f int32) (residency.Place, bool) {
	x.gpus[gpu].owner = f
	x.size[f]++
	return x.engine.pool.Best(f, gpu, residency.Any)
}
