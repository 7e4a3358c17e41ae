package joint

import (
	"cmp"
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
)

// maxCuts is the most places on a side that the cutter looks at.
const maxCuts = 100

// choice is a configuration as the cutter sees it.
type choice struct {
	fn, opt int
	shape   int
	rate    float64
	mem     float64
}

// cutter finds the most valuable way to cut a GPU by guillotine cuts into
// rectangles of configurations, by dynamic programming over all rectangles
// [0, xs[i]) × [0, ys[j]) (Gilmore and Gomory 1965: unconstrained copies).
type cutter struct {
	xs, ys   raster
	nx, ny   int
	choices  [][]choice // by function
	shapes   [][2]int   // distinct (x, y) of choices
	fitX     [][]int    // fitX[i][a] is the place that remains of i after a
	fitY     [][]int
	value    []float64 // nx × ny
	how      []int32   // ≥ 0 cut at x, as cutY + y, item -2-shape, none -1
	best     []float64 // value by shape
	bestOf   []choice
	work     int64
	ofShapes []int32
}

const cutY = 1 << 20

func newCutter(p *Problem, class int) *cutter {
	var ws, hs []int64
	for f := range p.Funcs {
		for _, o := range p.Funcs[f].Options {
			if o.On[class] {
				ws, hs = append(ws, o.W), append(hs, o.H)
			}
		}
	}
	c := &cutter{xs: newRaster(ws, maxCuts, false), ys: newRaster(hs, maxCuts, false)}
	c.nx, c.ny = len(c.xs.points), len(c.ys.points)
	c.fitX, c.fitY = rests(c.xs), rests(c.ys)
	c.value, c.how = make([]float64, c.nx*c.ny), make([]int32, c.nx*c.ny)
	c.index(p, class)
	return c
}

// rests lists for each point where cuts can be (up to the half) and what then
// remains.
func rests(r raster) [][]int {
	out := make([][]int, len(r.points))
	for i, p := range r.points {
		out[i] = []int{i}
		for a := 1; a < i && 2*r.points[a] <= p; a++ {
			out[i] = append(out[i], r.floor(p-r.points[a]))
		}
	}
	return out
}

func (c *cutter) index(p *Problem, class int) {
	c.ofShapes = make([]int32, c.nx*c.ny)
	for i := range c.ofShapes {
		c.ofShapes[i] = -1
	}
	c.choices = make([][]choice, len(p.Funcs))
	for f := range p.Funcs {
		for i, o := range p.Funcs[f].Options {
			if !o.On[class] {
				continue
			}
			x, y := c.xs.side(o.W), c.ys.side(o.H)
			at := x*c.ny + y
			if c.ofShapes[at] < 0 {
				c.ofShapes[at] = int32(len(c.shapes))
				c.shapes = append(c.shapes, [2]int{x, y})
			}
			c.choices[f] = append(c.choices[f], choice{f, i, int(c.ofShapes[at]), o.Rate, float64(o.Mem)})
		}
	}
	c.best, c.bestOf = make([]float64, len(c.shapes)), make([]choice, len(c.shapes))
}

// solve values every rectangle. A request a second of a function is worth
// price, up to cap of them an instance; a byte costs mu.
func (c *cutter) solve(price, cap []float64, mu float64) {
	clear(c.best)
	for f, all := range c.choices {
		if price[f] <= 0 || cap[f] <= 0 {
			continue
		}
		for _, ch := range all {
			v := price[f]*min(ch.rate, cap[f]) - mu*ch.mem
			if v > c.best[ch.shape] {
				c.best[ch.shape], c.bestOf[ch.shape] = v, ch
			}
		}
		c.work += int64(len(all))
	}
	c.fill()
}

func (c *cutter) fill() {
	ny := c.ny
	for i := 1; i < c.nx; i++ {
		for j := 1; j < ny; j++ {
			at := i*ny + j
			v, how := 0.0, int32(-1)
			if left := c.value[at-ny]; left > v {
				v, how = left, c.how[at-ny]
			}
			// What fits a smaller rectangle fits here; the trace finds it there.
			if below := c.value[at-1]; below > v {
				v, how = below, c.how[at-1]
			}
			if how != -1 {
				how = stay
			}
			if s := c.ofShapes[at]; s >= 0 && c.best[s] > v {
				v, how = c.best[s], -2-s
			}
			eps := 1e-12 * (1 + v)
			for a, fit := 1, c.fitX[i]; a < len(fit); a++ {
				if sum := c.value[a*ny+j] + c.value[fit[a]*ny+j]; sum > v+eps {
					v, how = sum, int32(a)
				}
			}
			row := c.value[i*ny : i*ny+ny]
			for a, fit := 1, c.fitY[j]; a < len(fit); a++ {
				if sum := row[a] + row[fit[a]]; sum > v+eps {
					v, how = sum, int32(cutY+a)
				}
			}
			c.work += int64(len(c.fitX[i]) + len(c.fitY[j]))
			c.value[at], c.how[at] = v, how
		}
	}
}

// stay says that the best of a rectangle is that of a smaller one.
const stay = math.MinInt32

// within is the value of the best that a w × h rectangle can be cut into.
func (c *cutter) within(w, h int64) float64 {
	return c.value[c.xs.floor(w)*c.ny+c.ys.floor(h)]
}

// cut appends to out what the best cut of a rectangle hosts, most valuable for
// its area first.
func (c *cutter) cut(out []Item, p *Problem, in maxrect.Rect) []Item {
	from := len(out)
	out = c.trace(out, p, c.xs.floor(in.W), c.ys.floor(in.H), in.X, in.Y)
	dens := func(it Item) float64 {
		o := p.Funcs[it.Func].Options[it.Option]
		s := c.ofShapes[c.xs.side(o.W)*c.ny+c.ys.side(o.H)]
		return c.best[s] / (float64(o.W) * float64(o.H))
	}
	slices.SortStableFunc(out[from:], func(a, b Item) int { return cmp.Compare(dens(b), dens(a)) })
	return out
}

func (c *cutter) trace(out []Item, p *Problem, i, j int, x, y int64) []Item {
	ny := c.ny
	for c.how[i*ny+j] == stay {
		if c.value[(i-1)*ny+j] == c.value[i*ny+j] {
			i--
		} else {
			j--
		}
	}
	switch how := c.how[i*ny+j]; {
	case i == 0 || j == 0 || how == -1:
	case how >= cutY:
		a := int(how - cutY)
		out = c.trace(out, p, i, a, x, y)
		out = c.trace(out, p, i, c.fitY[j][a], x, y+c.ys.points[a])
	case how >= 0:
		a := int(how)
		out = c.trace(out, p, a, j, x, y)
		out = c.trace(out, p, c.fitX[i][a], j, x+c.xs.points[a], y)
	default:
		ch := c.bestOf[-2-how]
		o := p.Funcs[ch.fn].Options[ch.opt]
		out = append(out, Item{Func: ch.fn, Option: ch.opt, At: maxrect.Rect{X: x, Y: y, W: o.W, H: o.H}})
	}
	return out
}
