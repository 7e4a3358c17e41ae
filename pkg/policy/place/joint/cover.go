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
// no less than the least set of whole instances that serves it.
func (s *solver) coverBound(rows []sized, areas [][]float64) float64 {
	type size struct {
		of    []float64
		total float64
	}
	var sizes []size
	add := func(of []float64) { sizes = append(sizes, size{of, s.leastSize(rows, of)}) }
	memories := s.memories(rows)
	for _, a := range areas {
		add(a)
		for _, m := range memories {
			for n := range mixes {
				add(mix(a, m, float64(n+1)/mixes))
			}
		}
	}
	s.work += int64(len(sizes) * len(rows))
	slices.SortStableFunc(sizes, func(a, b size) int { return cmp.Compare(b.total, a.total) })
	best := 0.0
	for _, z := range sizes[:min(covered, len(sizes))] {
		best = max(best, s.coverSize(rows, z.of))
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

// memories are the rows' memory as parts of the largest GPU's; none where
// memory is without limit.
func (s *solver) memories(rows []sized) [][]float64 {
	room := int64(0)
	for _, c := range s.p.Classes {
		if room = max(room, c.Room); c.Room == Unlimited {
			return nil
		}
	}
	if room <= 0 {
		return nil
	}
	return scales(rows, func(o Option) int64 { return min(One, int64(float64(o.Mem)/float64(room)*One)) }, memoryScale)
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
