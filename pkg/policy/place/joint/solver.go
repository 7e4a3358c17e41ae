package joint

import (
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/splitmix"
)

// solver is the state of planning one problem.
type solver struct {
	p       *Problem
	o       Options
	rng     splitmix.Source
	cutters []*cutter // by class
	relaxed []*relax
	bars    []*bars   // by class: nil where memory is not limited, or SM shares are too many
	mu      []float64 // by class: what a byte was last priced at
	wants   []float64 // by function: requests a second
	unit    []float64 // by function: most that a GPU of its alone serves
	least   float64   // of unit
	pool    []pattern
	seen    map[string]bool // patterns in pool
	heavy   float64         // how much memory counts in an instance's size, against area, 0 to 1
	balance int             // the way of counting memory that comes first when GPUs are filled
	gangs   int             // spanning instances so far
	work    int64           // done so far, the cutters' aside
	limit   int64           // of work, the cutters' too
	closing int64           // of it, in looking longer for patterns

	cutBuffer []Item
	picks     []pick
}

// Solve plans. It always gives a plan; what no GPU is there for, or no option
// serves, is left.
func Solve(p Problem, o Options) Solution {
	s := newSolver(&p, o)
	root, bound, method := s.bound()
	out := s.solution(s.plan(root.use, s.wanted(root.price), bound), root.price)
	out.Bound, out.Method = bound, method
	return out
}

// Bound is only the bound of Solve.
func Bound(p Problem, o Options) (gpus int, method string) {
	_, gpus, method = newSolver(&p, o).bound()
	return gpus, method
}

// bound solves the first program and proves what it can.
func (s *solver) bound() (root relaxation, gpus int, method string) {
	s.alone()
	root = s.generate(s.wants, s.counts())
	s.limit += s.done() // which bounds rounding and search
	gpus, method = whole(root.proven), boundLP
	if size, by := s.sizeBound(); whole(size) > gpus {
		gpus, method = whole(size), by
	}
	if n := s.widest(); n > gpus {
		gpus, method = n, boundSpan
	}
	return root, gpus, method
}

func newSolver(p *Problem, o Options) *solver {
	s := &solver{p: p, o: o, wants: demands(p), rng: splitmix.Source(o.Seed), mu: make([]float64, len(p.Classes)), seen: map[string]bool{}, limit: o.Work}
	if s.limit == 0 {
		s.limit = defaultWork
	}
	for k := range p.Classes {
		c := newCutter(p, k)
		s.cutters = append(s.cutters, c)
		r := newRelax(p, c)
		s.relaxed, s.bars = append(s.relaxed, r), append(s.bars, newBars(p, k, &r.tall))
	}
	return s
}

// alone finds what one GPU serves of each function alone.
func (s *solver) alone() {
	s.unit = make([]float64, len(s.p.Funcs))
	s.least = math.Inf(1)
	price := make([]float64, len(s.p.Funcs))
	for f := range s.p.Funcs {
		if len(s.p.Funcs[f].Options) == 0 {
			continue
		}
		price[f] = 1
		for k, class := range s.p.Classes {
			if class.Count == 0 {
				continue
			}
			found, _ := s.propose(k, price, s.wants, 0)
			for _, t := range found {
				if s.keep(t) {
					s.unit[f] = max(s.unit[f], t.rates[0])
				}
			}
		}
		price[f] = 0
		if s.unit[f] > 0 {
			s.least = min(s.least, s.unit[f])
		}
	}
}

func (s *solver) counts() []int {
	out := make([]int, len(s.p.Classes))
	for k, c := range s.p.Classes {
		out[k] = c.Count
	}
	return out
}

// demands are what the functions want, and so much more as whole instances
// serve at least: where there is one configuration, its multiples.
func demands(p *Problem) []float64 {
	d := make([]float64, len(p.Funcs))
	for f := range d {
		d[f] = p.Funcs[f].Demand
		if all := p.Funcs[f].Options; len(all) == 1 && all[0].Rate > 0 {
			whole := all[0].Rate * float64(max(1, p.Funcs[f].Span))
			d[f] = whole * max(1, math.Ceil(d[f]/whole*(1-none)))
		}
	}
	return d
}

// whole rounds a bound up, in doubt down.
func whole(gpus float64) int { return int(math.Ceil(gpus - 1e-6*max(1, gpus/1000))) }

// weights say what a request a second of each function is worth to the search:
// while GPUs are to be saved, what it costs of them; when there are too few, as
// much as any other.
func (s *solver) weights(price []float64, d *draft) []float64 {
	if sum(s.rest(d.served)) == 0 {
		return price
	}
	out := make([]float64, len(price))
	for f := range out {
		out[f] = 1 / s.least
	}
	return out
}

// wanted are prices at which everything is wanted: what the program gets for
// nothing costs a little.
func (s *solver) wanted(price []float64) []float64 {
	out := slices.Clone(price)
	for f := range out {
		if s.unit[f] > 0 {
			out[f] = max(out[f], little/s.unit[f])
		}
	}
	return out
}

// little is a part of what a function costs when it has GPUs of its own.
const little = 0.05

func (s *solver) solution(d *draft, price []float64) Solution {
	out := Solution{Groups: d.groups, Price: price}
	for _, h := range d.hosts {
		if len(h.items) > 0 {
			out.Groups = append(out.Groups, Group{GPU{h.class, h.node, h.items}, 1})
		}
	}
	out.Left = make([]float64, len(d.served))
	for f := range out.Left {
		out.Left[f] = s.p.Funcs[f].left(d.served[f])
	}
	out.Lacking = s.lacking(out)
	return out
}

// lacking finds for each function with something left an option that only
// memory keeps from a GPU.
func (s *solver) lacking(sol Solution) []int {
	out := make([]int, len(sol.Left))
	for f := range out {
		out[f] = -1
	}
	if sum(sol.Left) == 0 {
		return out
	}
	for _, g := range sol.Groups {
		h := s.host(g.GPU.Class, g.GPU.Items)
		for f, left := range sol.Left {
			for i, o := range s.p.Funcs[f].Options {
				if left > 0 && out[f] < 0 && o.On[h.class] && h.has(&Item{}, &o) {
					out[f] = i
				}
			}
		}
	}
	return out
}
