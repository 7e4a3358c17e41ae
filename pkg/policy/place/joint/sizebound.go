package joint

import (
	"cmp"
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/place/dff"
)

// Names of the bounds, for a plan's bound_method.
const (
	boundLP  = "joint-lp"
	boundDFF = "dff"
	// boundCover is the least area and memory of whole instances.
	boundCover = "cover"
	// boundSpan is the largest span: an instance needs that number of GPUs.
	boundSpan = "span"
)

const (
	scaleWork    = 10_000_000 // about the number of divisions in sizer.areas
	memoryScales = 12         // functions of memory
	mixes        = 9          // mixes of area and memory
	coverParts   = 64         // parts of a demand to which rates are rounded up
	fineParts    = 512        // the same if there are few sizes
	coverSizes   = 24         // sizes for which covers are computed
)

// sizer computes lower bounds on the number of GPUs from sizes of instances.
type sizer struct {
	*budget
	p           *Problem
	requirement *requirement
}

// sizeBound returns a lower bound on the number of GPUs, and its name. Dual feasible functions of
// quotas and of SM shares give every instance a size such that the sizes on one GPU never sum to
// more than 1 (package dff). A function needs at least the least size that serves its demand. This
// bound is better than that of the linear program if no configuration has the whole window, if
// memory is short, or if demands are small.
func (s *sizer) sizeBound() (gpus float64, method string) {
	rows := s.requirement.rows()
	if len(rows) == 0 {
		return 0, boundDFF
	}
	areas, gpus := s.areas(rows)
	if n := s.coverBound(rows, areas); roundUp(n) > roundUp(gpus) {
		return n, boundCover
	}
	return gpus, boundDFF
}

// areas returns the areas of the rows: first the plain areas and, last, the areas by the dual
// feasible functions that give the largest bound. It also returns that bound.
func (s *sizer) areas(rows []row) (areas [][]float64, gpus float64) {
	limit := 2
	for limit < 60 && (limit+1)*(limit+1)*len(rows) <= scaleWork {
		limit++
	}
	across := scales(rows, func(o Option) int64 { return o.W }, limit)
	up := scales(rows, func(o Option) int64 { return o.H }, limit)
	if s.p.Tokens { // shares bound each moment, but turns may be split, so quotas stay plain
		across = across[:1]
	}
	plain, area, best := make([]float64, len(rows)), make([]float64, len(rows)), []float64(nil)
	multiply(plain, across[0], up[0])
	for _, a := range across {
		for _, u := range up {
			multiply(area, a, u)
			if total := s.leastSize(rows, area); total > gpus {
				gpus, best = total, slices.Clone(area)
			}
		}
	}
	areas = [][]float64{plain}
	if best != nil && !slices.Equal(plain, best) {
		areas = append(areas, best)
	}
	return areas, gpus
}

func multiply(out, a, b []float64) {
	for i := range out {
		out[i] = a[i] * b[i]
	}
}

// scales returns functions of the rows' sides along an axis, the side itself first, and about
// limit in total.
func scales(rows []row, side func(Option) int64, limit int) (out [][]float64) {
	var ks []int64
	add := func(f func(int64) int64, whole int64) {
		v := make([]float64, len(rows))
		for i, r := range rows {
			v[i] = float64(f(side(r.o))) / float64(whole)
		}
		if !slices.ContainsFunc(out, func(o []float64) bool { return slices.Equal(o, v) }) {
			out = append(out, v)
		}
	}
	add(func(x int64) int64 { return x }, One)
	for _, r := range rows {
		x := side(r.o)
		for _, k := range dff.Thresholds(x, One) {
			if k >= 1 && k <= One/2 {
				ks = append(ks, k)
			}
		}
	}
	slices.Sort(ks)
	ks = slices.Compact(ks)
	n := min(len(ks), limit/2)
	for i := range n {
		k := ks[(2*i+1)*len(ks)/(2*n)]
		add(dff.DropSmall(One, k))
		add(dff.Rounded(One, k))
	}
	return out
}

