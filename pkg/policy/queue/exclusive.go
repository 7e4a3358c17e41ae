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
type exclusive struct {
	functions []Function
	queues    *waiting
	pool      *residency.Pool
	waits     heap // functions that wait, by oldest head
	gpus      []held
	size      []int32 // by function: GPUs it has or is promised
	promised  []int32 // by function: GPUs that it waits for
	lost      []int64 // by function: when it lost a GPU last, as a count
	losses    int64
	blocked   []int32
}

// held is whose a GPU is.
type held struct {
	owner int32
	next  int32 // who gets it when what runs has ended
	runs  int32
	until time.Duration // expected end of what runs
}

func newExclusive(c Config) Policy {
	n := len(c.Functions)
	shape := c.shape()
	shape.Clears = true
	x := &exclusive{functions: c.Functions, queues: newWaiting(n), pool: residency.New(shape), waits: newHeap(n),
		gpus: make([]held, c.GPUs), size: make([]int32, n), promised: make([]int32, n), lost: make([]int64, n)}
	for i := range x.gpus {
		x.gpus[i] = held{owner: none, next: none}
	}
	return x
}

func (x *exclusive) Step(now time.Duration, events []Event, actions []Action) []Action {
	for i := range events {
		switch ev := &events[i]; ev.Kind {
		case Completed:
			actions = x.completed(ev, actions)
		case Arrived:
			if !x.pool.Fits(ev.Function) {
				actions = append(actions, reject(ev))
				continue
			}
			x.queues.push(ev.Function, ev.ID, ev.At)
			x.wait(ev.Function)
		}
	}
	return x.dispatch(now, actions)
}

func (x *exclusive) wait(f int32) {
	if x.queues.queues[f].len > 0 {
		x.waits.set(f, key{c: x.queues.oldest(f)})
	} else {
		x.waits.remove(f)
	}
}

func (x *exclusive) completed(ev *Event, actions []Action) []Action {
	x.queues.queues[ev.Function].inFlight--
	x.pool.End(ev.Container)
	g := &x.gpus[ev.GPU]
	g.runs--
	if g.runs == 0 && g.next != none {
		x.promised[g.next]--
		g.owner, g.next = g.next, none
		x.pool.Clear(ev.GPU)
	}
	return appendChanges(actions, x.pool.Changes())
}

// dispatch serves clients in order of their oldest invocations. What one
// cannot have, a later one may.
func (x *exclusive) dispatch(now time.Duration, actions []Action) []Action {
	for x.waits.len() > 0 && x.something() {
		f := x.waits.min().function
		rule := "a GPU of its own is free"
		at, ok := x.own(f)
		if !ok {
			rule = "a GPU changed hands"
			at, ok = x.take(f)
		}
		if !ok {
			x.blocked = append(x.blocked, f)
			x.waits.remove(f)
			continue
		}
		actions = x.start(now, f, at, rule, actions)
	}
	for _, f := range x.blocked {
		x.wait(f)
	}
	x.blocked = x.blocked[:0]
	return actions
}

// something says whether any client could get anything: a GPU that is not
// promised yet. A client without GPUs always gets one of those, so that few
// clients are looked at in vain.
func (x *exclusive) something() bool {
	for i := range x.gpus {
		if x.gpus[i].next == none {
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
	e := x.functions[f].expected()
	for i := range x.gpus {
		g := &x.gpus[i]
		if g.owner != f || g.next != none {
			continue
		}
		at, ok := x.pool.Best(f, int32(i), residency.Any)
		if ok && (!found || e[at.Start] < e[best.Start] || e[at.Start] == e[best.Start] && g.runs < x.gpus[best.GPU].runs) {
			best, found = at, true
		}
	}
	return best, found
}

// take gets the client a GPU: one that nobody has, or one of the largest pool.
// Found is false when it has to wait for it, or gets none.
func (x *exclusive) take(f int32) (at residency.Place, found bool) {
	if x.promised[f] >= x.queues.queues[f].len {
		return at, false
	}
	free, victim := none, none
	for i := range x.gpus {
		g := &x.gpus[i]
		switch {
		case g.next != none:
		case g.owner == none:
			if free == none {
				free = int32(i)
			}
		case victim == none || x.larger(g.owner, victim):
			victim = g.owner
		}
	}
	if free != none {
		return x.give(free, f)
	}
	if victim == none || x.size[f] >= x.size[victim] {
		return at, false
	}
	gpu := x.surrender(victim)
	x.size[victim]--
	x.losses++
	x.lost[victim] = x.losses
	if x.gpus[gpu].runs > 0 {
		x.gpus[gpu].next = f
		x.size[f]++
		x.promised[f]++
		return at, false
	}
	x.pool.Clear(gpu)
	return x.give(gpu, f)
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

// surrender is the GPU that a pool loses: an idle one, else the one whose work
// should end first.
func (x *exclusive) surrender(victim int32) int32 {
	best := none
	for i := range x.gpus {
		g := &x.gpus[i]
		if g.owner != victim || g.next != none {
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
	return x.pool.Best(f, gpu, residency.Any)
}

func (x *exclusive) start(now time.Duration, f int32, at residency.Place, rule string, actions []Action) []Action {
	q := &x.queues.queues[f]
	run := Action{Kind: Run, Start: at.Start, Function: f, GPU: at.GPU, Expected: x.functions[f].expected()[at.Start],
		Reason: Reason{Rule: rule, Waiting: q.len, InFlight: q.inFlight, Value: float64(x.size[f])}}
	run.Container = x.pool.Begin(f, at)
	actions = appendChanges(actions, x.pool.Changes())
	run.ID, run.Arrived = x.queues.pop(f)
	q.inFlight++
	g := &x.gpus[at.GPU]
	g.runs++
	g.until = max(g.until, now+run.Expected)
	x.wait(f)
	return append(actions, run)
}
