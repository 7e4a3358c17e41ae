package joint

import (
	"cmp"
	"math"
	"slices"
)

// Names of the bounds, for a plan's bound_method.
const (
	boundLP  = "joint-lp"
	boundDFF = "dff"
	// boundCover is what whole instances take of area and memory together.
	boundCover = "cover"
	// boundSpan is the largest span: an instance is on so many GPUs.
	boundSpan = "span"
)

const (
	scaleWork    = 10_000_000 // about how many divisions sizeBound takes for area
	memoryScales = 12         // scales of memory
	mixes        = 9          // of area and memory
	coverParts   = 64         // of what a function wants, to which rates are rounded up
	fineParts    = 512        // the same where few sizes are looked at
	coverSizes   = 24         // sizes with which whole instances are looked at
)

// sizeBound is a number of GPUs that the demands take at least, whatever the
// configurations. Dual feasible functions of quotas and of SM shares give
// every instance a size such that those on one GPU never sum to more than 1
// (Fekete and Schepers 1998, New classes of fast lower bounds for bin packing
// problems; Carlier, Clautiaux and Moukrim 2007, New reduction procedures and
// lower bounds for the two-dimensional bin packing problem with fixed
// orientation); a function takes at least the least size that serves its
// demand. It is good where the linear program's is not: where no configuration
// has the whole window, where memory is short, and where functions want little.
func (s *solver) sizeBound() (gpus float64, method string) {
	rows := s.rows()
	if len(rows) == 0 {
		return 0, boundDFF
	}
	areas, gpus := s.areas(rows)
	if n := s.coverBound(rows, areas); roundUp(n) > roundUp(gpus) {
		return n, boundCover
	}
	return gpus, boundDFF
}

// rows are the options that may serve what is wanted, function by function.
func (s *solver) rows() (rows []row) {
	for f := range s.p.Funcs {
		for i, o := range s.p.Funcs[f].Options {
			if s.solo[f] > 0 && s.demand[f] > 0 && slices.Contains(o.On, true) {
				rows = append(rows, row{f, i, o})
			}
		}
	}
	return rows
}