// coverBound returns a lower bound on the number of GPUs. It mixes area and memory, each plain or
// by dual feasible functions, to sizes that never sum to more than 1 on one GPU. A function needs
// at least the least set of whole instances that serves it. Each model has its weights on at least
// one GPU.
func (s *sizer) coverBound(rows []row, areas [][]float64) float64 {
	type size struct {
		of             []float64
		weights, total float64
	}
	var sizes []size
	add := func(of []float64, weights float64) {
		sizes = append(sizes, size{of, weights, s.leastSize(rows, of) + weights})
	}
	for _, a := range areas {
		add(a, 0)
		for _, m := range s.memorySizes(rows) {
			for n := range mixes {
				weight := float64(n+1) / mixes
				add(mix(a, m.of, weight), weight*m.weights)
			}
		}
	}
	s.work += int64(len(sizes) * len(rows))
	slices.SortStableFunc(sizes, func(a, b size) int { return cmp.Compare(b.total, a.total) })
	best := 0.0
	for _, z := range sizes[:min(coverSizes, len(sizes))] {
		best = max(best, s.coverSize(rows, z.of, coverParts)+z.weights)
	}
	return best
}

// mix returns sizes in which memory has the given weight and area the rest.
func mix(area, memory []float64, weight float64) []float64 {
	out := make([]float64, len(area))
	for i := range out {
		out[i] = (1-weight)*area[i] + weight*memory[i]
	}
	return out
}

// memorySize holds the rows' sizes by memory, and the total size of the weights of all models.
type memorySize struct {
	of      []float64
	weights float64
}

// memorySizes returns the rows' memory as fractions of the largest GPU's, first plain and then by
// dual feasible functions. It returns nil if memory is unlimited.
func (s *sizer) memorySizes(rows []row) (out []memorySize) {
	room := int64(0)
	for _, c := range s.p.Classes {
		if room = max(room, c.Room); c.Room == Unlimited {
			return nil
		}
	}
	if room <= 0 {
		return nil
	}
	share := func(bytes int64) int64 { return min(One, int64(float64(bytes)/float64(room)*One)) }
	for _, of := range scales(rows, func(o Option) int64 { return share(o.Mem) }, memoryScales) {
		out = append(out, memorySize{of: of})
	}
	hosted := make([]bool, len(s.p.Keepers))
	for _, r := range rows {
		if m := s.p.Funcs[r.fn].Model; m != NoModel && !hosted[m] {
			hosted[m] = true
			out[0].weights += float64(share(s.p.Keepers[m])) / One
		}
	}
	return out
}

// leastSize returns the sum over the functions of the least size that serves each. A function has
// at least one instance; beyond that, instances may be fractional.
func (s *sizer) leastSize(rows []row, size []float64) float64 {
	total := 0.0
	for i := 0; i < len(rows); {
		f := rows[i].fn
		perInstance, rate := math.Inf(1), math.Inf(1)
		for ; i < len(rows) && rows[i].fn == f; i++ {
			perInstance, rate = min(perInstance, size[i]), min(rate, size[i]/rows[i].o.Rate)
		}
		total += max(perInstance*float64(s.p.span(f)), rate*s.requirement.demand[f])
	}
	return total
}

// coverSize returns the sum over the functions of the least size of whole instances that serve
// each. It rounds rates up to parts of the demand.
func (s *sizer) coverSize(rows []row, size []float64, parts int) float64 {
	total := 0.0
	for i := 0; i < len(rows); {
		from, f := i, rows[i].fn
		for ; i < len(rows) && rows[i].fn == f; i++ {
			continue
		}
		smallest := s.cover(rows[from:i], size[from:i], f, parts)
		total += max(smallest, s.leastSize(rows[from:i], size[from:i]))
	}
	return total
}

// cover returns the least size of whole instances that serve a function. It rounds rates up to
// parts of the demand, so if instances serve less than a part, it is no better than leastSize.
func (s *sizer) cover(rows []row, size []float64, f, parts int) float64 {
	c, span := newPartCover(parts), float64(s.p.span(f))
	for i, r := range rows {
		c.offer(math.Ceil(r.o.Rate*span/s.requirement.demand[f]*float64(parts)*(1+tolerance)), size[i]*span, i)
	}
	s.work += int64(len(rows)) + c.solve()
	return c.bestSize[parts]
}
