package twin

import (
	"cmp"
	"math"
	"math/big"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/trace"
)

func rulesOf(w *world) rules {
	switch w.policy {
	case "fcfs", "fcfs-naive", "batch":
		return oldest{}
	case "eevdf":
		return earliest{}
	case "sjf":
		return &shortest{deficit: make([]float64, len(w.functions))}
	case "mqfq", "mqfq-sticky":
		return &fair{
			vt: zeros(len(w.functions)), global: new(big.Rat), arrivals: make([][]time.Duration, len(w.functions)),
			since: make([]time.Duration, len(w.functions)),
		}
	case "exclusive":
		return newPools(w)
	case "gfaas":
		return newGfaasRules(w)
	case "cfs-affinity":
		n := len(w.functions)
		c := &affinity{runtime: zeros(n), least: new(big.Rat), last: make([]int, n), turn: make([]int, n), spent: make([]time.Duration, n), runs: make([]int, n)}
		for f := range c.last {
			c.last[f] = -1
		}
		return c
	}
	panic("no rules for " + w.policy)
}

// plain implements the rules that most policies share.
type plain struct{}

func (plain) arrived(*world, *invocation)                     {}
func (plain) started(*world, *invocation, int, time.Duration) {}
func (plain) finished(*world, *invocation)                    {}
func (plain) advanced(*world)                                 {}
func (plain) wake(*world) time.Duration                       { return math.MaxInt64 }
func (plain) evicts(*world, *container, bool) float64         { return 0 }
func (plain) evicted(*world, int)                             {}

// oldest implements R11 and R12.
type oldest struct{ plain }

func (oldest) pick(w *world) (*invocation, int) {
	waiting := w.waitingFunctions()
	if len(waiting) == 0 {
		return nil, -1
	}
	return w.head(waiting[0]), w.place(waiting[0])
}

// earliest implements eevdf: the earliest deadline is the arrival plus the duration to expect on
// the best GPU in the current state.
type earliest struct{ plain }

func (earliest) pick(w *world) (*invocation, int) {
	var best *invocation
	var least time.Duration
	for _, f := range w.waitingFunctions() {
		expected := time.Duration(math.MaxInt64)
		for g := range w.gpus {
			d, _ := w.cost(f, g)
			expected = min(expected, d)
		}
		if deadline := w.head(f).at + expected; best == nil || deadline < least {
			best, least = w.head(f), deadline
		}
	}
	if best == nil {
		return nil, -1
	}
	return best, w.place(best.f)
}

// noise is the tolerance for sums of fractions to be equal.
const noise = 1e-9

// shortest implements R13.
type shortest struct {
	plain
	deficit []float64
}

func (s *shortest) pick(w *world) (*invocation, int) {
	var best, starved = -1, -1
	for _, f := range w.waitingFunctions() {
		if best < 0 || w.functions[f].Warm < w.functions[best].Warm {
			best = f
		}
		if s.deficit[f] >= w.starvation-noise && (starved < 0 || s.deficit[f] > s.deficit[starved]+noise) {
			starved = f
		}
	}
	if starved >= 0 {
		best = starved
	}
	if best < 0 {
		return nil, -1
	}
	return w.head(best), w.place(best)
}

func (s *shortest) started(w *world, in *invocation, _ int, _ time.Duration) {
	waiting := w.waitingFunctions()
	if !slices.Contains(waiting, in.f) {
		waiting = append(waiting, in.f)
	}
	for _, f := range waiting {
		s.deficit[f] += 1 / float64(len(waiting))
	}
	s.deficit[in.f]--
}

// Times over weights are exact fractions, so equal values tie.
func zeros(n int) (out []*big.Rat) {
	for range n {
		out = append(out, new(big.Rat))
	}
	return out
}

func fraction(d time.Duration) *big.Rat { return new(big.Rat).SetInt64(int64(d)) }

// plus adds a time over a function's weight, as written in the file.
func plus(v *big.Rat, d time.Duration, f trace.Function) *big.Rat {
	weight, _ := new(big.Rat).SetString(csvfile.Format(f.Weight))
	return new(big.Rat).Add(v, new(big.Rat).Quo(fraction(d), weight))
}

func larger(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) < 0 {
		return b
	}
	return a
}

// fair implements R14 to R16. Times are in nanoseconds.
type fair struct {
	plain
	vt       []*big.Rat
	global   *big.Rat
	arrivals [][]time.Duration
	since    []time.Duration // when the function became idle
}

func (q *fair) arrived(w *world, in *invocation) {
	if in == nil {
		q.raiseGlobal(w)
		return
	}
	q.arrivals[in.f] = append(q.arrivals[in.f], w.now)
	if w.queued(in.f) == 0 {
		q.vt[in.f] = larger(q.vt[in.f], q.global)
	}
}

// raiseGlobal raises Global_VT to the least virtual time of the waiting queues.
func (q *fair) raiseGlobal(w *world) {
	var least *big.Rat
	for _, f := range w.waitingFunctions() {
		if least == nil || q.vt[f].Cmp(least) < 0 {
			least = q.vt[f]
		}
	}
	if least != nil {
		q.global = larger(q.global, least)
	}
}

