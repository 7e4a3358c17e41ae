package joint

import (
	"cmp"
	"math"
	"slices"
)

// chosen is a number of instances of one option, given by its row of the fleet.
type chosen struct{ row, count int }

const (
	// planParts is the number of parts of a demand to which leastCover rounds rates down.
	planParts = 512
	// spareBest is the number of instances of the best option that cover leaves to the dynamic
	// program. All instances beyond it use the best option.
	spareBest = 4
)

// covers returns whole instances that serve each function at about the least total size. Sizes
// are by row; functions are in the order of the rows.
func (f *fleet) covers(size []float64) [][]chosen {
	out := make([][]chosen, len(f.from)-1)
	for i := range out {
		out[i] = f.cover(size, f.from[i], f.from[i+1])
	}
	return out
}

// cover chooses instances for the function of the rows from up to, excluding, to. It takes the
// option with the least size per rate for all but a few instances, chooses these by dynamic
// programming over rates rounded down, and then replaces or drops instances while the rest still
// serves the demand.
func (f *fleet) cover(size []float64, from, to int) []chosen {
	demand, best := f.requirement.demand[f.rows[from].fn]*(1-tolerance), from
	rate := func(i int) float64 { return f.rows[i].o.Rate }
	for i := from; i < to; i++ {
		if size[i]/rate(i) < size[best]/rate(best) {
			best = i
		}
	}
	base := max(0, int(demand/rate(best))-spareBest)
	served := float64(base) * rate(best)
	list := f.leastCover(size, from, to, demand-served)
	for _, i := range list {
		served += rate(i)
	}
	// Replace the largest instances first.
	slices.SortFunc(list, func(a, b int) int { return cmp.Or(cmp.Compare(size[b], size[a]), cmp.Compare(a, b)) })
	counts := make([]int, to-from)
	counts[best-from] = base
	for _, now := range list {
		next := now
		for i := from; i < to; i++ {
			if size[i] < size[next] && served-rate(now)+rate(i) >= demand {
				next = i
			}
		}
		served += rate(next) - rate(now)
		if served-rate(next) >= demand {
			served -= rate(next)
			continue
		}
		counts[next-from]++
	}
	var out []chosen
	for i, n := range counts {
		if n > 0 {
			out = append(out, chosen{from + i, n})
		}
	}
	return out
}

// leastCover returns rows of about the least total size that serve demand requests per second.
// It rounds rates down to parts of demand.
func (f *fleet) leastCover(size []float64, from, to int, demand float64) (list []int) {
	c := newPartCover(planParts)
	for i := from; i < to; i++ {
		c.offer(f.rows[i].o.Rate/demand*planParts, size[i], i)
	}
	f.budget.work += c.solve()
	for k := planParts; k > 0; k -= c.last[k] {
		list = append(list, c.row[c.last[k]])
	}
	return list
}

// partCover finds the least total size of instances that serve a demand, which is divided into
// equal parts.
type partCover struct {
	cheapest []float64 // by parts that one instance serves: the least size
	row      []int     // by parts that one instance serves: the row of that instance
	bestSize []float64 // by parts served: the least size of a set of instances
	last     []int     // by parts served: the parts of one instance of that set
}

func newPartCover(parts int) *partCover {
	return &partCover{slices.Repeat([]float64{math.Inf(1)}, parts+1), make([]int, parts+1), make([]float64, parts+1), make([]int, parts+1)}
}

// offer adds an instance that serves the given number of parts.
func (c *partCover) offer(parts, size float64, row int) {
	if k := int(min(parts, float64(len(c.bestSize)-1))); k > 0 && size < c.cheapest[k] {
		c.cheapest[k], c.row[k] = size, row
	}
}

// solve computes bestSize and last, and returns the steps that it took.
func (c *partCover) solve() (work int64) {
	parts := len(c.bestSize) - 1
	var useful []int // numbers of parts that no larger number undercuts in size
	for k, below := parts, math.Inf(1); k > 0; k-- {
		if c.cheapest[k] < below {
			useful, below = append(useful, k), c.cheapest[k]
		}
	}
	for k := 1; k <= parts; k++ {
		c.bestSize[k] = math.Inf(1)
		for _, n := range useful {
			if v := c.cheapest[n] + c.bestSize[max(0, k-n)]; v < c.bestSize[k] {
				c.bestSize[k], c.last[k] = v, n
			}
		}
	}
	return int64(parts * len(useful))
}

// balanced returns a weight of memory, from 0 to 1, such that covers by the mix of area (by row)
// and memory need about as much area as memory, if there is such a weight.
func (f *fleet) balanced(area []float64) (mem float64) {
	low, high := 0.0, 1.0
	for range balanceSteps {
		t := (low + high) / 2
		a, m := 0.0, 0.0
		for _, x := range slices.Concat(f.covers(mix(area, f.mem, t))...) {
			a += area[x.row] * float64(x.count)
			m += f.mem[x.row] * float64(x.count)
		}
		if m > a {
			low = t
		} else {
			high = t
		}
	}
	return (low + high) / 2
}

// balanceSteps is how often balanced halves the interval of weights.
const balanceSteps = 5
