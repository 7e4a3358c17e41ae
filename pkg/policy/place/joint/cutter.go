package joint

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
)

// maxCuts is the largest number of points on a side at which the cutter cuts.
const maxCuts = 100

// choice is a configuration in the cutter's terms.
type choice struct {
	fn, opt int
	shape   int // index of its rounded sides in cutter.shapes
	rate    float64
	mem     float64
}

// cutter finds the most valuable guillotine cutting of a GPU into rectangles of configurations,
// each of which may occur any number of times. It runs a dynamic program over all rectangles
// [0, xs[i]) × [0, ys[j]) (Gilmore and Gomory 1965, Multistage cutting stock problems of two and
// more dimensions).
type cutter struct {
	xs, ys   raster
	nx, ny   int
	choices  [][]choice // by function
	shapes   [][2]int   // distinct pairs of points (x, y) of choices
	shapeAt  []int32    // nx × ny: the shape with these sides, or -1
	restX    [][]int    // restX[i][a] is the point that remains of point i after a cut at a
	restY    [][]int    // the same along y
	best     []float64  // by shape: the value of its best configuration
	bestOf   []choice   // by shape: that configuration
	value    []float64  // nx × ny: of the best cutting of the rectangle
	decision []int32    // nx × ny: how that cutting begins
	work     *int64     // counter of the dynamic program's additions
}

// Decisions. A value from 0 to cutY-1 is a cut at that raster point along x.
const (
	nothing = -1            // nothing fits
	shapes  = -2            // shapes - s: the rectangle is one shape s
	cutY    = 1 << 20       // cutY + y: a cut at the raster point y
	smaller = math.MinInt32 // the cutting of a rectangle one point narrower or lower
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
	c := &cutter{xs: newRaster(ws, maxCuts, sidesUp), ys: newRaster(hs, maxCuts, sidesUp), work: work}
	c.nx, c.ny = len(c.xs.points), len(c.ys.points)
	c.restX, c.restY = remainders(c.xs), remainders(c.ys)
	c.value, c.decision = make([]float64, c.nx*c.ny), make([]int32, c.nx*c.ny)
	c.index(p, class)
	return c
}

// remainders lists, for each point, the point that remains after each cut. Cuts beyond the middle
// are left out, because they mirror others. Index 0 is unused.
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

// index records the shapes of all configurations that the class can host.
func (c *cutter) index(p *Problem, class int) {
	c.shapeAt = slices.Repeat([]int32{-1}, c.nx*c.ny)
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

// solve computes the value of every rectangle. An instance is worth price per request per second,
// for at most cap requests per second, minus mu per byte.
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
			v, decision := 0.0, int32(nothing)
			// A cutting of a smaller rectangle also fits here.
			if less := max(c.value[at-ny], c.value[at-1]); less > v {
				v, decision = less, smaller
			}
			if s := c.shapeAt[at]; s >= 0 && c.best[s] > v {
				v, decision = c.best[s], shapes-s
			}
			eps := 1e-12 * (1 + v)
			for a, rest := 1, c.restX[i]; a < len(rest); a++ {
				if sum := c.value[a*ny+j] + c.value[rest[a]*ny+j]; sum > v+eps {
					v, decision = sum, int32(a)
				}
			}
			row := c.value[i*ny : i*ny+ny]
			for a, rest := 1, c.restY[j]; a < len(rest); a++ {
				if sum := row[a] + row[rest[a]]; sum > v+eps {
					v, decision = sum, int32(cutY+a)
				}
			}
			work += len(c.restX[i]) + len(c.restY[j])
			c.value[at], c.decision[at] = v, decision
		}
	}
	*c.work += int64(work)
}

// valueOf returns the value of the best cutting of a w × h rectangle.
func (c *cutter) valueOf(w, h int64) float64 {
	return c.value[c.xs.floor(w)*c.ny+c.ys.floor(h)]
}

