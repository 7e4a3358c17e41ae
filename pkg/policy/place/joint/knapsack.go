package joint

import (
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
)

// A knapsack's raster has so many points at most, fewer when there are many
// sizes.
const (
	maxSums  = 4000
	minSums  = 200
	maxCells = 400_000
)

// cutRelaxation bounds from above what one GPU can host.
//
// At each moment of the window what runs side by side has SM shares of at most
// all, so cut in time at will (each instance is worth value/quota a window)
// nothing beats the best such set kept for the whole window: a knapsack of SM
// shares. Rectangles are also, at each SM, a row of quotas that sum to at most
// the window, so a knapsack of quotas with value/share bounds them too. A
// timetable may move an instance between SMs: there only the first holds. (The
// bar relaxation of Scheithauer, LP-based bounds for the container and
// multi-container loading problem, priced for one bin.)
type cutRelaxation struct {
	c      *cutter
	shares knapsack // of SM shares
	quotas knapsack
	tokens bool
}

// knapsack is the sides of the cutter's shapes along one axis of a GPU.
type knapsack struct {
	raster raster
	sizes  []int64   // distinct sides
	of     []int     // by shape, its size's number
	across []float64 // by shape, its side along the other axis, as a part of all
	rest   [][]int   // by point, by size: the point that remains, -1 if it does not fit
	worth  []float64 // by size: the most value/across of its shapes
	value  []float64 // by point: the best that fits
}

func newCutRelaxation(p *Problem, c *cutter) *cutRelaxation {
	w, h := c.leastSides(p)
	return &cutRelaxation{c: c, tokens: p.Tokens, shares: newKnapsack(h, w), quotas: newKnapsack(w, h)}
}

// leastSides is the least quota and SM share that each shape stands for.
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

// solve is the most that fits of shapes of these values, each cut at will
// across; infinite where a side is too small for the raster.
func (k *knapsack) solve(values []float64) float64 {
	clear(k.worth)
	for s, v := range values {
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
func (r *cutRelaxation) bound() float64 {
	area := 0.0
	for s, v := range r.c.best {
		area = max(area, v/(r.shares.across[s]*r.quotas.across[s]))
	}
	most := min(area, r.shares.solve(r.c.best))
	if !r.tokens {
		most = min(most, r.quotas.solve(r.c.best))
	}
	return most
}

// stripKnapsack values the best set of instances that run at the same moment,
// each in a strip of SMs: SM shares of at most all, and memory of at most all, a
// keeper of shared weights counted once. Cut in time at will, as in
// cutRelaxation, nothing beats the best such set kept for the whole window, so
// its value bounds what a GPU hosts; where its instances have the whole window,
// it is what a GPU can host. It is a knapsack of two resources, memory rounded
// down to levels, and of groups with a fixed cost, the keepers.
type stripKnapsack struct {
	k      *knapsack // of SM shares
	room   int64
	groups []modelGroup
}

// modelGroup is the functions of one model, or those without, which come in
// turn: once any of them is taken, the keeper is paid for.
type modelGroup struct {
	keeper int // levels
	fns    []int
	strips [][]strip  // by size of the knapsack: those that no other beats
	value  []float64  // by point and level, with this group and those before
	paid   []float64  // the same once the keeper is paid for
	how    []decision // how paid is best reached
}

// strip is an instance that has its SMs for the whole window.
type strip struct {
	level int // memory
	value float64
	of    choice
}

// decision is how a point and level is best reached: by a strip, of a size and
// of strips, or from another point, level or group.
type decision struct{ size, strip int32 }

const (
	levels    = 200
	maxStrips = 300 // points of SM shares, beyond which there is no such knapsack

	fromLess   = -1 // the point before
	fromRoom   = -2 // the level before
	fromUnpaid = -3 // the group before, by paying for the keeper
)

// newStripKnapsack is nil where memory is not limited, or SM shares are too
// many.
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
		g.value, g.paid, g.how = make([]float64, n), make([]float64, n), make([]decision, n)
		b.groups = append(b.groups, g)
	}
	return b
}

func (b *stripKnapsack) level(bytes float64) int { return int(bytes / float64(b.room) * levels) }

