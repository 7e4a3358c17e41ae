package joint

import (
	"math"
	"slices"
)

// Limits of a knapsack's raster. It has at most maxSums points; with many sizes, the limit is
// maxCells divided by their number, but at least minSums.
const (
	maxSums  = 4000
	minSums  = 200
	maxCells = 400_000
)

// cutRelaxation computes an upper bound of the value that one GPU can host. It relaxes the problem
// so that instances may be cut into pieces along one axis:
//
//   - Cut in time, an instance is worth value/quota per window. The instances that run at any
//     moment have SM shares of at most One, so no packing is worth more than the best such set
//     running for the whole window: a knapsack of SM shares.
//   - Cut in SMs, an instance is worth value/share. The rectangles across any SM have quotas of at
//     most One: a knapsack of quotas. This does not hold for timetables, where an instance may move
//     between SMs.
//
// This is the bar relaxation (Scheithauer, LP-based bounds for the container and multi-container
// loading problem), priced for one bin.
type cutRelaxation struct {
	c      *cutter
	shares knapsack // of SM shares
	quotas knapsack
	tokens bool
}

// knapsack holds the sides of the cutter's shapes along one axis of a GPU.
type knapsack struct {
	raster    raster
	sizes     []int64   // distinct sides
	of        []int     // by shape: index of its size
	across    []float64 // by shape: its side along the other axis, as a fraction of One
	remainder [][]int   // by point and size: the point that remains, -1 if the size does not fit
	worth     []float64 // by size: the largest value/across of its shapes
	value     []float64 // by point: the largest value that fits
}

func newCutRelaxation(p *Problem, c *cutter) *cutRelaxation {
	w, h := c.leastSides(p)
	return &cutRelaxation{c: c, tokens: p.Tokens, shares: newKnapsack(h, w), quotas: newKnapsack(w, h)}
}

// leastSides returns the least quota and the least SM share of the options of each shape.
func (c *cutter) leastSides(p *Problem) (w, h []int64) {
	w, h = slices.Repeat([]int64{One}, len(c.shapes)), slices.Repeat([]int64{One}, len(c.shapes))
	for _, all := range c.choices {
		for _, ch := range all {
			o := p.Funcs[ch.fn].Options[ch.opt]
			w[ch.shape], h[ch.shape] = min(w[ch.shape], o.W), min(h[ch.shape], o.H)
		}
	}
	return w, h
}

func newKnapsack(sides, across []int64) knapsack {
	distinct := slices.Compact(slices.Sorted(slices.Values(sides)))
	limit := min(maxSums, max(minSums, maxCells/max(1, len(distinct))))
	k := knapsack{raster: newRaster(sides, limit, sidesDown), of: make([]int, len(sides)), across: make([]float64, len(sides))}
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
	k.remainder = make([][]int, len(k.raster.points))
	for i, at := range k.raster.points {
		k.remainder[i] = make([]int, len(k.sizes))
		for n, size := range k.sizes {
			if k.raster.exact {
				k.remainder[i][n] = k.raster.floor(at - size)
			} else {
				k.remainder[i][n] = i - k.raster.side(size)
			}
		}
	}
	return k
}

// solve returns the largest total value of shapes that fit, if each may be cut along the other
// axis. It returns infinity if a side is too small for the raster.
func (k *knapsack) solve(values []float64) float64 {
	clear(k.worth)
	for s, v := range values {
		k.worth[k.of[s]] = max(k.worth[k.of[s]], v/k.across[s])
	}
	for i := 1; i < len(k.value); i++ {
		v := k.value[i-1]
		for n, remainder := range k.remainder[i] {
			switch {
			case remainder >= 0 && remainder < i:
				v = max(v, k.worth[n]+k.value[remainder])
			case remainder == i && k.worth[n] > 0: // the size rounds down to 0, so there is no bound
				return math.Inf(1)
			}
		}
		k.value[i] = v
	}
	return k.value[len(k.value)-1]
}

// bound returns an upper bound of the value that one GPU can host at the cutter's last prices,
// without regard to memory.
func (r *cutRelaxation) bound() float64 {
	area := 0.0
	for s, v := range r.c.best {
		area = max(area, v/(r.shares.across[s]*r.quotas.across[s]))
	}
	bound := min(area, r.shares.solve(r.c.best))
	if !r.tokens {
		bound = min(bound, r.quotas.solve(r.c.best))
	}
	return bound
}

// stripKnapsack finds the most valuable set of instances that can run at the same moment, each on
// SMs of its own (a strip). Their SM shares and their memory must fit the GPU; shared weights count
// once. As in cutRelaxation, an instance may be cut in time, so the value of the best set is an
// upper bound for one GPU. If all its instances have a quota of One, the set itself fits the GPU.
//
// It is a knapsack of two resources (SM shares, and memory rounded down to levels) and of groups
// with a fixed cost (the shared weights).
type stripKnapsack struct {
	k      *knapsack // of SM shares
	room   int64
	groups []modelGroup
}

// modelGroup holds the functions of one model, or all functions without a model. The dynamic
// program handles the groups in turn; the first instance of a group pays for its keeper, the memory
// of the shared weights.
type modelGroup struct {
	keeper    int // levels
	fns       []int
	strips    [][]strip  // by size of the knapsack: strips that are not dominated by another
	value     []float64  // by point and level: the best with this group and those before it
	paid      []float64  // by point and level: the best once the keeper is paid for
	decisions []decision // by point and level: how paid is reached
}

// strip is an instance that has its SMs for the whole window.
type strip struct {
	level int // memory
	value float64
	of    choice
}

