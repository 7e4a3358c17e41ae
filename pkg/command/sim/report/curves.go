package report

import (
	"math"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/svg"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/sim"
)

// Lengths of the picture, in pixels.
const (
	width, height          = 960, 420
	left, right, top, base = 70, 24, 12, 44
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
	grid(&out, a, "invocations")
	for i, r := range results {
		s := styleOf(i)
		s.begin(&out, r.Policy)
		s.line(&out, a, r.Curve)
		s.end(&out)
	}
	out.Close("svg")
	return out.String()
}

// begin begins the group of a curve, of which the pointer shows the name.
func (s style) begin(out *svg.Drawing, name string) {
	out.Open("g", "class", "series "+s.ID+"-curve")
	out.AddText("title", name)
	out.WriteByte('\n')
}

func (s style) end(out *svg.Drawing) { out.WriteString("</g>\n") }

const (
	markers = 6         // of a curve
	golden  = 0.6180340 // its multiples, without their whole parts, are far from each other
)

// line draws a curve with its markers; nothing without one. Markers of different
// curves are at different heights.
func (s style) line(out *svg.Drawing, a axis, curve []float64) {
	if len(curve) == 0 {
		return
	}
	var points []string
	quantiles := Quantiles()
	for k, v := range curve[:min(len(curve), len(quantiles))] {
		points = append(points, out.Path(a.x(v), ",", y(quantiles[k])))
	}
	out.Add("polyline", "points", strings.Join(points, " "), "fill", "none", "stroke", s.Colour, "stroke-width", 2, "stroke-dasharray", s.Dash)
	_, shift := math.Modf(0.3 + golden*float64(s.number))
	for j := range markers {
		k := min(int((float64(j)+shift)/markers*200), len(curve)-1)
		out.Add("path", "d", out.Marker(s.kind(), a.x(curve[k]), y(quantiles[k]), 1.4), "fill", s.Colour)
	}
	out.WriteByte('\n')
}

// apart is how far curves may be from each other, in pixels, that look like one.
const apart = 3

// same says which results have curves that lie on each other.
func same(results []*sim.Result, a axis) (out []string) {
	near := func(v, w float64) bool { return math.Abs(a.x(v)-a.x(w)) <= apart }
	told := map[int]bool{}
	for i, r := range results {
		names := []string{r.Policy}
		for k := i + 1; k < len(results); k++ {
			if !told[i] && !told[k] && len(r.Curve) > 0 && slices.EqualFunc(r.Curve, results[k].Curve, near) {
				told[k] = true
				names = append(names, results[k].Policy)
			}
		}
		if last := len(names) - 1; last > 0 {
			out = append(out, "The curves of "+strings.Join(names[:last], ", ")+" and "+names[last]+" lie on each other.")
		}
	}
	return out
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

// grid draws the axes: parts of what has latencies, and latencies.
func grid(out *svg.Drawing, a axis, of string) {
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
	out.AddText("text", "latency (logarithmic scale)", "x", (left+width-right)/2, "y", height-6, "text-anchor", "middle")
	middle := y(0.5)
	out.AddText("text", "part of the "+of, "transform", out.Path("rotate(-90 ", 16.0, " ", middle, ")"), "x", 16.0, "y", middle, "text-anchor", "middle")
	out.WriteByte('\n')
}