// solve values all points and levels, and is the value of all. A request a
// second of a function is worth price, up to cap of them an instance; a byte
// costs mu.
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

// offer adds a strip unless one of its size takes no more memory and is worth
// as much.
func (g *modelGroup) offer(size int, it strip) {
	kept := g.strips[size][:0]
	for _, other := range g.strips[size] {
		if other.level <= it.level && other.value >= it.value {
			return
		}
		if other.level < it.level || other.value > it.value {
			kept = append(kept, other)
		}
	}
	g.strips[size] = append(kept, it)
}

// row values a point at all levels, given the group before, and says how many
// steps that took.
func (g *modelGroup) row(k *knapsack, before []float64, i int) (work int64) {
	at := func(i int) (from, to int) { return i * (levels + 1), (i + 1) * (levels + 1) }
	from, to := at(i)
	paid, how := g.paid[from:to], g.how[from:to]
	for m := range paid {
		paid[m], how[m] = math.Inf(-1), decision{}
		if m >= g.keeper {
			paid[m], how[m] = before[from+m-g.keeper], decision{fromUnpaid, 0}
		}
	}
	if i > 0 {
		less, end := at(i - 1)
		offerRow(paid, how, g.paid[less:end], 0, decision{fromLess, 0})
	}
	for size, strips := range g.strips {
		rest := k.rest[i][size]
		if i == 0 || len(strips) == 0 || rest < 0 || rest >= i {
			continue
		}
		from, to := at(rest)
		for n, it := range strips {
			if it.level <= levels {
				offerRow(paid[it.level:], how[it.level:], g.paid[from:to-it.level], it.value, decision{int32(size), int32(n)})
			}
		}
		work += int64(len(strips) * levels / 4)
	}
	for m, v := range paid {
		if m > 0 && paid[m-1] > v {
			v = paid[m-1]
			paid[m], how[m] = v, decision{fromRoom, 0}
		}
		g.value[from+m] = max(v, before[from+m])
	}
	return work + levels
}

// offerRow reaches each level from one of another row, plus value, where that
// is worth more.
func offerRow(paid []float64, how []decision, rest []float64, value float64, by decision) {
	how, rest = how[:len(paid)], rest[:len(paid)]
	for m, v := range paid {
		if w := rest[m] + value; w > v {
			paid[m], how[m] = w, by
		}
	}
}

// best are the strips of the best set.
func (b *stripKnapsack) best() (out []strip) {
	i, m := len(b.k.raster.points)-1, levels
	for n := len(b.groups) - 1; n >= 0; n-- {
		g := &b.groups[n]
		if g.paid[i*(levels+1)+m] < g.value[i*(levels+1)+m] {
			continue
		}
		for paid := true; paid; {
			switch how := g.how[i*(levels+1)+m]; how.size {
			case fromUnpaid:
				m, paid = m-g.keeper, false
			case fromRoom:
				m--
			case fromLess:
				i--
			default:
				it := g.strips[how.size][how.strip]
				out = append(out, it)
				i, m = b.k.rest[i][how.size], m-it.level
			}
		}
	}
	return out
}

// stripPattern lays the best set of the last prices on a GPU: each instance in
// a strip of its own, as often as the window and memory hold it.
func (s *solver) stripPattern(b *stripKnapsack, class int, price, left []float64) pattern {
	h, left := s.newHost(class, nil), slices.Clone(left)
	var strips []Item
	y := int64(0)
	for _, it := range b.best() {
		o := s.p.Funcs[it.of.fn].Options[it.of.opt]
		strips = append(strips, Item{Func: it.of.fn, Option: it.of.opt, At: maxrect.Rect{Y: y, W: o.W, H: o.H}})
		y += o.H
	}
	for some := true; some; {
		some = false
		for n := range strips {
			it := &strips[n]
			if left[it.Func] > 0 && it.At.X+it.At.W <= One && it.At.Y+it.At.H <= One && h.hasMemory(*it) {
				s.serve(h, s.withTurn(*it), left)
				it.At.X += it.At.W
				some = true
			}
		}
	}
	s.topUp(h, prices{rate: price}, left)
	return s.pattern(GPU{class, AnyNode, h.items})
}
