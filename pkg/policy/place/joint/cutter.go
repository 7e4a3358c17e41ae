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
	shape   int // its sides on the rasters, of cutter.shapes
	rate    float64
	mem     float64
}

// cutter finds the most valuable way to cut a GPU by guillotine cuts into
// rectangles of configurations, by dynamic programming over all rectangles
// [0, xs[i]) × [0, ys[j]) (Gilmore and Gomory 1965, Multistage cutting stock
// problems of two and more dimensions; of each configuration there may be any
// number).
type cutter struct {
	xs, ys   raster
	nx, ny   int
	choices  [][]choice // by function
	shapes   [][2]int   // distinct (x, y) of choices
	shapeAt  []int32    // nx × ny: the shape of these sides, -1 if none
	restX    [][]int    // restX[i][a] is the point that remains of i after a
	restY    [][]int
	best     []float64 // value by shape
	bestOf   []choice
	value    []float64 // nx × ny: of the best in the rectangle
	decision []int32   // nx × ny: how value is reached
	work     *int64    // counted here: sums in the program
}

// How the best of a rectangle is reached, besides by a cut at the raster point
// x, which is x itself.
const (
	nothing = -1            // nothing fits
	shapes  = -2            // shape s is shapes - s
	cutY    = 1 << 20       // a cut at the raster point y is cutY + y
	smaller = math.MinInt32 // as that of a rectangle one point less wide or high
)

func newCutter(p *Problem, class int, work *int64) *cutter {
	var ws, hs []int64
	for f := range p.Funcs {
		for _, o := range p.Funcs[f].Options {
			if o.On[class] {
				ws, hs = append(ws, o.W), append(hs, o.H)
			}
		}
	}
	c := &cutter{xs: newRaster(ws, maxCuts, false), ys: newRaster(hs, maxCuts, false), work: work}
	c.nx, c.ny = len(c.xs.points), len(c.ys.points)
	c.restX, c.restY = remainders(c.xs), remainders(c.ys)
	c.value, c.decision = make([]float64, c.nx*c.ny), make([]int32, c.nx*c.ny)
	c.index(p, class)
	return c
}

// remainders lists for each point where cuts can be (up to the half) and what
// then remains.
func remainders(r raster) [][]int {
	out := make([][]int, len(r.points))
	for i, p := range r.points {
		out[i] = []int{i}
		for a := 1; a < i && 2*r.points[a] <= p; a++ {
			out[i] = append(out[i], r.floor(p-r.points[a]))
		}
	}
	return out
}

