package twin

import (
	"cmp"
	"math"
	"math/big"
	"slices"
	"time"
)

// gfaasRules implements the policy gfaas: R21 to R27.
type gfaasRules struct {
	vt         []*big.Rat // by function: virtual time
	runs       []*big.Rat // by function: charges of the invocations in flight
	global     *big.Rat
	last       *big.Rat // virtual time of the last dispatch, before its charge
	arrivals   [][]time.Duration
	dispatched []bool
	candidate  []bool
	ranked     []int // by function: number of waiting invocations when it was last ranked
	work       []*inFlight
	runningOn  [][]int // by function: GPU of each invocation in flight
	booked     [][]int // by GPU: functions with bookings, in order
}

// inFlight is an invocation in flight, with its expected end.
type inFlight struct {
	in                   *invocation
	started, expectedEnd time.Duration
	late                 bool // it was overdue
}

func newGfaasRules(w *world) *gfaasRules {
	n := len(w.functions)
	return &gfaasRules{vt: zeros(n), runs: zeros(n), global: new(big.Rat), last: new(big.Rat), arrivals: make([][]time.Duration, n),
		dispatched: make([]bool, n), candidate: make([]bool, n), ranked: make([]int, n), runningOn: make([][]int, n), booked: make([][]int, w.gpus)}
}

// charge returns the addition to the virtual time for a dispatch.
func (o *gfaasRules) charge(w *world, f int) *big.Rat {
	return plus(new(big.Rat), w.functions[f].Warm, w.functions[f])
}

// ahead returns A of R21.
func (o *gfaasRules) ahead(w *world) *big.Rat {
	first, second := new(big.Rat), new(big.Rat)
	for f := range w.functions {
		if !o.dispatched[f] {
			continue
		}
		if c := o.charge(w, f); c.Cmp(first) > 0 {
			first, second = c, first
		} else {
			second = larger(second, c)
		}
	}
	slots := new(big.Rat).SetInt64(int64(w.gpus * w.d))
	return sum(fraction(w.t), slots.Mul(slots, second))
}

