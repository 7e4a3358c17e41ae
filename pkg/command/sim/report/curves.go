package report

import (
	"math"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/svg"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/sim"
)

// Lengths of the picture, in pixels.
const (
	width, height          = 960, 420
	left, right, top, base = 56, 16, 12, 44
)

// shortest is the least latency the axis shows, in ms: it is logarithmic.
const shortest = 0.1

// axis is a logarithmic scale of latency.
type axis struct{ low, high float64 }

// axisOf holds all latencies of these curves.
func axisOf(curves [][]float64) axis {
	a := axis{math.Inf(1), 0}
	for _, c := range curves {
		for _, v := range c {
			a.low, a.high = min(a.low, max(v, shortest)), max(a.high, v)
		}
	}
	if math.IsInf(a.low, 1) {
		a.low = 1
	}
	a.high = max(a.high, a.low*10)
	return a
}

func curvesOf(results []*sim.Result) (out [][]float64) {
	for _, r := range results {
		out = append(out, r.Curve)
	}
	return out
}

// pixels prints a length.
func pixels(v float64) string { return number.Fixed(v, 1) }

// part is how far along the axis a latency is, 0 to 1.
func (a axis) part(v float64) float64 { return math.Log(max(v, a.low)/a.low) / math.Log(a.high/a.low) }

func (a axis) x(v float64) float64 { return left + a.part(v)*(width-left-right) }

func y(quantile float64) float64 { return height - base - quantile*(height-top-base) }

// curves draws for each policy which part of all invocations took at most how
// long.
func curves(results []*sim.Result) string {
	out := svg.Drawing{Length: pixels}
	a := axisOf(curvesOf(results))
	out.Open("svg", "viewBox", out.Path("0 0 ", width, " ", height), "role", "img", "aria-label", "Distributions of latency")
	out.WriteByte('\n')
	grid(&out, a)
	for i, r := range results {
		s := styleOf(i)
		var points []string
		for k, q := range Quantiles() {
			if k < len(r.Curve) {
				points = append(points, out.Path(a.x(r.Curve[k]), ",", y(q)))
			}
		}
		out.AddTitled("polyline", r.Policy, "points", strings.Join(points, " "), "fill", "none", "stroke", s.Colour, "stroke-width", 2, "stroke-dasharray", s.Dash)
		out.WriteByte('\n')
	}
	out.Close("svg")
	return out.String()
}

// ticks are the latencies that the axis names: powers of ten, and 2 and 5 times
// those where there are few.
func (a axis) ticks() []float64 {
	steps := []float64{1}
	if a.high < a.low*1e3 {
		steps = []float64{1, 2, 5}
	}
	var out []float64
	for power := math.Pow(10, math.Floor(math.Log10(a.low))); power <= a.high; power *= 10 {
		for _, step := range steps {
			if v := power * step; v >= a.low*(1-1e-9) && v <= a.high*(1+1e-9) {
				out = append(out, v)
			}
		}
	}
	return out
}

// grid draws the axes: parts of the invocations, and latencies.
func grid(out *svg.Drawing, a axis) {
	for _, q := range []float64{0, 0.25, 0.5, 0.75, 0.95, 1} {
		out.Add("line", "class", "grid", "x1", left, "x2", width-right, "y1", y(q), "y2", y(q))
		out.AddText("text", number.Plain(100*q)+"%", "x", left-8, "y", y(q)+4, "text-anchor", "end")
		out.WriteByte('\n')
	}
	for _, v := range a.ticks() {
		out.Add("line", "class", "grid", "x1", a.x(v), "x2", a.x(v), "y1", top, "y2", height-base)
		out.AddText("text", human(v), "x", a.x(v), "y", height-base+18, "text-anchor", "middle")
		out.WriteByte('\n')
	}
	out.AddText("text", "latency (logarithmic)", "x", (left+width-right)/2, "y", height-6, "text-anchor", "middle")
	out.WriteByte('\n')
}