// index finds the shapes of all configurations that the class can host.
func (c *cutter) index(p *Problem, class int) {
	c.shapeAt = make([]int32, c.nx*c.ny)
	for i := range c.shapeAt {
		c.shapeAt[i] = -1
	}
	c.choices = make([][]choice, len(p.Funcs))
	for f := range p.Funcs {
		for i, o := range p.Funcs[f].Options {
			if !o.On[class] {
				continue
			}
			x, y := c.xs.side(o.W), c.ys.side(o.H)
			at := x*c.ny + y
			if c.shapeAt[at] < 0 {
				c.shapeAt[at] = int32(len(c.shapes))
				c.shapes = append(c.shapes, [2]int{x, y})
			}
			c.choices[f] = append(c.choices[f], choice{f, i, int(c.shapeAt[at]), o.Rate, float64(o.Mem)})
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
		*c.work += int64(len(all))
	}
	c.fill()
}

// fill runs the dynamic program, smaller rectangles first.
func (c *cutter) fill() {
	ny, work := c.ny, 0
	for i := 1; i < c.nx; i++ {
		for j := 1; j < ny; j++ {
			at := i*ny + j
			v, how := 0.0, int32(nothing)
			// What fits a smaller rectangle fits here; the trace finds it there.
			if less := max(c.value[at-ny], c.value[at-1]); less > v {
				v, how = less, smaller
			}
			if s := c.shapeAt[at]; s >= 0 && c.best[s] > v {
				v, how = c.best[s], shapes-s
			}
			eps := 1e-12 * (1 + v)
			for a, rest := 1, c.restX[i]; a < len(rest); a++ {
				if sum := c.value[a*ny+j] + c.value[rest[a]*ny+j]; sum > v+eps {
					v, how = sum, int32(a)
				}
			}
			row := c.value[i*ny : i*ny+ny]
			for a, rest := 1, c.restY[j]; a < len(rest); a++ {
				if sum := row[a] + row[rest[a]]; sum > v+eps {
					v, how = sum, int32(cutY+a)
				}
			}
			work += len(c.restX[i]) + len(c.restY[j])
			c.value[at], c.decision[at] = v, how
		}
	}
	*c.work += int64(work)
}

// valueOf is the value of the best that a w × h rectangle can be cut into.
func (c *cutter) valueOf(w, h int64) float64 {
	return c.value[c.xs.floor(w)*c.ny+c.ys.floor(h)]
}

// cut appends to out what the best cut of a rectangle hosts, most valuable for
// its area first.
func (c *cutter) cut(out []Item, p *Problem, in maxrect.Rect) []Item {
	from := len(out)
	out = c.trace(out, p, c.xs.floor(in.W), c.ys.floor(in.H), in.X, in.Y)
	density := func(it Item) float64 {
		o := p.option(it)
		s := c.shapeAt[c.xs.side(o.W)*c.ny+c.ys.side(o.H)]
		return c.best[s] / (float64(o.W) * float64(o.H))
	}
	slices.SortStableFunc(out[from:], func(a, b Item) int { return cmp.Compare(density(b), density(a)) })
	return out
}

// trace follows the decisions from the rectangle of i × j points at (x, y).
func (c *cutter) trace(out []Item, p *Problem, i, j int, x, y int64) []Item {
	i, j = c.sameValue(i, j)
	switch how := c.decision[i*c.ny+j]; {
	case i == 0 || j == 0 || how == nothing:
	case how >= cutY:
		a := int(how - cutY)
		out = c.trace(out, p, i, a, x, y)
		out = c.trace(out, p, i, c.restY[j][a], x, y+c.ys.points[a])
	case how >= 0:
		a := int(how)
		out = c.trace(out, p, a, j, x, y)
		out = c.trace(out, p, c.restX[i][a], j, x+c.xs.points[a], y)
	default:
		ch := c.bestOf[shapes-how]
		o := p.Funcs[ch.fn].Options[ch.opt]
		out = append(out, Item{Func: ch.fn, Option: ch.opt, At: maxrect.Rect{X: x, Y: y, W: o.W, H: o.H}})
	}
	return out
}

// traceShapes follows the decisions from the rectangle of i × j points and
// lists the shapes.
func (c *cutter) traceShapes(out []int, i, j int) []int {
	i, j = c.sameValue(i, j)
	switch how := c.decision[i*c.ny+j]; {
	case i == 0 || j == 0 || how == nothing:
	case how >= cutY:
		a := int(how - cutY)
		out = c.traceShapes(out, i, a)
		out = c.traceShapes(out, i, c.restY[j][a])
	case how >= 0:
		a := int(how)
		out = c.traceShapes(out, a, j)
		out = c.traceShapes(out, c.restX[i][a], j)
	default:
		out = append(out, int(shapes-how))
	}
	return out
}

// sameValue is the rectangle in that of i × j points where its value comes
// from.
func (c *cutter) sameValue(i, j int) (int, int) {
	for c.decision[i*c.ny+j] == smaller {
		if c.value[(i-1)*c.ny+j] == c.value[i*c.ny+j] {
			i--
		} else {
			j--
		}
	}
	return i, j
}

// raster is the points along one side of a GPU where an edge can lie when
// everything is pushed to one end: the sums of sides, which are enough to look
// at (normal patterns: Herz 1972; Christofides and Whitlock 1977). Where there
// would be too many, points are evenly spaced and sides are rounded to them.
type raster struct {
	points []int64 // ascending, from 0 to One
	exact  bool
	down   bool // sides are rounded down, not up
}

// newRaster is the raster of these sides with at most limit points. Rounding
// sides up keeps what is packed packable; rounding them down keeps a bound.
func newRaster(sides []int64, limit int, down bool) raster {
	sides = slices.Clone(sides)
	slices.Sort(sides)
	sides = slices.Compact(sides)
	if points := sums(sides, limit); points != nil {
		return raster{points: points, exact: true, down: down}
	}
	even := make([]int64, limit)
	for i := range even {
		even[i] = int64(i) * One / int64(limit-1)
	}
	return raster{points: even, down: down}
}

// sums are all sums of sides up to One, and One; nil when there are more than
// limit.
func sums(sides []int64, limit int) []int64 {
	seen := map[int64]bool{0: true}
	queue := []int64{0}
	for len(queue) > 0 {
		at := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		for _, s := range sides {
			if next := at + s; next <= One && !seen[next] {
				if len(seen) >= limit {
					return nil
				}
				seen[next] = true
				queue = append(queue, next)
			}
		}
	}
	seen[One] = true
	points := make([]int64, 0, len(seen))
	for p := range seen {
		points = append(points, p)
	}
	slices.Sort(points)
	return points
}

// floor is the last point that is at most v.
func (r raster) floor(v int64) int {
	i, found := slices.BinarySearch(r.points, v)
	if found {
		return i
	}
	return i - 1
}

// side is the point that stands for a side.
func (r raster) side(v int64) int {
	i, found := slices.BinarySearch(r.points, v)
	if found || !r.down {
		return i
	}
	return i - 1
}
