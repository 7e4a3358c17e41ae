package joint

import (
	"cmp"
	"math"
	"slices"
)

// draft is a plan in the making: GPUs that are decided, and those that the
// search may still change.
type draft struct {
	groups []Group
	hosts  []*host
	served []float64 // by function, of all
	counts []int     // by class, GPUs that are not used yet
}

func (s *solver) draft() *draft {
	return &draft{served: make([]float64, len(s.p.Funcs)), counts: s.counts()}
}

// gpus counts the GPUs that host something.
func (d *draft) gpus() int {
	n := 0
	for _, g := range d.groups {
		n += g.Count
	}
	for _, h := range d.hosts {
		if len(h.items) > 0 {
			n++
		}
	}
	return n
}

// plan makes the plan of the program's solution. Spanning functions are placed
// in gangs, which may take half of the work until then; where that misses the
// bound, also one by one, and what leaves less, or takes fewer GPUs, is taken. Where
// there are too few GPUs for all, functions are placed by rank, too (rank.go).
func (s *solver) plan(uses []use, price []float64, bound int, until int64) *draft {
	d := s.draft()
	if !s.spans() {
		s.finish(d, uses, price, bound, until)
		return d
	}
	d = s.planSpans(d, uses, price, bound, until)
	if sum(s.unserved(d.served)) == 0 {
		return d
	}
	return s.ranked(d, bound)
}

// planSpans places spanning functions first, in gangs or one by one.
func (s *solver) planSpans(d *draft, uses []use, price []float64, bound int, until int64) *draft {
	half := s.work + max(0, until-s.work)/2
	s.placeGangs(d, uses, price)
	s.finish(d, uses, price, bound, half)
	if sum(s.unserved(d.served)) == 0 && d.gpus() <= bound {
		return d
	}
	other, before := s.draft(), s.work
	if !s.placeSingly(other, uses, price, until) {
		return d
	}
	until += s.work - before // it leaves the search its own
	s.finish(other, uses, price, bound, until)
	if s.better(other, d) {
		return other
	}
	return d
}

// finish serves what does not span GPUs.
func (s *solver) finish(d *draft, uses []use, price []float64, bound int, until int64) {
	s.round(d, uses, price, until)
	s.search(d, s.weights(price, d), bound, until)
}

// better says whether a draft leaves less than another, or takes fewer GPUs.
func (s *solver) better(a, b *draft) bool {
	x, y := sum(s.unserved(a.served)), sum(s.unserved(b.served))
	if math.Abs(x-y) > tolerance*max(x, y) {
		return x < y
	}
	return a.gpus() < b.gpus()
}

// weights say what a request a second of each function is worth to the search:
// while GPUs are to be saved, what it costs of them; when there are too few, as
// much as any other.
func (s *solver) weights(price []float64, d *draft) []float64 {
	if sum(s.unservedSingle(d.served)) == 0 {
		return price
	}
	return slices.Repeat([]float64{1 / s.minSolo}, len(price))
}

// round turns the program's solution into whole GPUs: patterns used at least
// once are decided, what remains is served by diving. What spans GPUs is placed
// already.
func (s *solver) round(d *draft, uses []use, price []float64, until int64) {
	for _, u := range uses {
		if n := wholeUses(u); n > 0 && s.gangSize(s.pool.patterns[u.pattern].gpu.Items) == 1 {
			s.decide(d, s.pool.patterns[u.pattern], n)
		}
	}
	s.dive(d, price, until)
}

// wholeUses rounds a use down, but for what rounding errors took.
func wholeUses(u use) int { return int(u.count + 1e-6) }

// decide takes n GPUs of a pattern.
func (s *solver) decide(d *draft, t pattern, n int) {
	if d.counts[t.gpu.Class] != Elastic {
		n = min(n, d.counts[t.gpu.Class])
		d.counts[t.gpu.Class] -= n
	}
	if n <= 0 {
		return
	}
	d.groups = append(d.groups, Group{t.gpu, n})
	for k, f := range t.fns {
		d.served[f] += float64(n) * t.rates[k]
	}
}

// diveSteps is about how many programs are solved until nothing is left.
const diveSteps = 12

// dive serves what is left: again and again the program of what is left is
// solved and the patterns it uses most are decided. Once time is over GPUs are
// only filled, one after the other.
func (s *solver) dive(d *draft, price []float64, until int64) {
	for {
		left := s.unservedSingle(d.served)
		if sum(left) == 0 || !slices.ContainsFunc(d.counts, func(n int) bool { return n != 0 }) {
			return
		}
		var uses []use
		if !s.expired() {
			uses = s.solveLeft(left, d.counts, until)
		}
		slices.SortStableFunc(uses, func(a, b use) int { return cmp.Compare(b.count, a.count) })
		gpus := 0.0
		for _, u := range uses {
			gpus += u.count
		}
		some := false
		for i, u := range uses {
			if n := wholeUses(u); n >= 1 || i <= int(gpus/diveSteps) {
				some = s.open(d, s.pool.patterns[u.pattern], max(1, n), price) || some
			}
		}
		for k := 0; k < len(d.counts) && !some; k++ {
			some = s.open(d, pattern{gpu: GPU{Class: k}}, 1, price)
		}
		if !some {
			return
		}
	}
}

// open takes n GPUs that host what of the pattern is still wanted, and what
// fits besides.
func (s *solver) open(d *draft, t pattern, n int, price []float64) (some bool) {
	k := t.gpu.Class
	for ; n > 0 && d.counts[k] != 0; n-- {
		left := s.unservedSingle(d.served)
		h := s.newHost(k, nil)
		s.addWanted(h, t.gpu.Items, left)
		s.fill(h, s.prices(k, price), left)
		if len(h.items) == 0 {
			return some
		}
		some = true
		s.addHost(d, h)
	}
	return some
}

// addWanted hosts what of the items is still wanted.
func (s *solver) addWanted(h *host, items []Item, left []float64) {
	for _, it := range items {
		if left[it.Func] <= 0 {
			continue
		}
		if !s.p.Tokens { // under tokens an item's turns are its own
			it = s.shrink(h.class, it, left[it.Func])
		}
		if h.hasMemory(it) {
			s.serve(h, it, left)
		}
	}
}

// addHost adds an open GPU to a draft.
func (s *solver) addHost(d *draft, h *host) {
	d.hosts = append(d.hosts, h)
	if d.counts[h.class] != Elastic {
		d.counts[h.class]--
	}
	d.serve(h.items, s.p)
}

// serve counts what items serve.
func (d *draft) serve(items []Item, p *Problem) {
	for _, it := range items {
		d.served[it.Func] += p.option(it).Rate
	}
}

// leftRounds bounds how often patterns are generated for what is left.
const leftRounds = 100

// solveLeft solves the program of what is left with patterns that serve no more
// of a function than is left of it.
func (s *solver) solveLeft(left []float64, counts []int, until int64) []use {
	m := s.master(left, counts, true)
	for range leftRounds {
		s.solve(m, rounds)
		if s.spent(until) {
			break
		}
		price, scarce := s.masterPrices(m)
		added := false
		for k := range counts {
			if counts[k] == 0 {
				continue
			}
			h := s.newHost(k, nil)
			s.fill(h, s.prices(k, price), slices.Clone(left))
			added = s.offer(m, s.pattern(GPU{k, AnyNode, h.items}), price, left, 1-scarce[k]+1e-6) || added
		}
		if !added {
			break
		}
	}
	return m.uses()
}
