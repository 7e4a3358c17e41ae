package twin

import (
	"cmp"
	"math"
	"slices"
	"time"
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
			vt: make([]float64, len(w.functions)), arrivals: make([][]time.Duration, len(w.functions)),
			since: make([]time.Duration, len(w.functions)),
		}
	case "cfs-affinity":
		n := len(w.functions)
		c := &affinity{runtime: make([]float64, n), last: make([]int, n), turn: make([]int, n), spent: make([]float64, n), runs: make([]int, n)}
		for f := range c.last {
			c.last[f] = -1
		}
		return c
	}
	panic("no rules for " + w.policy)
}

// plain is what most policies have in common.
type plain struct{}

func (plain) arrived(*world, *invocation)                     {}
func (plain) started(*world, *invocation, int, time.Duration) {}
func (plain) idle(*world, int)                                {}
func (plain) evictFirst(*world, int) bool                     { return false }

// oldest is R11 and R12.
type oldest struct{ plain }

func (oldest) pick(w *world) (*invocation, int) {
	if len(w.waiting) == 0 {
		return nil, -1
	}
	return w.waiting[0], w.place(w.waiting[0].f)
}

// earliest takes the earliest deadline: arrival and what is expected on the
// best GPU, as things are.
type earliest struct{ plain }

func (earliest) pick(w *world) (*invocation, int) {
	var best *invocation
	var least time.Duration
	for _, f := range w.waits() {
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

// noise is what sums of fractions may differ by and still be equal.
const noise = 1e-9

// shortest is R13.
type shortest struct {
	plain
	deficit []float64
}

func (s *shortest) pick(w *world) (*invocation, int) {
	var best, starved = -1, -1
	for _, f := range w.waits() {
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
	waiting := w.waits()
	if !slices.Contains(waiting, in.f) {
		waiting = append(waiting, in.f)
	}
	for _, f := range waiting {
		s.deficit[f] += 1 / float64(len(waiting))
	}
	s.deficit[in.f]--
}

// fair is R14 to R16, in nanoseconds.
type fair struct {
	vt       []float64
	global   float64
	arrivals [][]time.Duration
	since    []time.Duration // when nothing of it waited or ran any more
}

func (q *fair) arrived(w *world, in *invocation) {
	if in == nil {
		q.follow(w)
		return
	}
	q.arrivals[in.f] = append(q.arrivals[in.f], w.now)
	if w.queued(in.f) == 0 {
		q.vt[in.f] = max(q.vt[in.f], q.global)
	}
}

// follow lifts Global_VT to the least of the waiting queues.
func (q *fair) follow(w *world) {
	least := math.Inf(1)
	for _, f := range w.waits() {
		least = min(least, q.vt[f])
	}
	if !math.IsInf(least, 1) {
		q.global = max(q.global, least)
	}
}

func (q *fair) throttled(w *world, f int) bool { return q.vt[f]-q.global > float64(w.t) }

func (q *fair) pick(w *world) (*invocation, int) {
	candidates := slices.DeleteFunc(w.waits(), func(f int) bool { return q.throttled(w, f) })
	if len(candidates) == 0 {
		return nil, -1
	}
	f := slices.MinFunc(candidates, func(a, b int) int {
		byVT := cmp.Compare(q.vt[a], q.vt[b])
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
	q.vt[in.f] += float64(fn.Warm) / fn.Weight
	q.follow(w)
}

func (q *fair) idle(w *world, f int) { q.since[f] = w.now }

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

func (q *fair) evictFirst(w *world, f int) bool { return w.policy == "mqfq-sticky" && !q.active(w, f) }

// affinity is R17.
type affinity struct {
	plain
	runtime []float64
	least   float64 // of those that waited when the last dispatch was decided
	last    []int   // GPU it ran on last
	turn    []int   // number of its last dispatch
	turns   int
	spent   []float64
	runs    []int
}

func (c *affinity) arrived(w *world, in *invocation) {
	if in != nil && w.queued(in.f) == 0 {
		c.runtime[in.f] = max(c.runtime[in.f], c.least)
	}
}

func (c *affinity) mean(w *world, f int) float64 {
	if c.runs[f] == 0 {
		return float64(w.functions[f].Warm)
	}
	return c.spent[f] / float64(c.runs[f])
}

func (c *affinity) pick(w *world) (*invocation, int) {
	type pair struct {
		f, gpu  int
		key     float64
		penalty int
	}
	var pairs []pair
	for _, f := range w.waits() {
		for g := range w.gpus {
			if !w.room(f, g) {
				continue
			}
			p := pair{f: f, gpu: g, key: c.runtime[f]}
			if c.last[f] >= 0 && c.last[f] != g {
				p.key, p.penalty = p.key+w.penalty*c.mean(w, f), 1
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
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.penalty, b.penalty), cmp.Compare(c.turn[a.f], c.turn[b.f]),
			cmp.Compare(ad, bd), cmp.Compare(w.onGPU(a.gpu), w.onGPU(b.gpu)), cmp.Compare(a.gpu, b.gpu))
	})
	return w.head(p.f), p.gpu
}

func (c *affinity) started(w *world, in *invocation, gpu int, d time.Duration) {
	c.least = c.runtime[in.f]
	for _, f := range w.waits() {
		c.least = min(c.least, c.runtime[f])
	}
	c.runtime[in.f] += float64(d) / w.functions[in.f].Weight
	c.turns++
	c.last[in.f], c.turn[in.f] = gpu, c.turns
	c.spent[in.f] += float64(d)
	c.runs[in.f]++
}