// cut appends the items of the best cutting of a rectangle to out, those with the most value per
// area first.
func (c *cutter) cut(out []Item, p *Problem, in maxrect.Rect) []Item {
	from := len(out)
	c.trace(c.xs.floor(in.W), c.ys.floor(in.H), in.X, in.Y, func(shape int, x, y int64) {
		ch := c.bestOf[shape]
		o := p.Funcs[ch.fn].Options[ch.opt]
		out = append(out, Item{Func: ch.fn, Option: ch.opt, At: maxrect.Rect{X: x, Y: y, W: o.W, H: o.H}})
	})
	density := func(it Item) float64 {
		o := p.option(it)
		s := c.shapeAt[c.xs.side(o.W)*c.ny+c.ys.side(o.H)]
		return c.best[s] / (float64(o.W) * float64(o.H))
	}
	slices.SortStableFunc(out[from:], func(a, b Item) int { return cmp.Compare(density(b), density(a)) })
	return out
}

// trace follows the decisions from the rectangle of i × j points at (x, y). It calls leaf with
// each shape and its corner.
func (c *cutter) trace(i, j int, x, y int64, leaf func(shape int, x, y int64)) {
	i, j = c.sameValue(i, j)
	switch decision := c.decision[i*c.ny+j]; {
	case i == 0 || j == 0 || decision == nothing:
	case decision >= cutY:
		a := int(decision - cutY)
		c.trace(i, a, x, y, leaf)
		c.trace(i, c.restY[j][a], x, y+c.ys.points[a], leaf)
	case decision >= 0:
		a := int(decision)
		c.trace(a, j, x, y, leaf)
		c.trace(c.restX[i][a], j, x+c.xs.points[a], y, leaf)
	default:
		leaf(int(shapes-decision), x, y)
	}
}

// sameValue returns the smallest rectangle, within the rectangle of i × j points, from which
// that rectangle has its value.
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

// raster holds the points along one side of a GPU where edges can lie. These are the sums of
// sides, which suffice if everything is pushed to one end (normal patterns: Herz 1972;
// Christofides and Whitlock 1977). If there are too many sums, the points are evenly spaced
// instead, and sides are rounded to them.
type raster struct {
	points []int64 // ascending, from 0 to One
	exact  bool    // the points are the sums of sides
	down   bool    // sides are rounded down instead of up
}

// Values of newRaster's argument down.
const (
	sidesUp   = false
	sidesDown = true
)

// newRaster returns a raster of these sides with at most limit points. Rounding sides up keeps
// packings feasible; rounding them down keeps upper bounds valid.
func newRaster(sides []int64, limit int, down bool) raster {
	sides = slices.Compact(slices.Sorted(slices.Values(sides)))
	if points := sums(sides, limit); points != nil {
		return raster{points: points, exact: true, down: down}
	}
	even := make([]int64, limit)
	for i := range even {
		even[i] = int64(i) * One / int64(limit-1)
	}
	return raster{points: even, down: down}
}

// sums returns all sums of sides up to One, and One itself. It returns nil if there are more than
// limit.
func sums(sides []int64, limit int) []int64 {
	visited := map[int64]bool{0: true}
	queue := []int64{0}
	for len(queue) > 0 {
		at := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		for _, s := range sides {
			if next := at + s; next <= One && !visited[next] {
				if len(visited) >= limit {
					return nil
				}
				visited[next] = true
				queue = append(queue, next)
			}
		}
	}
	visited[One] = true
	return slices.Sorted(maps.Keys(visited))
}

// floor returns the index of the last point that is at most v.
func (r raster) floor(v int64) int {
	i, found := slices.BinarySearch(r.points, v)
	if found {
		return i
	}
	return i - 1
}

// side returns the index of the point to which a side of length v is rounded.
func (r raster) side(v int64) int {
	i, found := slices.BinarySearch(r.points, v)
	if found || !r.down {
		return i
	}
	return i - 1
}