// decision records how a point and level is best reached: by the strip with these indexes, or, if
// size is negative, from another point, level or group.
type decision struct{ size, strip int32 }

const (
	levels    = 200
	maxStrips = 300 // largest number of points of SM shares for which there is a stripKnapsack

	fromLess   = -1 // from the point before
	fromRoom   = -2 // from the level before
	fromUnpaid = -3 // from the group before, by paying for the keeper
)

// newStripKnapsack returns nil if memory is unlimited or there are too many sums of SM shares.
func newStripKnapsack(p *Problem, class int, k *knapsack) *stripKnapsack {
	room := p.Classes[class].Room
	if room == Unlimited || room <= 0 || !k.raster.exact || len(k.raster.points) > maxStrips {
		return nil
	}
	b := &stripKnapsack{k: k, room: room}
	for m := NoModel; m < len(p.Keepers); m++ {
		var g modelGroup
		for f := range p.Funcs {
			if p.Funcs[f].Model == m {
				g.fns = append(g.fns, f)
			}
		}
		if len(g.fns) == 0 {
			continue
		}
		if m != NoModel {
			g.keeper = b.level(float64(p.Keepers[m]))
		}
		n := len(k.raster.points) * (levels + 1)
		g.value, g.paid, g.decisions = make([]float64, n), make([]float64, n), make([]decision, n)
		b.groups = append(b.groups, g)
	}
	return b
}

func (b *stripKnapsack) level(bytes float64) int { return int(bytes / float64(b.room) * levels) }

// solve values all points and levels, and returns the value of the whole GPU. An instance is worth
// price per request per second, for at most cap requests per second, minus mu per byte.
func (b *stripKnapsack) solve(c *cutter, price, cap []float64, mu float64) float64 {
	before := make([]float64, len(b.k.raster.points)*(levels+1))
	for n := range b.groups {
		g := &b.groups[n]
		g.strips = make([][]strip, len(b.k.sizes))
		for _, f := range g.fns {
			for _, ch := range c.choices[f] {
				if v := price[f]*min(ch.rate, cap[f]) - mu*ch.mem; v > 0 {
					g.offer(b.k.of[ch.shape], strip{b.level(ch.mem), v / b.k.across[ch.shape], ch})
				}
			}
		}
		for i := range b.k.raster.points {
			*c.work += g.row(b.k, before, i)
		}
		before = g.value
	}
	return before[len(before)-1]
}

// offer adds a strip unless another of the same size needs no more memory and is worth at least
// as much. It removes strips that the new strip beats in this way.
func (g *modelGroup) offer(size int, it strip) {
	undominated := g.strips[size][:0]
	for _, other := range g.strips[size] {
		if other.level <= it.level && other.value >= it.value {
			return
		}
		if other.level < it.level || other.value > it.value {
			undominated = append(undominated, other)
		}
	}
	g.strips[size] = append(undominated, it)
}

// row values point i at all levels, given the group before. It returns the steps that it took.
func (g *modelGroup) row(k *knapsack, before []float64, i int) (work int64) {
	at := func(i int) (from, to int) { return i * (levels + 1), (i + 1) * (levels + 1) }
	from, to := at(i)
	paid, decisions := g.paid[from:to], g.decisions[from:to]
	for m := range paid {
		paid[m], decisions[m] = math.Inf(-1), decision{}
		if m >= g.keeper {
			paid[m], decisions[m] = before[from+m-g.keeper], decision{fromUnpaid, 0}
		}
	}
	if i > 0 {
		smaller, end := at(i - 1)
		offerRow(paid, decisions, g.paid[smaller:end], 0, decision{fromLess, 0})
	}
	for size, strips := range g.strips {
		remainder := k.remainder[i][size]
		if i == 0 || len(strips) == 0 || remainder < 0 || remainder >= i {
			continue
		}
		from, to := at(remainder)
		for n, it := range strips {
			if it.level <= levels {
				offerRow(paid[it.level:], decisions[it.level:], g.paid[from:to-it.level], it.value, decision{int32(size), int32(n)})
			}
		}
		work += int64(len(strips) * levels / 4)
	}
	for m, v := range paid {
		if m > 0 && paid[m-1] > v {
			v = paid[m-1]
			paid[m], decisions[m] = v, decision{fromRoom, 0}
		}
		g.value[from+m] = max(v, before[from+m])
	}
	return work + levels
}

// offerRow improves each level of a row to the value of remainder plus value, if that is larger.
func offerRow(paid []float64, decisions []decision, remainder []float64, value float64, by decision) {
	decisions, remainder = decisions[:len(paid)], remainder[:len(paid)]
	for m, v := range paid {
		if w := remainder[m] + value; w > v {
			paid[m], decisions[m] = w, by
		}
	}
}

// best returns the strips of the best set of the last solve.
func (b *stripKnapsack) best() (out []strip) {
	i, m := len(b.k.raster.points)-1, levels
	for n := len(b.groups) - 1; n >= 0; n-- {
		g := &b.groups[n]
		if g.paid[i*(levels+1)+m] < g.value[i*(levels+1)+m] {
			continue
		}
		for paid := true; paid; {
			switch step := g.decisions[i*(levels+1)+m]; step.size {
			case fromUnpaid:
				m, paid = m-g.keeper, false
			case fromRoom:
				m--
			case fromLess:
				i--
			default:
				it := g.strips[step.size][step.strip]
				out = append(out, it)
				i, m = b.k.remainder[i][step.size], m-it.level
			}
		}
	}
	return out
}