// areas are the rows' areas, as they are and, last, as those dual feasible
// functions have them that give the most, and how many GPUs these take at
// least.
func (s *solver) areas(rows []row) (areas [][]float64, gpus float64) {
	most := 2
	for most < 60 && (most+1)*(most+1)*len(rows) <= scaleWork {
		most++
	}
	across := scales(rows, func(o Option) int64 { return o.W }, most)
	up := scales(rows, func(o Option) int64 { return o.H }, most)
	if s.p.Tokens { // at each moment shares are sized, and time is summed
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

// row is an option of a function.
type row struct {
	fn, opt int
	o       Option
}

// scales are at most most functions of the rows' sides along an axis, the side
// itself first.
func scales(rows []row, side func(Option) int64, most int) (out [][]float64) {
	var ks []int64
	add := func(f func(int64) float64) {
		v := make([]float64, len(rows))
		for i, r := range rows {
			v[i] = f(side(r.o))
		}
		if !slices.ContainsFunc(out, func(o []float64) bool { return slices.Equal(o, v) }) {
			out = append(out, v)
		}
	}
	add(func(x int64) float64 { return float64(x) / One })
	for _, r := range rows {
		x := side(r.o)
		for _, k := range []int64{x, One - x, One - x + 1, x / 2, x / 3} {
			if k >= 1 && k <= One/2 {
				ks = append(ks, k)
			}
		}
	}
	slices.Sort(ks)
	ks = slices.Compact(ks)
	n := min(len(ks), most/2)
	for i := range n {
		k := ks[(2*i+1)*len(ks)/(2*n)]
		add(func(x int64) float64 { return dropSmall(x, k) })
		add(func(x int64) float64 { return rounded(x, k) })
	}
	return out
}

// dropSmall forgets sides below k, and lets nothing lie beside what leaves less
// than k (U of Fekete and Schepers).
func dropSmall(x, k int64) float64 {
	switch {
	case x > One-k:
		return 1
	case x < k:
		return 0
	}
	return float64(x) / One
}

// rounded counts how often k fits, in favour of sides above the half (f2 of
// Carlier and others).
func rounded(x, k int64) float64 {
	whole := One / k
	switch {
	case 2*x > One:
		return float64(whole-(One-x)/k) / float64(whole)
	case 2*x == One:
		return 0.5
	}
	return float64(x/k) / float64(whole)
}

// coverBound is a number of GPUs that the demands take at least. A size is a
// mix of area and memory, either as it is or as dual feasible functions have
// it, such that what is on one GPU never sums to more than 1. A function takes
// no less than the least set of whole instances that serves it; a model that is
// hosted at all has its weights on a GPU.
func (s *solver) coverBound(rows []row, areas [][]float64) float64 {
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
				part := float64(n+1) / mixes
				add(mix(a, m.of, part), part*m.weights)
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

// mix is sizes of which memory counts for a part and area for the rest.
func mix(area, memory []float64, part float64) []float64 {
	out := make([]float64, len(area))
	for i := range out {
		out[i] = (1-part)*area[i] + part*memory[i]
	}
	return out
}

// memorySize is the rows' sizes by memory, and what the weights of all models
// take.
type memorySize struct {
	of      []float64
	weights float64
}

// memorySizes are the rows' memory as parts of the largest GPU's, as it is
// first; none where memory is without limit.
func (s *solver) memorySizes(rows []row) (out []memorySize) {
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

// leastSize sums over the functions the least size that serves each, in parts
// of instances but for the first.
func (s *solver) leastSize(rows []row, size []float64) float64 {
	total := 0.0
	for i := 0; i < len(rows); {
		f := rows[i].fn
		one, rate := math.Inf(1), math.Inf(1)
		for ; i < len(rows) && rows[i].fn == f; i++ {
			one, rate = min(one, size[i]), min(rate, size[i]/rows[i].o.Rate)
		}
		total += max(one*float64(s.span(f)), rate*s.demand[f])
	}
	return total
}

// coverSize sums over the functions the least size of whole instances that
// serve each, rates rounded up to parts of what it wants.
func (s *solver) coverSize(rows []row, size []float64, parts int) float64 {
	total := 0.0
	for i := 0; i < len(rows); {
		from, f := i, rows[i].fn
		for ; i < len(rows) && rows[i].fn == f; i++ {
			continue
		}
		least := s.cover(rows[from:i], size[from:i], f, parts)
		total += max(least, s.leastSize(rows[from:i], size[from:i]))
	}
	return total
}

// cover is the least size of whole instances that serve a function. Rates are
// rounded up to parts of what it wants, so for much more than a part it is no
// better than leastSize.
func (s *solver) cover(rows []row, size []float64, f, parts int) float64 {
	cheapest := make([]float64, parts+1) // by parts that one instance serves
	for k := range cheapest {
		cheapest[k] = math.Inf(1)
	}
	span := float64(s.span(f))
	for i, r := range rows {
		k := int(min(float64(parts), math.Ceil(r.o.Rate*span/s.demand[f]*float64(parts)*(1+tolerance))))
		cheapest[k] = min(cheapest[k], size[i]*span)
	}
	var useful []int // where less costs less
	for k, below := parts, math.Inf(1); k > 0; k-- {
		if cheapest[k] < below {
			useful, below = append(useful, k), cheapest[k]
		}
	}
	s.work += int64(len(rows) + parts*len(useful))
	least := make([]float64, parts+1) // by parts served
	for k := 1; k <= parts; k++ {
		least[k] = math.Inf(1)
		for _, n := range useful {
			least[k] = min(least[k], cheapest[n]+least[max(0, k-n)])
		}
	}
	return least[parts]
}
