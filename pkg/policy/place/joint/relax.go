package joint

import (
	"math"
	"slices"
)

// A relaxation's knapsack has so many points at most, fewer when there are
// many sizes.
const (
	maxSums  = 4000
	minSums  = 200
	maxCells = 400_000
)

// relax bounds from above what one GPU can host.
//
// At each moment of the window what runs side by side has SM shares of at most
// all, so cut in time at will (each instance is worth value/quota a window)
// nothing beats the best such set kept for the whole window: a knapsack of SM
// shares. Rectangles are also, at each SM, a row of quotas that sum to at most
// the window, so a knapsack of quotas with value/share bounds them too. A
// timetable may move an instance between SMs: there only the first holds.
type relax struct {
	c      *cutter
	tall   knapsack // SM shares
	wide   knapsack // quotas
	tokens bool
}

type knapsack struct {
	raster raster
	sizes  []int64 // distinct
	of     []int   // by shape, its size's number
	across []float64
	rest   [][]int // by point, by size: the point that remains, -1 if it does not fit
	worth  []float64
	value  []float64
}

func newRelax(p *Problem, c *cutter) *relax {
	w, h := c.least(p)
	r := &relax{c: c, tokens: p.Tokens}
	r.tall = newKnapsack(h, w)
	r.wide = newKnapsack(w, h)
	return r
}

// least is the least quota and SM share that each shape stands for.
func (c *cutter) least(p *Problem) (w, h []int64) {
	w, h = make([]int64, len(c.shapes)), make([]int64, len(c.shapes))
	for i := range w {
		w[i], h[i] = One, One
	}
	for _, all := range c.choices {
		for _, ch := range all {
			o := p.Funcs[ch.fn].Options[ch.opt]
			w[ch.shape], h[ch.shape] = min(w[ch.shape], o.W), min(h[ch.shape], o.H)
		}
	}
	return w, h
}

func newKnapsack(sides, across []int64) knapsack {
	distinct := slices.Clone(sides)
	slices.Sort(distinct)
	limit := min(maxSums, max(minSums, maxCells/max(1, len(slices.Compact(distinct)))))
	k := knapsack{raster: newRaster(sides, limit, true), of: make([]int, len(sides)), across: make([]float64, len(sides))}
	number := map[int64]int{}
	for s, side := range sides {
		n, ok := number[side]
		if !ok {
			n = len(k.sizes)
			number[side] = n
			k.sizes = append(k.sizes, side)
		}
		k.of[s], k.across[s] = n, float64(across[s])/One
	}
	k.worth, k.value = make([]float64, len(k.sizes)), make([]float64, len(k.raster.points))
	k.rest = make([][]int, len(k.raster.points))
	for i, at := range k.raster.points {
		k.rest[i] = make([]int, len(k.sizes))
		for n, size := range k.sizes {
			if k.raster.exact {
				k.rest[i][n] = k.raster.floor(at - size)
			} else {
				k.rest[i][n] = i - k.raster.side(size)
			}
		}
	}
	return k
}

// solve is the most that fits, each shape cut at will across.
func (k *knapsack) solve(best []float64) float64 {
	clear(k.worth)
	for s, v := range best {
		k.worth[k.of[s]] = max(k.worth[k.of[s]], v/k.across[s])
	}
	for i := 1; i < len(k.value); i++ {
		v := k.value[i-1]
		for n, rest := range k.rest[i] {
			switch {
			case rest >= 0 && rest < i:
				v = max(v, k.worth[n]+k.value[rest])
			case rest == i && k.worth[n] > 0: // rounded down to nothing: no bound
				return math.Inf(1)
			}
		}
		k.value[i] = v
	}
	return k.value[len(k.value)-1]
}

// bound is the most that one GPU can host by the cutter's last prices, memory
// aside.
func (r *relax) bound() float64 {
	area := 0.0
	for s, v := range r.c.best {
		area = max(area, v/(r.tall.across[s]*r.wide.across[s]))
	}
	most := min(area, r.tall.solve(r.c.best))
	if !r.tokens {
		most = min(most, r.wide.solve(r.c.best))
	}
	return most
}
