package joint

import (
	"cmp"
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/splitmix"
)

// fleet plans many functions for GPUs of one class. It plans each function separately, so that
// the time grows linearly with their number:
//
//  1. A linear program over the shapes that a GPU can host and the memory of all GPUs gives
//     prices for shapes and memory (shapes.go).
//  2. Each function gets whole instances that serve it at about the least price (cover.go).
//     At the program's prices, these covers also bound the number of GPUs from below.
//  3. All instances are packed by area and memory together (fill.go).
type fleet struct {
	p           *Problem
	budget      *budget
	requirement *requirement
	sizer       *sizer
	class       *class
	rows        []row     // options of functions with a demand, function by function
	from        []int     // by function: its first row; then the number of rows
	shape       []int     // by row: its shape, of the cutter
	mem         []float64 // by row: memory as a fraction of a GPU's
	price       []float64 // by shape, and last of a GPU's whole memory: no GPU can host more than 1
	packs       []packing // candidates for pack
	best        *draft    // the plan
	lower       float64   // lower bound of the number of GPUs
	rng         splitmix.Source
	// hurried makes planning stop early when the time has expired. It is false at first for up
	// to unhurried functions, so that their plan does not depend on a clock.
	hurried bool
}

const (
	// fewFuncs is the largest number of functions for which a fleet is planned only if the
	// other plan misses the bound. With more functions, the other plan may use up the time.
	fewFuncs = 40
	// manyFuncs is the number of functions beyond which only a fleet is planned, unless
	// functions share weights, which a fleet counts once for each instance.
	manyFuncs = 250
	// unhurried is the largest number of functions for which a fleet ignores the time limit.
	// Its plan takes some seconds.
	unhurried = 4000
	// maxShapes is the largest number of shapes for which the linear program is solved.
	maxShapes = 200
)

// newFleet returns a fleet without prices or a plan. It returns nil if the problem has none
// (Problem.hasFleet), or if no option can serve any demand.
func (s *solver) newFleet() *fleet {
	if !s.p.hasFleet() {
		return nil
	}
	f := &fleet{p: s.p, budget: s.budget, requirement: s.requirement, sizer: s.sizer, class: &s.pack.classes[0], rng: splitmix.Source(s.seed)}
	for _, r := range s.requirement.rows() {
		if r.o.Rate > 0 && f.memory(r) <= s.p.Classes[0].Room {
			f.rows = append(f.rows, r)
		}
	}
	if len(f.rows) == 0 {
		return nil
	}
	for i, r := range f.rows {
		if i == 0 || r.fn != f.rows[i-1].fn {
			f.from = append(f.from, i)
		}
		choices := f.class.cutter.choices[r.fn]
		n := slices.IndexFunc(choices, func(c choice) bool { return c.opt == r.opt })
		f.shape = append(f.shape, choices[n].shape)
		f.mem = append(f.mem, f.memoryFraction(f.memory(r)))
	}
	f.from = append(f.from, len(f.rows))
	f.hurried = len(f.from)-1 > unhurried
	return f
}

// expired reports whether planning must stop early.
func (f *fleet) expired() bool { return f.hurried && f.budget.expired() }

// memory returns the memory of an instance, including its model's weights.
func (f *fleet) memory(r row) int64 {
	if m := f.p.Funcs[r.fn].Model; m != NoModel {
		return r.o.Mem + f.p.Keepers[m]
	}
	return r.o.Mem
}

// memoryFraction returns bytes as a fraction of a GPU's memory, or 0 if memory is unlimited.
func (f *fleet) memoryFraction(bytes int64) float64 {
	if room := f.p.Classes[0].Room; room != Unlimited {
		return float64(bytes) / float64(room)
	}
	return 0
}

// planFleet plans a fleet. It returns nil if there is none, or if few functions have so many
// instances that packing them takes long. If there are too few GPUs, it keeps the GPUs that serve
// the most requests per second. Its steps do not count as work.
func (s *solver) planFleet() *fleet {
	f := s.newFleet()
	if f == nil {
		return nil
	}
	before := s.work
	defer func() { s.work = before }()
	f.solve()
	if !s.p.fleetOnly() && f.instances() > manyInstances {
		return nil
	}
	f.lower = f.bound()
	f.best = f.draft(f.pack(roundUp(f.lower)))
	return f
}