func (o *gfaasRules) arrived(w *world, in *invocation) {
	if in == nil {
		o.raiseGlobal(w)
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

// raiseGlobal raises Global_VT, which may make further queues candidates.
func (o *gfaasRules) raiseGlobal(w *world) {
	var lowest *big.Rat
	for _, f := range w.waitingFunctions() {
		executed := new(big.Rat).Sub(o.vt[f], o.runs[f])
		if lowest == nil || executed.Cmp(lowest) < 0 {
			lowest = executed
		}
	}
	if lowest != nil {
		o.global = larger(o.global, lowest)
	}
	for f := range w.functions {
		ahead := new(big.Rat).Sub(o.vt[f], o.global)
		was := o.candidate[f]
		o.candidate[f] = w.queued(f) > 0 && ahead.Cmp(o.ahead(w)) <= 0
		if o.candidate[f] && !was {
			o.updateRank(w, f)
		}
	}
}

// updateRank updates the number of waiting invocations in the function's index.
func (o *gfaasRules) updateRank(w *world, f int) { o.ranked[f] = w.queued(f) }

// size returns the power of two above the index (R22).
func (o *gfaasRules) size(w *world, f int) int {
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

// before reports whether candidate a precedes b.
func (o *gfaasRules) before(w *world, a, b int) bool {
	if o.size(w, a) != o.size(w, b) {
		return o.size(w, a) < o.size(w, b)
	}
	if c := o.vt[a].Cmp(o.vt[b]); c != 0 {
		return c < 0
	}
	return w.age(a) < w.age(b)
}

// advanced drops bookings of overdue work (R26).
func (o *gfaasRules) advanced(w *world) {
	for g := range w.gpus {
		if len(o.booked[g]) > 0 && o.overdue(w, g) {
			o.booked[g] = nil
		}
	}
}

// overdueAt returns when work becomes overdue.
func (k *inFlight) overdueAt() time.Duration {
	if k.late {
		return k.expectedEnd + 1
	}
	return k.expectedEnd + max(k.expectedEnd-k.started, time.Millisecond) + 1
}

// overdue reports whether any work of a GPU is overdue, and expects that work to take twice its
// present duration.
func (o *gfaasRules) overdue(w *world, gpu int) (found bool) {
	for _, k := range o.work {
		if k.in.gpu == gpu && k.overdueAt() <= w.now {
			k.expectedEnd, k.late, found = w.now+(w.now-k.started), true, true
		}
	}
	return found
}

func (o *gfaasRules) wake(*world) time.Duration {
	at := time.Duration(math.MaxInt64)
	for _, k := range o.work {
		if len(o.booked[k.in.gpu]) > 0 {
			at = min(at, k.overdueAt())
		}
	}
	return at
}

func (o *gfaasRules) pick(w *world) (*invocation, int) {
	full := true
	for g := range w.gpus {
		full = full && w.onGPU(g) >= w.d
	}
	if full {
		return nil, -1
	}
	if in, gpu := o.nextBooked(w); in != nil {
		return in, gpu
	}
	var passed []int
	defer func() {
		for _, f := range passed {
			o.updateRank(w, f)
		}
	}()
	for {
		first := -1
		for _, f := range w.waitingFunctions() {
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

// nextBooked returns a booked invocation whose GPU can run it now (R25).
func (o *gfaasRules) nextBooked(w *world) (*invocation, int) {
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
			if !slices.Contains(o.runningOn[f], g) {
				o.booked[g] = without(o.booked[g], f)
			}
		}
	}
	return nil, -1
}

// ready reports whether a GPU has an idle container of f with its memory there.
func (o *gfaasRules) ready(w *world, f, gpu int) bool {
	b := w.best(f, gpu)
	return b != nil && b.resident
}

// bookings returns the number of bookings of a function.
func (o *gfaasRules) bookings(f int) (n int) {
	for _, functions := range o.booked {
		for _, other := range functions {
			if other == f {
				n++
			}
		}
	}
	return n
}

// cheapest returns the GPU of R23 and the loss there, or -1.
func (o *gfaasRules) cheapest(w *world, f int) (gpu int, loss float64) {
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

// loss returns the loss of a start on a GPU (R27).
func (o *gfaasRules) loss(w *world, f, gpu int, how kind) (loss float64) {
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

// worth returns the cost of doing without an idle container, or without its memory on the GPU, in
// ns per second (R27).
func (o *gfaasRules) worth(w *world, b *container, removed bool) float64 {
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

func (o *gfaasRules) evicts(w *world, b *container, removed bool) float64 {
	if removed {
		return o.worth(w, b, true)
	}
	return o.worth(w, b, false) / w.functions[b.f].MemMiB
}

func (o *gfaasRules) evicted(w *world, f int) { o.updateRank(w, f) }

// book makes an invocation wait for a busy GPU, if that is better than a start on the given GPU
// (R24).
func (o *gfaasRules) book(w *world, f, gpu int, loss float64) bool {
	d, _ := w.cost(f, gpu)
	extra := d - w.functions[f].Warm
	if extra <= 0 {
		return false
	}
	most := extra + time.Duration(min(loss*30, float64(extra)))
	at := -1
	where := slices.Clone(o.runningOn[f])
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

// wait returns the time until a busy GPU has room for another invocation.
func (o *gfaasRules) wait(w *world, gpu int) time.Duration {
	soonest, behind := time.Duration(math.MaxInt64/4), time.Duration(0)
	for _, k := range o.work {
		if k.in.gpu == gpu {
			remaining := max(k.expectedEnd-w.now, 0)
			if k.late {
				remaining = w.now - k.started
			}
			soonest = min(soonest, remaining)
		}
	}
	for _, f := range o.booked[gpu] {
		behind += w.functions[f].Warm
	}
	return soonest + behind/time.Duration(w.onGPU(gpu))
}

func (o *gfaasRules) started(w *world, in *invocation, gpu int, d time.Duration) {
	o.work = append(o.work, &inFlight{in: in, started: w.now, expectedEnd: w.now + d})
	o.runningOn[in.f] = append(o.runningOn[in.f], gpu)
	o.dispatched[in.f] = true
	o.last = o.vt[in.f]
	o.vt[in.f] = sum(o.vt[in.f], o.charge(w, in.f))
	o.runs[in.f] = sum(o.runs[in.f], o.charge(w, in.f))
	o.raiseGlobal(w)
	o.updateRank(w, in.f)
}

func (o *gfaasRules) finished(w *world, in *invocation) {
	o.work = slices.DeleteFunc(o.work, func(k *inFlight) bool { return k.in == in })
	o.runningOn[in.f] = without(o.runningOn[in.f], in.gpu)
	o.runs[in.f] = new(big.Rat).Sub(o.runs[in.f], o.charge(w, in.f))
	o.vt[in.f] = plus(o.vt[in.f], w.correction(in), w.functions[in.f])
	o.raiseGlobal(w)
	o.updateRank(w, in.f)
}

// without returns the list without the first occurrence of a value.
func without(list []int, value int) []int {
	i := slices.Index(list, value)
	return slices.Delete(list, i, i+1)
}

func sum(a, b *big.Rat) *big.Rat { return new(big.Rat).Add(a, b) }
