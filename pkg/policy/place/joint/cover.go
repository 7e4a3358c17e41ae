package joint

import (
	"cmp"
	"math"
	"slices"
)

const (
	mixes       = 9  // of area and memory
	memoryScale = 12 // scales of memory
	coverParts  = 64 // of what a function wants, to which rates are rounded up
	covered     = 24 // sizes with which whole instances are looked at
)

// coverBound is a number of GPUs that the demands take at least. A size is a
// mix of area and memory, either as it is or as dual feasible functions have
// it, such that what is on one GPU never sums to more than 1. A function takes
// no less than the least set of whole instances that serves it; a model that is
// hosted at all has its weights on a GPU.
func (s *solver) coverBound(rows []sized, areas [][]float64) float64 {
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
		for _, m := range s.memories(rows) {
			for n := range mixes {
				heavy := float64(n+1) / mixes
				add(mix(a, m.of, heavy), heavy*m.weights)
			}
		}
	}
	s.work += int64(len(sizes) * len(rows))
	slices.SortStableFunc(sizes, func(a, b size) int { return cmp.Compare(b.total, a.total) })
	best := 0.0
	for _, z := range sizes[:min(covered, len(sizes))] {
		best = max(best, s.coverSize(rows, z.of)+z.weights)
	}
	return best
}

func mix(area, memory []float64, heavy float64) []float64 {
	out := make([]float64, len(area))
	for i := range out {
		out[i] = (1-heavy)*area[i] + heavy*memory[i]
	}
	return out
}

// memory is the rows' sizes by memory, and what the weights of all models take.
type memory struct {
	of      []float64
	weights float64
}

// memories are the rows' memory as parts of the largest GPU's, as it is first;
// none where memory is without limit.
func (s *solver) memories(rows []sized) (out []memory) {
	room := int64(0)
	for _, c := range s.p.Classes {
		if room = max(room, c.Room); c.Room == Unlimited {
			return nil
		}
	}
	if room <= 0 {
		return nil
	}
	part := func(bytes int64) int64 { return min(One, int64(float64(bytes)/float64(room)*One)) }
	for _, of := range scales(rows, func(o Option) int64 { return part(o.Mem) }, memoryScale) {
		out = append(out, memory{of: of})
	}
	hosted := make([]bool, len(s.p.Keepers))
	for _, r := range rows {
		if m := s.p.Funcs[r.fn].Model; m != NoModel && !hosted[m] {
			hosted[m] = true
			out[0].weights += float64(part(s.p.Keepers[m])) / One
		}
	}
	return out
}

// leastSize sums over the functions the least size that serves each, in parts
// of instances but for the first.
func (s *solver) leastSize(rows []sized, size []float64) float64 {
	total := 0.0
	for i := 0; i < len(rows); {
		f := rows[i].fn
		one, rate := math.Inf(1), math.Inf(1)
		for ; i < len(rows) && rows[i].fn == f; i++ {
			one, rate = min(one, size[i]), min(rate, size[i]/rows[i].o.Rate)
		}
		total += max(one*float64(s.span(f)), rate*s.wants[f])
	}
	return total
}

// coverSize sums over the functions the least size of whole instances that
// serve each.
func (s *solver) coverSize(rows []sized, size []float64) float64 {
	total := 0.0
	for i := 0; i < len(rows); {
		from, f := i, rows[i].fn
		for ; i < len(rows) && rows[i].fn == f; i++ {
			continue
		}
		least := s.cover(rows[from:i], size[from:i], f)
		total += max(least, s.leastSize(rows[from:i], size[from:i]))
	}
	return total
}

// cover is the least size of whole instances that serve a function. Rates are
// rounded up to parts of what it wants, so for much more than a part it is no
// better than leastSize.
func (s *solver) cover(rows []sized, size []float64, f int) float64 {
	var cheapest [coverParts + 1]float64 // by parts that one instance serves
	for k := range cheapest {
		cheapest[k] = math.Inf(1)
	}
	span := float64(s.span(f))
	for i, r := range rows {
		k := int(min(coverParts, math.Ceil(r.o.Rate*span/s.wants[f]*coverParts*(1+none))))
		cheapest[k] = min(cheapest[k], size[i]*span)
	}
	var useful []int // where less costs less
	for k, below := coverParts, math.Inf(1); k > 0; k-- {
		if cheapest[k] < below {
			useful, below = append(useful, k), cheapest[k]
		}
	}
	s.work += int64(len(rows) + coverParts*len(useful))
	var least [coverParts + 1]float64 // by parts served
	for k := 1; k <= coverParts; k++ {
		least[k] = math.Inf(1)
		for _, n := range useful {
			least[k] = min(least[k], cheapest[n]+least[max(0, k-n)])
		}
	}
	return least[coverParts]
}