func (q *fair) throttled(w *world, f int) bool {
	return new(big.Rat).Sub(q.vt[f], q.global).Cmp(fraction(w.t)) > 0
}

func (q *fair) pick(w *world) (*invocation, int) {
	candidates := slices.DeleteFunc(w.waitingFunctions(), func(f int) bool { return q.throttled(w, f) })
	if len(candidates) == 0 {
		return nil, -1
	}
	f := slices.MinFunc(candidates, func(a, b int) int {
		byVT := q.vt[a].Cmp(q.vt[b])
		byAge := cmp.Compare(w.age(a), w.age(b))
		if w.policy == "mqfq" {
			return cmp.Or(byVT, byAge)
		}
		byFlight := 0
		if w.gpus*w.d > 1 {
			byFlight = cmp.Compare(w.inFlight(a), w.inFlight(b))
		}
		return cmp.Or(byFlight, cmp.Compare(w.queued(b), w.queued(a)), byVT, byAge)
	})
	return w.head(f), w.place(f)
}

func (q *fair) started(w *world, in *invocation, _ int, _ time.Duration) {
	fn := w.functions[in.f]
	q.vt[in.f] = plus(q.vt[in.f], fn.Warm, fn)
	q.raiseGlobal(w)
}

func (q *fair) finished(w *world, in *invocation) {
	q.vt[in.f] = plus(q.vt[in.f], w.correction(in), w.functions[in.f])
	q.raiseGlobal(w)
	if w.queued(in.f) == 0 && w.inFlight(in.f) == 0 {
		q.since[in.f] = w.now
	}
}

func (q *fair) active(w *world, f int) bool {
	if q.throttled(w, f) {
		return false
	}
	if w.queued(f) > 0 || w.inFlight(f) > 0 {
		return true
	}
	ttl := 0.0
	if n := len(q.arrivals[f]); n > 1 {
		ttl = w.alpha * float64(q.arrivals[f][n-1]-q.arrivals[f][0]) / float64(n-1)
	}
	return float64(w.now-q.since[f]) < ttl
}

func (q *fair) evicts(w *world, b *container, _ bool) float64 {
	if w.policy == "mqfq-sticky" && q.active(w, b.f) {
		return 1
	}
	return 0
}

// affinity implements R17.
type affinity struct {
	plain
	runtime []*big.Rat
	least   *big.Rat // of the functions that waited at the last dispatch
	last    []int    // GPU of the last dispatch
	turn    []int    // sequence number of the last dispatch
	turns   int
	spent   []time.Duration
	runs    []int
}

func (c *affinity) arrived(w *world, in *invocation) {
	if in != nil && w.queued(in.f) == 0 {
		c.runtime[in.f] = larger(c.runtime[in.f], c.least)
	}
}

func (c *affinity) finished(w *world, in *invocation) {
	c.runtime[in.f] = plus(c.runtime[in.f], w.correction(in), w.functions[in.f])
	c.spent[in.f] += w.correction(in)
}

func (c *affinity) mean(w *world, f int) *big.Rat {
	if c.runs[f] == 0 {
		return fraction(w.functions[f].Warm)
	}
	return new(big.Rat).SetFrac64(int64(c.spent[f]), int64(c.runs[f]))
}

func (c *affinity) pick(w *world) (*invocation, int) {
	type pair struct {
		f, gpu  int
		key     *big.Rat
		penalty int
	}
	var pairs []pair
	for _, f := range w.waitingFunctions() {
		for g := range w.gpus {
			if !w.room(f, g) {
				continue
			}
			p := pair{f: f, gpu: g, key: c.runtime[f]}
			if c.last[f] >= 0 && c.last[f] != g {
				away := new(big.Rat).SetFloat64(w.penalty)
				p.key, p.penalty = new(big.Rat).Add(p.key, away.Mul(away, c.mean(w, f))), 1
			}
			pairs = append(pairs, p)
		}
	}
	if len(pairs) == 0 {
		return nil, -1
	}
	p := slices.MinFunc(pairs, func(a, b pair) int {
		ad, _ := w.cost(a.f, a.gpu)
		bd, _ := w.cost(b.f, b.gpu)
		return cmp.Or(a.key.Cmp(b.key), cmp.Compare(a.penalty, b.penalty), cmp.Compare(c.turn[a.f], c.turn[b.f]),
			cmp.Compare(ad, bd), cmp.Compare(w.onGPU(a.gpu), w.onGPU(b.gpu)), cmp.Compare(a.gpu, b.gpu))
	})
	return w.head(p.f), p.gpu
}

func (c *affinity) started(w *world, in *invocation, gpu int, d time.Duration) {
	c.least = c.runtime[in.f]
	for _, f := range w.waitingFunctions() {
		if c.runtime[f].Cmp(c.least) < 0 {
			c.least = c.runtime[f]
		}
	}
	c.runtime[in.f] = plus(c.runtime[in.f], d, w.functions[in.f])
	c.turns++
	c.last[in.f], c.turn[in.f] = gpu, c.turns
	c.spent[in.f] += d
	c.runs[in.f]++
}
