package joint

import (
	"cmp"
	"slices"

	"github.com/gfaas/gfaas/pkg/splitmix"
)

// solver plans one problem.
type solver struct {
	*budget
	p           *Problem
	seed        uint64
	requirement *requirement
	pack        *packer
	columns     *generator
	sizer       *sizer
	spans       *spanner
	search      *search
}

func newSolver(p *Problem, o Options) *solver {
	b, t, rng := newBudget(o), newRequirement(p), splitmix.Source(o.Seed)
	pack := newPacker(p, b)
	return &solver{
		budget: b, p: p, seed: o.Seed, requirement: t, pack: pack, columns: newGenerator(t, pack, &rng),
		sizer: &sizer{b, p, t}, spans: &spanner{pack: pack, requirement: t}, search: &search{pack, &rng},
	}
}

// lowerBound returns the largest of the lower bounds, and its name.
func (s *solver) lowerBound(root relaxation) (gpus int, method string) {
	gpus, method = roundUp(root.proven), boundLP
	if size, by := s.sizer.sizeBound(); roundUp(size) > gpus {
		gpus, method = roundUp(size), by
	}
	if n := s.requirement.widestSpan(); n > gpus {
		gpus, method = n, boundSpan
	}
	return gpus, method
}

// plan builds a plan from the program's solution. It places spanning functions in gangs, with half
// of the remaining work. If that misses the bound, it also places them one by one and keeps the
// better plan. If there are too few GPUs, it also tries plans by rank (rank.go).
func (s *solver) plan(uses []use, price []float64, bound int, until int64) *draft {
	d := newDraft(s.requirement)
	if !s.p.spans() {
		s.finish(d, uses, price, bound, until)
		return d
	}
	d = s.planSpans(d, uses, price, bound, until)
	if sum(d.unserved()) == 0 {
		return d
	}
	return s.ranked(d, bound)
}

// planSpans places spanning functions first, in gangs or one by one.
func (s *solver) planSpans(d *draft, uses []use, price []float64, bound int, until int64) *draft {
	half := s.work + max(0, until-s.work)/2
	s.spans.placeGangs(d, uses, price)
	s.finish(d, uses, price, bound, half)
	if sum(d.unserved()) == 0 && d.gpus() <= bound {
		return d
	}
	other, before := newDraft(s.requirement), s.work
	if !s.spans.placeSingly(other, uses, price, until) {
		return d
	}
	until += s.work - before // placing does not reduce the work of the search
	s.finish(other, uses, price, bound, until)
	if other.betterThan(d) {
		return other
	}
	return d
}

// round turns the program's solution into whole GPUs. It decides patterns that are used at least
// once, and dives for the rest. Spanning functions must have been placed.
func (s *solver) round(d *draft, uses []use, price []float64, until int64) {
	for _, u := range uses {
		if n := wholeUses(u); n > 0 && s.p.gangSize(u.pattern.gpu.Items) == 1 {
			d.decide(u.pattern, n)
		}
	}
	s.dive(d, price, until)
}

// wholeUses rounds a use down, except for rounding errors.
func wholeUses(u use) int { return int(u.count + 1e-6) }

// diveSteps is about the number of programs that a dive solves.
const diveSteps = 12

// dive serves the remaining demand. It repeatedly solves the program of the rest and opens GPUs
// for the patterns that it uses most. Once the time has expired, it only fills one GPU after the
// other.
func (s *solver) dive(d *draft, price []float64, until int64) {
	for {
		remaining := d.unservedSingle()
		if sum(remaining) == 0 || !slices.ContainsFunc(d.counts, func(n int) bool { return n != 0 }) {
			return
		}
		var uses []use
		if !s.expired() {
			uses = s.columns.solveRemaining(remaining, d.counts, until)
		}
		slices.SortStableFunc(uses, func(a, b use) int { return cmp.Compare(b.count, a.count) })
		gpus := 0.0
		for _, u := range uses {
			gpus += u.count
		}
		opened := false
		for i, u := range uses {
			if n := wholeUses(u); n >= 1 || i <= int(gpus/diveSteps) {
				opened = s.open(d, u.pattern, max(1, n), price) || opened
			}
		}
		for k := 0; k < len(d.counts) && !opened; k++ {
			opened = s.open(d, pattern{gpu: GPU{Class: k}}, 1, price)
		}
		if !opened {
			return
		}
	}
}

// open opens n GPUs that host the wanted items of a pattern, and fills them up. It reports whether
// any of them hosts an item.
func (s *solver) open(d *draft, t pattern, n int, price []float64) (opened bool) {
	k := t.gpu.Class
	for ; n > 0 && d.counts[k] != 0; n-- {
		remaining := d.unservedSingle()
		h := s.pack.newHost(k, nil)
		s.addNeeded(h, t.gpu.Items, remaining)
		s.pack.fill(h, s.pack.prices(k, price), remaining)
		if len(h.items) == 0 {
			return opened
		}
		opened = true
		d.addHost(h)
	}
	return opened
}

// addNeeded hosts the items whose functions have remaining demand.
func (s *solver) addNeeded(h *host, items []Item, remaining []float64) {
	for _, it := range items {
		if remaining[it.Func] <= 0 {
			continue
		}
		if !s.p.Tokens { // under tokens, an item's turns must stay the same
			it = s.p.shrink(h.class, it, remaining[it.Func])
		}
		if h.hasMemory(it) {
			s.pack.serve(h, it, remaining)
		}
	}
}

// leftRounds limits the rounds of pattern generation for the remaining demand.
const leftRounds = 100

// solveRemaining solves the program of the remaining demand, with patterns that count for at most
// that demand.
func (g *generator) solveRemaining(remaining []float64, counts []int, until int64) []use {
	m := g.newMaster(remaining, counts, true)
	for range leftRounds {
		m.solve(rounds)
		if g.pack.spent(until) {
			break
		}
		price, scarce := m.prices()
		added := false
		for k := range counts {
			if counts[k] == 0 {
				continue
			}
			h := g.pack.newHost(k, nil)
			g.pack.fill(h, g.pack.prices(k, price), slices.Clone(remaining))
			added = m.offer(g.pack.p.pattern(k, h.items), price, remaining, 1-scarce[k]+1e-6) || added
		}
		if !added {
			break
		}
	}
	return m.uses()
}

// finish serves the functions that span one GPU, and runs the search.
func (s *solver) finish(d *draft, uses []use, price []float64, bound int, until int64) {
	s.round(d, uses, price, until)
	s.search.run(d, d.weights(price), bound, until)
}
