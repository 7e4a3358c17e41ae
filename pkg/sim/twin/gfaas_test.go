package twin

import (
	"cmp"
	"math"
	"math/big"
	"slices"
	"time"
)

// ours is the policy gfaas: R21 to R27.
type ours struct {
	vt         []*big.Rat // of each function's queue
	runs       []*big.Rat // what of it invocations were charged that still run
	global     *big.Rat
	last       *big.Rat // virtual time of the last dispatch, before its charge
	arrivals   [][]time.Duration
	dispatched []bool
	candidate  []bool
	ranked     []int // by function: how many of it waited when it was ranked last
	work       []*work
	on         [][]int // by function: GPUs it runs on, one for each invocation
	booked     [][]int // by GPU: the functions that wait for it, in order
}

// work is an invocation that runs, and until when it is expected to.
type work struct {
	in           *invocation
	begin, until time.Duration
}

func newOurs(w *world) *ours {
	n := len(w.functions)
	return &ours{vt: zeros(n), runs: zeros(n), global: new(big.Rat), last: new(big.Rat), arrivals: make([][]time.Duration, n),
		dispatched: make([]bool, n), candidate: make([]bool, n), ranked: make([]int, n), on: make([][]int, n), booked: make([][]int, w.gpus)}
}

// charge is what a dispatch adds to a virtual time.
func (o *ours) charge(w *world, f int) *big.Rat {
	return plus(new(big.Rat), w.functions[f].Warm, w.functions[f])
}

// ahead is A of R21.
func (o *ours) ahead(w *world) *big.Rat {
	most, second := new(big.Rat), new(big.Rat)
	for f := range w.functions {
		if !o.dispatched[f] {
			continue
		}
		if c := o.charge(w, f); c.Cmp(most) > 0 {
			most, second = c, most
		} else {
			second = larger(second, c)
		}
	}
	slots := new(big.Rat).SetInt64(int64(w.gpus * w.d))
	return sum(fraction(w.t), slots.Mul(slots, second))
}

func (o *ours) arrived(w *world, in *invocation) {
	if in == nil {
		o.follow(w)
		return
	}
	o.arrivals[in.f] = append(o.arrivals[in.f], w.now)
	if w.queued(in.f) > 0 {
		return
	}
	recent := new(big.Rat).Sub(o.last, o.global)
	recent.Mul(recent, big.NewRat(9, 10))
	o.vt[in.f] = larger(o.vt[in.f], sum(o.global, larger(recent, o.runs[in.f])))
}

// follow lifts Global_VT, which may make candidates of queues that were not.
func (o *ours) follow(w *world) {
	var least *big.Rat
	for _, f := range w.waits() {
		executed := new(big.Rat).Sub(o.vt[f], o.runs[f])
		if least == nil || executed.Cmp(least) < 0 {
			least = executed
		}
	}
	if least != nil {
		o.global = larger(o.global, least)
	}
	for f := range w.functions {
		ahead := new(big.Rat).Sub(o.vt[f], o.global)
		was := o.candidate[f]
		o.candidate[f] = w.queued(f) > 0 && ahead.Cmp(o.ahead(w)) <= 0
		if o.candidate[f] && !was {
			o.changed(w, f)
		}
	}
}

// changed counts anew how many wait, for the function's index.
func (o *ours) changed(w *world, f int) { o.ranked[f] = w.queued(f) }

// size is the power of two above the index (R22).
func (o *ours) size(w *world, f int) int {
	fn := w.functions[f]
	expected := time.Duration(math.MaxInt64)
	for g := range w.gpus {
		d, _ := w.cost(f, g)
		expected = min(expected, d)
	}
	together, warm := float64(o.ranked[f]), float64(fn.Warm)
	if fn.Warm > 0 {
		together = min(together, 1+float64(w.t)*fn.Weight/warm)
	}
	_, size := math.Frexp((float64(expected) - warm + together*warm) / together / fn.Weight)
	return size
}

// before says whether candidate a goes before b.
func (o *ours) before(w *world, a, b int) bool {
	if o.size(w, a) != o.size(w, b) {
		return o.size(w, a) < o.size(w, b)
	}
	if c := o.vt[a].Cmp(o.vt[b]); c != 0 {
		return c < 0
	}
	return w.age(a) < w.age(b)
}

