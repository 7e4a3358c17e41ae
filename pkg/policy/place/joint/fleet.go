package joint

import (
	"cmp"
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/splitmix"
)

// fleet plans many functions for GPUs of one class at once: what does not look
// at one function beside another, and so takes time in proportion to them. An
// instance has a price by its shape and its memory, from a linear program over
// what shapes a GPU can host and how much memory all GPUs have (shapes.go);
// each function takes the whole instances that serve it for the least
// (cover.go), and what all take is packed by both resources (fill.go). At the
// program's prices the covers also bound the number of GPUs from below.
type fleet struct {
	s     *solver
	rows  []row     // options of functions that want anything, function by function
	from  []int     // where each function's begin, and the end
	shape []int     // by row: of the cutter
	mem   []float64 // by row: of a GPU's memory, as a part
	price []float64 // by shape, and of a GPU's memory: what a full GPU has sums to at most 1
	packs []packing // what is to be packed
	rng   splitmix.Source
	// hurried is whether planning is cut short when time is over. With few enough
	// functions it is not, so that the plan depends on no clock.
	hurried bool
}

const (
	// fewFuncs is up to how many functions a fleet is planned only where
	// another plan misses the bound. With more that plan may take all the time.
	fewFuncs = 40
	// manyFuncs is from how many functions on a plan is only a fleet's, unless
	// they share weights, which a fleet counts for each instance.
	manyFuncs = 250
	// unhurried is up to how many functions a fleet's plan is made whatever the
	// time: some seconds.
	unhurried = 4000
	// maxShapes is up to how many shapes there is a program of them.
	maxShapes = 200
)

// fleetOnly says whether a plan is only a fleet's.
func (s *solver) fleetOnly() bool {
	return s.hasFleet() && len(s.p.Funcs) > manyFuncs && len(s.p.Keepers) == 0
}

// hasFleet says whether GPUs and instances are of the kind that fleets are
// planned for: no GPUs of several classes, and no instances that span GPUs.
func (s *solver) hasFleet() bool {
	return len(s.p.Classes) == 1 && s.p.Classes[0].Count != 0 && s.p.Classes[0].Room > 0 && !s.spans()
}

// newFleet is nil where there is none.
func (s *solver) newFleet() *fleet {
	if !s.hasFleet() {
		return nil
	}
	f := &fleet{s: s, rng: splitmix.Source(s.o.Seed)}
	for _, r := range s.rows() {
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
		choices := s.classes[0].cutter.choices[r.fn]
		n := slices.IndexFunc(choices, func(c choice) bool { return c.opt == r.opt })
		f.shape = append(f.shape, choices[n].shape)
		f.mem = append(f.mem, f.part(f.memory(r)))
	}
	f.from = append(f.from, len(f.rows))
	f.hurried = len(f.from)-1 > unhurried
	return f
}

// expired says whether to cut planning short.
func (f *fleet) expired() bool { return f.hurried && f.s.expired() }

// memory is what an instance takes, as if no other of its model were there.
func (f *fleet) memory(r row) int64 {
	if m := f.s.p.Funcs[r.fn].Model; m != NoModel {
		return r.o.Mem + f.s.p.Keepers[m]
	}
	return r.o.Mem
}

// part is memory as a part of a GPU's.
func (f *fleet) part(bytes int64) float64 {
	if room := f.s.p.Classes[0].Room; room != Unlimited {
		return float64(bytes) / float64(room)
	}
	return 0
}

// fleetPlan is a plan of a fleet, GPUs that its demands take at least, and what
// a request a second of each function takes of a GPU at least.
type fleetPlan struct {
	*draft
	f     *fleet
	bound float64
	price []float64
}

// planFleet plans a fleet; it is nil where there is none, or where of few
// functions there are so many instances that it takes long. Where there are too
// few GPUs, those that serve the most requests a second are kept. What it does
// is not counted as work.
func (s *solver) planFleet() *fleetPlan {
	s.findSolo()
	f := s.newFleet()
	if f == nil {
		return nil
	}
	before := s.work
	defer func() { s.work = before }()
	f.solve()
	if !s.fleetOnly() && f.instances() > manyInstances {
		return nil
	}
	bound := f.bound()
	return &fleetPlan{f.draft(f.pack(roundUp(bound))), f, bound, f.requestPrices()}
}