// draft returns a plan of the given GPUs, or of the best of them if the class has fewer.
func (f *fleet) draft(best []GPU) *draft {
	d := newDraft(f.requirement)
	if n := d.counts[0]; n != Elastic && n < len(best) {
		slices.SortStableFunc(best, func(a, b GPU) int { return cmp.Compare(f.p.rate(b.Items), f.p.rate(a.Items)) })
		best = best[:n]
	}
	for _, g := range best {
		d.groups = append(d.groups, Group{g, 1})
		d.serve(g.Items)
	}
	if d.counts[0] != Elastic {
		d.counts[0] -= len(best)
	}
	return d
}

// sizes returns the size of each row, as a fraction of a GPU, at the given prices. mem is the memory of
// each row, as a fraction of a GPU's.
func (f *fleet) sizes(price, mem []float64) []float64 {
	out, last := make([]float64, len(f.rows)), len(price)-1
	for i, k := range f.shape {
		out[i] = price[k] + price[last]*mem[i]
	}
	return out
}

// bound returns a lower bound on the number of GPUs: the least price of whole instances that
// serve all demands. It ignores the weights of models.
func (f *fleet) bound() float64 {
	mem := make([]float64, len(f.rows))
	for i, r := range f.rows {
		mem[i] = f.memoryFraction(r.o.Mem)
	}
	return f.sizer.coverSize(f.rows, f.sizes(f.price, mem), fineParts)
}

// requestPrices returns the least size of one request per second of each function.
func (f *fleet) requestPrices() []float64 {
	out := make([]float64, len(f.p.Funcs))
	size := f.sizes(f.price, f.mem)
	for i, r := range f.rows {
		if v := size[i] / r.o.Rate; out[r.fn] == 0 || v < out[r.fn] {
			out[r.fn] = v
		}
	}
	return out
}

// packing holds the instances of all functions and the prices for packing them.
type packing struct {
	of    [][]chosen
	price []float64
}

// solve sets the fleet's prices and the candidates for packing. These are the mixed solution of
// the program and, for few functions, also single choices, because then the parts of several
// choices may not add up well. Each is packed twice: at the prices of the best bound and at the
// program's prices.
func (f *fleet) solve() {
	if len(f.class.cutter.shapes) > maxShapes {
		f.startPrices()
		_, of := f.choose(f.price)
		f.packs = []packing{{of, f.price}}
		return
	}
	p := f.solveShapes()
	candidates := [][][]chosen{f.mixed(p)}
	if len(f.from) <= 2*sampleSize {
		candidates = append(candidates, p.heaviestChoices(singleChoices)...)
	}
	for _, of := range candidates {
		f.packs = append(f.packs, packing{of, f.price}, packing{of, p.prices()})
	}
}

// pack packs each candidate and returns the packing with the fewest GPUs. It stops when it
// reaches the bound.
func (f *fleet) pack(bound int) (best []GPU) {
	for _, p := range f.packs {
		if best != nil && (len(best) <= bound || f.expired()) {
			break
		}
		if gpus := f.fill(p.of, p.price); best == nil || len(gpus) < len(best) {
			best = gpus
		}
	}
	return best
}

// instances returns the number of instances of the first candidate.
func (f *fleet) instances() (n int) {
	for _, x := range slices.Concat(f.packs[0].of...) {
		n += x.count
	}
	return n
}

// singleChoices is the number of choices that are also packed alone.
const singleChoices = 3

// mixed selects for each function the instances of one choice, such that together they use about
// the area of each shape and the memory that the program's fractional solution uses.
func (f *fleet) mixed(p *shapeProgram) [][]chosen {
	out := make([][]chosen, len(f.from)-1)
	off := make([]float64, len(f.price)) // by shape, and memory: amount used so far minus the desired amount
	last := len(off) - 1
	add := func(times float64, of []chosen) {
		for _, x := range of {
			off[f.shape[x.row]] += times * float64(x.count)
			off[last] += times * float64(x.count) * f.mem[x.row]
		}
	}
	parts := p.weightedChoices()
	for i := range out {
		for _, q := range parts[i%groups] {
			add(-q.weight, p.choices[q.choice][i])
		}
		lowest := math.Inf(1)
		for _, q := range parts[i%groups] {
			of := p.choices[q.choice][i]
			add(1, of)
			sum := 0.0
			for k, v := range off {
				sum += f.price[k] * v * v
			}
			add(-1, of)
			if sum < lowest {
				lowest, out[i] = sum, of
			}
		}
		add(1, out[i])
	}
	return out
}