// opened drops what waits for work that is overdue (R26).
func (o *ours) opened(w *world) {
	for g := range w.gpus {
		if len(o.booked[g]) > 0 && o.overdue(w, g) {
			o.booked[g] = nil
		}
	}
}

// late is when work is overdue.
func (k *work) late() time.Duration {
	return k.until + max(k.until-k.begin, time.Millisecond) + 1
}

// overdue says whether any work of a GPU is, and expects it to take twice as
// long as it has so far.
func (o *ours) overdue(w *world, gpu int) (some bool) {
	for _, k := range o.work {
		if k.in.gpu == gpu && k.late() <= w.now {
			k.until, some = w.now+(w.now-k.begin), true
		}
	}
	return some
}

func (o *ours) wake(*world) time.Duration {
	at := time.Duration(math.MaxInt64)
	for _, k := range o.work {
		if len(o.booked[k.in.gpu]) > 0 {
			at = min(at, k.late())
		}
	}
	return at
}

func (o *ours) pick(w *world) (*invocation, int) {
	full := true
	for g := range w.gpus {
		full = full && w.onGPU(g) >= w.d
	}
	if full {
		return nil, -1
	}
	if in, gpu := o.due(w); in != nil {
		return in, gpu
	}
	var passed []int
	defer func() {
		for _, f := range passed {
			o.changed(w, f)
		}
	}()
	for {
		first := -1
		for _, f := range w.waits() {
			if o.candidate[f] && !slices.Contains(passed, f) && (first < 0 || o.before(w, f, first)) {
				first = f
			}
		}
		if first < 0 {
			return nil, -1
		}
		for o.bookings(first) < w.queued(first) {
			gpu, loss := o.cheapest(w, first)
			if gpu < 0 {
				break
			}
			if !o.book(w, first, gpu, loss) {
				return w.head(first), gpu
			}
		}
		passed = append(passed, first)
	}
}

// due is an invocation that is booked on a GPU which can run it now (R25).
func (o *ours) due(w *world) (*invocation, int) {
	for g := range w.gpus {
		if w.onGPU(g) >= w.d {
			continue
		}
		for _, f := range slices.Clone(o.booked[g]) {
			if !o.candidate[f] {
				continue
			}
			if o.ready(w, f, g) {
				o.booked[g] = without(o.booked[g], f)
				return w.head(f), g
			}
			if !slices.Contains(o.on[f], g) {
				o.booked[g] = without(o.booked[g], f)
			}
		}
	}
	return nil, -1
}

// ready says whether a GPU has an idle container of f with its memory there.
func (o *ours) ready(w *world, f, gpu int) bool {
	b := w.best(f, gpu)
	return b != nil && b.resident
}

// bookings is how many invocations of a function wait for a GPU.
func (o *ours) bookings(f int) (n int) {
	for _, functions := range o.booked {
		for _, other := range functions {
			if other == f {
				n++
			}
		}
	}
	return n
}

// cheapest is the GPU of R23 and the loss there; -1 when there is none.
func (o *ours) cheapest(w *world, f int) (gpu int, loss float64) {
	gpu = -1
	var soonest time.Duration
	for g := range w.gpus {
		if !w.room(f, g) {
			continue
		}
		d, k := w.cost(f, g)
		l := o.loss(w, f, g, k)
		if gpu < 0 || d < soonest || d == soonest && (l < loss || l == loss && w.onGPU(g) < w.onGPU(gpu)) {
			gpu, soonest, loss = g, d, l
		}
	}
	return gpu, loss
}

// loss is that of a start on a GPU.
func (o *ours) loss(w *world, f, gpu int, how kind) (loss float64) {
	if how == gpuWarm {
		others := w.movable(gpu)
		slices.SortFunc(others, func(a, b *container) int { return cmp.Compare(a.finished, b.finished) })
		for _, b := range others {
			if b.f != f {
				loss += o.worth(w, b, false)
			}
		}
		return loss
	}
	need := w.functions[f].MemMiB
	if victims := w.removable(gpu); how == cold && w.pool >= 0 && w.exist(gpu) >= w.pool {
		if len(victims) > 0 {
			loss = o.worth(w, victims[0], true)
		}
	} else if w.memory > 0 && w.used(gpu)+need > w.memory {
		victim := w.movable(gpu)[0]
		loss = o.worth(w, victim, false) / w.functions[victim.f].MemMiB * need
	}
	return loss
}

