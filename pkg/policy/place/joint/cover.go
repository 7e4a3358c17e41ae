package joint

import (
	"cmp"
	"math"
	"slices"
)

// chosen is so many instances of one option, by its row of the fleet.
type chosen struct{ row, count int }

const (
	// planParts is in how many parts of what it wants rates are rounded down to
	// find a function's instances.
	planParts = 512
	// spareBest is how many instances of its best option a function's cover
	// chooses anew, beyond which all are of that.
	spareBest = 4
)

// covers are whole instances that serve each function, of about the least
// size: sizes are by row, functions in the order of the rows.
func (f *fleet) covers(size []float64) [][]chosen {
	out := make([][]chosen, len(f.from)-1)
	for i := range out {
		out[i] = f.cover(size, f.from[i], f.from[i+1])
	}
	return out
}

// cover chooses for the function of these rows: the option of the least size
// for its rate as often as leaves a few instances to choose, those by dynamic
// programming over rates rounded down, and what is more than enough is taken
// back.
func (f *fleet) cover(size []float64, from, to int) []chosen {
	want, best := f.s.demand[f.rows[from].fn]*(1-tolerance), from
	rate := func(i int) float64 { return f.rows[i].o.Rate }
	for i := from; i < to; i++ {
		if size[i]/rate(i) < size[best]/rate(best) {
			best = i
		}
	}
	base := max(0, int(want/rate(best))-spareBest)
	served := float64(base) * rate(best)
	list := f.leastCover(size, from, to, want-served)
	for _, i := range list {
		served += rate(i)
	}
	// What costs the most is replaced first.
	slices.SortFunc(list, func(a, b int) int { return cmp.Or(cmp.Compare(size[b], size[a]), cmp.Compare(a, b)) })
	counts := make([]int, to-from)
	counts[best-from] = base
	for _, now := range list {
		next := now
		for i := from; i < to; i++ {
			if size[i] < size[next] && served-rate(now)+rate(i) >= want {
				next = i
			}
		}
		served += rate(next) - rate(now)
		if served-rate(next) >= want {
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

// leastCover lists rows of the least size that serve so much, with rates
// rounded down to parts of it.
func (f *fleet) leastCover(size []float64, from, to int, want float64) (list []int) {
	var cheapest [planParts + 1]int // row, by parts that it serves; -1 without
	for k := range cheapest {
		cheapest[k] = -1
	}
	for i := from; i < to; i++ {
		k := int(min(planParts, f.rows[i].o.Rate/want*planParts))
		if k > 0 && (cheapest[k] < 0 || size[i] < size[cheapest[k]]) {
			cheapest[k] = i
		}
	}
	var useful []int // parts where less costs less
	for k, below := planParts, math.Inf(1); k > 0; k-- {
		if i := cheapest[k]; i >= 0 && size[i] < below {
			useful, below = append(useful, k), size[i]
		}
	}
	var least [planParts + 1]float64 // by parts served
	var last [planParts + 1]int      // parts of the instance that makes it so
	for k := 1; k <= planParts; k++ {
		least[k] = math.Inf(1)
		for _, n := range useful {
			if v := size[cheapest[n]] + least[max(0, k-n)]; v < least[k] {
				least[k], last[k] = v, n
			}
		}
	}
	f.s.work += int64(planParts * len(useful))
	for k := planParts; k > 0; k -= last[k] {
		list = append(list, cheapest[last[k]])
	}
	return list
}

// balanced are sizes that mix an area, by row, and memory such that the covers
// by them take about as much of both, if there are such.
func (f *fleet) balanced(area []float64) (mem float64) {
	low, high := 0.0, 1.0
	for range balanceSteps {
		t := (low + high) / 2
		a, m := 0.0, 0.0
		for _, c := range f.covers(mix(area, f.mem, t)) {
			for _, x := range c {
				a += area[x.row] * float64(x.count)
				m += f.mem[x.row] * float64(x.count)
			}
		}
		if m > a {
			low = t
		} else {
			high = t
		}
	}
	return (low + high) / 2
}

// balanceSteps is how often the share of memory is halved.
const balanceSteps = 5
