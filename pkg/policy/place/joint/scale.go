package joint

import (
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

// scaleWork is about how many divisions sizeBound takes for area.
const scaleWork = 500_000

// sizeBound is a number of GPUs that the demands take at least, whatever the
// configurations. Dual feasible functions of quotas and of SM shares give
// every instance a size such that those on one GPU never sum to more than 1
// (Fekete and Schepers 1998; Carlier, Clautiaux and Moukrim 2007); a function
// takes at least the least size that serves its demand. It is good where the
// linear program's is not: where no configuration has the whole window, where
// memory is short, and where functions want little.
func (s *solver) sizeBound() (gpus float64, method string) {
	var rows []sized
	for f := range s.p.Funcs {
		for _, o := range s.p.Funcs[f].Options {
			if s.unit[f] > 0 && s.wants[f] > 0 && slices.Contains(o.On, true) {
				rows = append(rows, sized{f, o})
			}
		}
	}
	if len(rows) == 0 {
		return 0, boundDFF
	}
	most := 2
	for most < 60 && (most+1)*(most+1)*len(rows) <= scaleWork {
		most++
	}
	across := scales(rows, func(o Option) int64 { return o.W }, most)
	up := scales(rows, func(o Option) int64 { return o.H }, most)
	if s.p.Tokens { // at each moment shares are sized, and time is summed
		across = across[:1]
	}
	plain, best, area := product(across[0], up[0]), []float64(nil), make([]float64, len(rows))
	for _, a := range across {
		for _, u := range up {
			for i := range area {
				area[i] = a[i] * u[i]
			}
			if total := s.leastSize(rows, area); total > gpus {
				gpus, best = total, slices.Clone(area)
			}
		}
	}
	s.work += int64(len(across) * most * len(rows))
	areas := [][]float64{plain}
	if best != nil && !slices.Equal(plain, best) {
		areas = append(areas, best)
	}
	if n := s.coverBound(rows, areas); whole(n) > whole(gpus) {
		return n, boundCover
	}
	return gpus, boundDFF
}

func product(a, b []float64) []float64 {
	out := make([]float64, len(a))
	for i := range out {
		out[i] = a[i] * b[i]
	}
	return out
}

// sized is an option of a function.
type sized struct {
	fn int
	o  Option
}

// scales are at most most functions of the rows' sides along an axis, the side
// itself first.
func scales(rows []sized, side func(Option) int64, most int) (out [][]float64) {
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