// draft is a plan of so many GPUs, or those of which there are.
func (f *fleet) draft(best []GPU) *draft {
	s, d := f.s, f.s.draft()
	if n := d.counts[0]; n != Elastic && n < len(best) {
		slices.SortStableFunc(best, func(a, b GPU) int { return cmp.Compare(s.rate(b.Items), s.rate(a.Items)) })
		best = best[:n]
	}
	for _, g := range best {
		d.groups = append(d.groups, Group{g, 1})
		d.serve(g.Items, s.p)
	}
	if d.counts[0] != Elastic {
		d.counts[0] -= len(best)
	}
	return d
}

// rate is what items serve together, of any function.
func (s *solver) rate(items []Item) (sum float64) {
	for _, it := range items {
		sum += s.p.option(it).Rate
	}
	return sum
}

// size is what a row takes of a GPU, by the prices.
func (f *fleet) size() []float64 { return f.sizes(f.price, f.mem) }

func (f *fleet) sizes(price, mem []float64) []float64 {
	out, last := make([]float64, len(f.rows)), len(price)-1
	for i, k := range f.shape {
		out[i] = price[k] + price[last]*mem[i]
	}
	return out
}

// bound is a number of GPUs that the demands take at least: whole instances at
// the prices, of which a GPU hosts no more than 1. The weights of models are
// left out.
func (f *fleet) bound() float64 {
	mem := make([]float64, len(f.rows))
	for i, r := range f.rows {
		mem[i] = f.part(r.o.Mem)
	}
	return f.s.coverSize(f.rows, f.sizes(f.price, mem), fineParts)
}

// requestPrices are what a request a second of each function takes of a GPU at
// least.
func (f *fleet) requestPrices() []float64 {
	out := make([]float64, len(f.s.p.Funcs))
	size := f.size()
	for i, r := range f.rows {
		if v := size[i] / r.o.Rate; out[r.fn] == 0 || v < out[r.fn] {
			out[r.fn] = v
		}
	}
	return out
}

// packing is what all functions take, and prices to pack it by.
type packing struct {
	of    [][]chosen
	price []float64
}

// solve finds prices, and what to pack: what the program's solution chooses, and,
// where functions are few and their parts of several choices may not sum to
// what they should, single choices; by the prices of the best bound and by the
// program's own.
func (f *fleet) solve() {
	if len(f.s.classes[0].cutter.shapes) > maxShapes {
		f.startPrices()
		_, of := f.choose(f.price)
		f.packs = []packing{{of, f.price}}
		return
	}
	p := f.solveShapes()
	all := [][][]chosen{f.mixed(p)}
	if len(f.from) <= 2*sampled {
		all = append(all, p.most(singleChoices)...)
	}
	for _, of := range all {
		f.packs = append(f.packs, packing{of, f.price}, packing{of, p.prices()})
	}
}

// pack packs what is to be packed, and takes the fewest GPUs. It ends at the
// bound.
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

// instances counts those to be packed.
func (f *fleet) instances() (n int) {
	for _, c := range f.packs[0].of {
		for _, x := range c {
			n += x.count
		}
	}
	return n
}

// singleChoices is how many choices are packed alone.
const singleChoices = 3

// mixed gives each function what one of the choices has for it, such that
// together they take what their parts do, of each shape and of memory.
func (f *fleet) mixed(p *shapeProgram) [][]chosen {
	out := make([][]chosen, len(f.from)-1)
	off := make([]float64, len(f.price)) // taken so far, less what should be
	last := len(off) - 1
	add := func(times float64, of []chosen) {
		for _, x := range of {
			off[f.shape[x.row]] += times * float64(x.count)
			off[last] += times * float64(x.count) * f.mem[x.row]
		}
	}
	parts := p.parts()
	for i := range out {
		for _, q := range parts[i%groups] {
			add(-q.weight, p.choices[q.choice][i])
		}
		least := math.Inf(1)
		for _, q := range parts[i%groups] {
			of := p.choices[q.choice][i]
			add(1, of)
			sum := 0.0
			for k, v := range off {
				sum += f.price[k] * v * v
			}
			add(-1, of)
			if sum < least {
				least, out[i] = sum, of
			}
		}
		add(1, out[i])
	}
	return out
}