// worth is what it costs to do without an idle container, or without its memory
// on the GPU, in nanoseconds a second (R27).
func (o *ours) worth(w *world, b *container, removed bool) float64 {
	fn := w.functions[b.f]
	has, then := fn.Warm, fn.Warm+fn.Load
	if !b.resident {
		has = fn.Warm + fn.Load
	}
	if removed {
		then = fn.Cold
	}
	copies := 0
	for g := range w.gpus {
		if w.best(b.f, g) != nil {
			copies++
		}
	}
	came := o.arrivals[b.f]
	first, last, n := came[0], came[len(came)-1], len(came)
	gap := max(w.now-last, time.Millisecond)
	if n > 1 {
		gap = max(gap, (last-first)/time.Duration(n-1))
	}
	return float64(max(then-has, 0)) * (float64(w.queued(b.f)) + 1/gap.Seconds()) / float64(copies)
}

func (o *ours) evicts(w *world, b *container, removed bool) float64 {
	if removed {
		return o.worth(w, b, true)
	}
	return o.worth(w, b, false) / w.functions[b.f].MemMiB
}

func (o *ours) evicted(w *world, f int) { o.changed(w, f) }

// book has an invocation wait for a busy GPU, if that is better than to start
// on the one given (R24).
func (o *ours) book(w *world, f, gpu int, loss float64) bool {
	d, _ := w.cost(f, gpu)
	extra := d - w.functions[f].Warm
	if extra <= 0 {
		return false
	}
	most := extra + time.Duration(min(loss*30, float64(extra)))
	at := -1
	where := slices.Clone(o.on[f])
	for g := range w.gpus {
		if o.ready(w, f, g) {
			where = append(where, g)
		}
	}
	for _, g := range where {
		o.overdue(w, g)
		if wait := o.wait(w, g); wait < most {
			at, most = g, wait
		}
	}
	if at < 0 {
		return false
	}
	o.booked[at] = append(o.booked[at], f)
	return true
}

// wait is how long it is until a busy GPU has room for one more.
func (o *ours) wait(w *world, gpu int) time.Duration {
	soonest, behind := time.Duration(math.MaxInt64/4), time.Duration(0)
	for _, k := range o.work {
		if k.in.gpu == gpu {
			soonest = min(soonest, max(k.until-w.now, 0))
		}
	}
	for _, f := range o.booked[gpu] {
		behind += w.functions[f].Warm
	}
	return soonest + behind/time.Duration(w.onGPU(gpu))
}

func (o *ours) started(w *world, in *invocation, gpu int, d time.Duration) {
	o.work = append(o.work, &work{in, w.now, w.now + d})
	o.on[in.f] = append(o.on[in.f], gpu)
	o.dispatched[in.f] = true
	o.last = o.vt[in.f]
	o.vt[in.f] = sum(o.vt[in.f], o.charge(w, in.f))
	o.runs[in.f] = sum(o.runs[in.f], o.charge(w, in.f))
	o.follow(w)
	o.changed(w, in.f)
}

func (o *ours) ended(w *world, in *invocation) {
	o.work = slices.DeleteFunc(o.work, func(k *work) bool { return k.in == in })
	o.on[in.f] = without(o.on[in.f], in.gpu)
	o.runs[in.f] = new(big.Rat).Sub(o.runs[in.f], o.charge(w, in.f))
	o.vt[in.f] = plus(o.vt[in.f], w.more(in), w.functions[in.f])
	o.follow(w)
	o.changed(w, in.f)
}

// without is a list that lacks the first of a value.
func without(list []int, value int) []int {
	i := slices.Index(list, value)
	return slices.Delete(list, i, i+1)
}

func sum(a, b *big.Rat) *big.Rat { return new(big.Rat).Add(a, b) }
