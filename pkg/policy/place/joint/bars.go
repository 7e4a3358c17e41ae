package joint

import (
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
)

// bars values the best set of instances that run at the same moment: SM shares
// of at most all, and memory of at most all, a keeper of shared weights counted
// once. Cut in time at will, as in relax, nothing beats the best such set kept
// for the whole window, so its value bounds what a GPU hosts; where its
// instances have the whole window, it is what a GPU can host. Memory is rounded
// down to levels.
type bars struct {
	k      *knapsack // of SM shares
	room   int64
	stages []stage
}

// stage is the functions of one model, or those without, which come in turn:
// once any of them is taken, the keeper is paid for.
type stage struct {
	keeper int // levels
	fns    []int
	items  [][]bar   // by size of the knapsack
	value  []float64 // by point and level, with this stage and those before
	open   []float64 // the same once the keeper is paid for
	how    []move    // how open is best reached
}

// bar is an instance for the whole window.
type bar struct {
	level int
	dens  float64
	of    choice
}

// move is how a point and level is best reached: by a bar, or from another
// point, level or stage.
type move struct{ size, item int32 }

const (
	levels  = 200
	maxBars = 300 // points of SM shares, beyond which there are no bars

	fromLess   = -1 // the point before
	fromRoom   = -2 // the level before
	fromClosed = -3 // the stage before, by paying for the keeper
)

// newBars is nil where memory is not limited, or SM shares are too many.
func newBars(p *Problem, class int, k *knapsack) *bars {
	room := p.Classes[class].Room
	if room == Unlimited || room <= 0 || !k.raster.exact || len(k.raster.points) > maxBars {
		return nil
	}
	b := &bars{k: k, room: room}
	for m := NoModel; m < len(p.Keepers); m++ {
		var st stage
		for f := range p.Funcs {
			if p.Funcs[f].Model == m {
				st.fns = append(st.fns, f)
			}
		}
		if len(st.fns) == 0 {
			continue
		}
		if m != NoModel {
			st.keeper = b.level(float64(p.Keepers[m]))
		}
		n := len(k.raster.points) * (levels + 1)
		st.value, st.open, st.how = make([]float64, n), make([]float64, n), make([]move, n)
		b.stages = append(b.stages, st)
	}
	return b
}

func (b *bars) level(bytes float64) int { return int(bytes / float64(b.room) * levels) }

// solve values all points and levels. A request a second of a function is
// worth price, up to cap of them an instance; a byte costs mu.
func (b *bars) solve(c *cutter, price, cap []float64, mu float64, shares []float64) float64 {
	before := make([]float64, len(b.k.raster.points)*(levels+1))
	for g := range b.stages {
		st := &b.stages[g]
		st.items = make([][]bar, len(b.k.sizes))
		for _, f := range st.fns {
			for _, ch := range c.choices[f] {
				if v := price[f]*min(ch.rate, cap[f]) - mu*ch.mem; v > 0 {
					st.offer(b.k.of[ch.shape], bar{b.level(ch.mem), v / shares[ch.shape], ch})
				}
			}
		}
		for i := range b.k.raster.points {
			c.work += st.row(b.k, before, i)
		}
		before = st.value
	}
	return before[len(before)-1]
}

// offer adds a bar unless one of its size takes no more memory and is worth as
// much.
func (st *stage) offer(size int, it bar) {
	kept := st.items[size][:0]
	for _, other := range st.items[size] {
		if other.level <= it.level && other.dens >= it.dens {
			return
		}
		if other.level < it.level || other.dens > it.dens {
			kept = append(kept, other)
		}
	}
	st.items[size] = append(kept, it)
}

// row values a point at all levels, given the stage before, and says how many
// steps that took.
func (st *stage) row(k *knapsack, before []float64, i int) (work int64) {
	at := func(i int) (from, to int) { return i * (levels + 1), (i + 1) * (levels + 1) }
	from, to := at(i)
	open, how := st.open[from:to], st.how[from:to]
	for m := range open {
		open[m], how[m] = math.Inf(-1), move{}
		if m >= st.keeper {
			open[m], how[m] = before[from+m-st.keeper], move{fromClosed, 0}
		}
	}
	if i > 0 {
		less, end := at(i - 1)
		offerRow(open, how, st.open[less:end], 0, move{fromLess, 0})
	}
	for size, items := range st.items {
		rest := k.rest[i][size]
		if i == 0 || len(items) == 0 || rest < 0 || rest >= i {
			continue
		}
		from, to := at(rest)
		for n, it := range items {
			if it.level <= levels {
				offerRow(open[it.level:], how[it.level:], st.open[from:to-it.level], it.dens, move{int32(size), int32(n)})
			}
		}
		work += int64(len(items) * levels / 4)
	}
	for m, v := range open {
		if m > 0 && open[m-1] > v {
			v = open[m-1]
			open[m], how[m] = v, move{fromRoom, 0}
		}
		st.value[from+m] = max(v, before[from+m])
	}
	return work + levels
}

// offerRow reaches each level from one of another row, plus dens, where that is
// worth more.
func offerRow(open []float64, how []move, rest []float64, dens float64, by move) {
	how, rest = how[:len(open)], rest[:len(open)]
	for m, v := range open {
		if w := rest[m] + dens; w > v {
			open[m], how[m] = w, by
		}
	}
}

// best are the bars of the best set.
func (b *bars) best() (out []bar) {
	i, m := len(b.k.raster.points)-1, levels
	for g := len(b.stages) - 1; g >= 0; g-- {
		st := &b.stages[g]
		if st.open[i*(levels+1)+m] < st.value[i*(levels+1)+m] {
			continue
		}
		for open := true; open; {
			switch how := st.how[i*(levels+1)+m]; how.size {
			case fromClosed:
				m, open = m-st.keeper, false
			case fromRoom:
				m--
			case fromLess:
				i--
			default:
				it := st.items[how.size][how.item]
				out = append(out, it)
				i, m = b.k.rest[i][how.size], m-it.level
			}
		}
	}
	return out
}

// barPattern stacks the best set on a GPU: each instance in a bar of its own, as
// often as the window and memory hold it.
func (s *solver) barPattern(b *bars, class int, price, left []float64) pattern {
	h, left := s.host(class, nil), slices.Clone(left)
	var lanes []Item
	y := int64(0)
	for _, it := range b.best() {
		o := s.p.Funcs[it.of.fn].Options[it.of.opt]
		lanes = append(lanes, Item{Func: it.of.fn, Option: it.of.opt, At: maxrect.Rect{Y: y, W: o.W, H: o.H}})
		y += o.H
	}
	for some := true; some; {
		some = false
		for n := range lanes {
			it := &lanes[n]
			if left[it.Func] > 0 && it.At.X+it.At.W <= One && it.At.Y+it.At.H <= One && h.remembers(s.p, *it) {
				s.serve(h, s.timed(*it), left)
				it.At.X += it.At.W
				some = true
			}
		}
	}
	s.fillUp(h, price, left)
	return s.pattern(GPU{class, AnyNode, h.items})
}
