package report

import (
	"math"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/svg"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/sim"
)

// Lengths in the picture, in pixels.
const (
	width, height                                    = 960, 420
	marginLeft, marginRight, marginTop, marginBottom = 70, 24, 12, 44
)

// shortest is the least latency on the axis, in ms. The axis is logarithmic, so it has no 0.
const shortest = 0.1

// axis is a logarithmic axis of latency, from low to high, in ms.
type axis struct{ low, high float64 }

// axisOf returns an axis that covers all latencies of the curves.
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

// pixels formats a length.
func pixels(v float64) string { return number.Fixed(v, 1) }

// fraction returns the position of a latency on the axis, 0 to 1.
func (a axis) fraction(v float64) float64 {
	return math.Log(max(v, a.low)/a.low) / math.Log(a.high/a.low)
}

func (a axis) x(v float64) float64 { return marginLeft + a.fraction(v)*(width-marginLeft-marginRight) }

func y(quantile float64) float64 {
	return height - marginBottom - quantile*(height-marginTop-marginBottom)
}

// curves draws the distribution of latency for each policy: the fraction of invocations by
// latency.
func curves(results []*sim.Result, a axis) string {
	drawing := newDrawing("Distributions of latency", a, "invocations")
	for i, r := range results {
		s := styleOf(i)
		s.openGroup(drawing, r.Policy)
		s.drawCurve(drawing, a, r.Curve)
		s.closeGroup(drawing)
	}
	drawing.Close("svg")
	return drawing.String()
}

// newDrawing begins a drawing of distributions with its axes. It shows the fraction of the given things.
func newDrawing(label string, a axis, things string) *svg.Drawing {
	drawing := &svg.Drawing{Length: pixels}
	drawing.Open("svg", "viewBox", drawing.Path("0 0 ", width, " ", height), "role", "img", "aria-label", label)
	drawing.WriteByte('\n')
	grid(drawing, a, things)
	return drawing
}

// openGroup opens the group of a curve, with its name as a tooltip.
func (s style) openGroup(drawing *svg.Drawing, name string) {
	drawing.Open("g", "class", "series "+s.ID+"-curve")
	drawing.AddText("title", name)
	drawing.WriteByte('\n')
}

func (s style) closeGroup(drawing *svg.Drawing) { drawing.WriteString("</g>\n") }

const (
	markers = 6         // per curve
	golden  = 0.6180340 // fractional parts of its multiples are far from each other
)

// drawCurve draws a curve with its markers, unless it is empty. Markers of different curves are at
// different heights.
func (s style) drawCurve(drawing *svg.Drawing, a axis, curve []float64) {
	if len(curve) == 0 {
		return
	}
	var points []string
	quantiles := Quantiles()
	for k, v := range curve[:min(len(curve), len(quantiles))] {
		points = append(points, drawing.Path(a.x(v), ",", y(quantiles[k])))
	}
	drawing.Add("polyline", "points", strings.Join(points, " "), "fill", "none", "stroke", s.Colour, "stroke-width", 2, "stroke-dasharray", s.Dash)
	_, shift := math.Modf(0.3 + golden*float64(s.number))
	for j := range markers {
		k := min(int((float64(j)+shift)/markers*200), len(curve)-1)
		drawing.Add("path", "d", drawing.Marker(s.shape(), a.x(curve[k]), y(quantiles[k]), 1.4), "fill", s.Colour)
	}
	drawing.WriteByte('\n')
}

// maxDistance is the largest distance, in pixels, between curves that look alike.
const maxDistance = 3

// same returns a sentence for each set of policies whose curves overlap.
func same(results []*sim.Result, a axis) (sentences []string) {
	near := func(v, w float64) bool { return math.Abs(a.x(v)-a.x(w)) <= maxDistance }
	listed := map[int]bool{}
	for i, r := range results {
		names := []string{r.Policy}
		for k := i + 1; k < len(results); k++ {
			if !listed[i] && !listed[k] && len(r.Curve) > 0 && slices.EqualFunc(r.Curve, results[k].Curve, near) {
				listed[k] = true
				names = append(names, results[k].Policy)
			}
		}
		if last := len(names) - 1; last > 0 {
			sentences = append(sentences, "The curves of "+strings.Join(names[:last], ", ")+" and "+names[last]+" overlap.")
		}
	}
	return sentences
}

// ticks returns the latencies to label on the axis: powers of ten and, if there are few, 2 and 5
// times these.
func (a axis) ticks() []float64 {
	steps := []float64{1}
	if a.high < a.low*1e3 {
		steps = []float64{1, 2, 5}
	}
	var values []float64
	for power := math.Pow(10, math.Floor(math.Log10(a.low))); power <= a.high; power *= 10 {
		for _, step := range steps {
			if v := power * step; v >= a.low*(1-1e-9) && v <= a.high*(1+1e-9) {
				values = append(values, v)
			}
		}
	}
	return values
}

// grid draws the axes: the fraction of requests or invocations, and the latency.
func grid(drawing *svg.Drawing, a axis, of string) {
	for _, q := range []float64{0, 0.25, 0.5, 0.75, 0.95, 1} {
		drawing.Add("line", "class", "grid", "x1", marginLeft, "x2", width-marginRight, "y1", y(q), "y2", y(q))
		drawing.AddText("text", number.Plain(100*q)+"%", "x", marginLeft-8, "y", y(q)+4, "text-anchor", "end")
		drawing.WriteByte('\n')
	}
	for _, v := range a.ticks() {
		drawing.Add("line", "class", "grid", "x1", a.x(v), "x2", a.x(v), "y1", marginTop, "y2", height-marginBottom)
		drawing.AddText("text", formatMS(v), "x", a.x(v), "y", height-marginBottom+18, "text-anchor", "middle")
		drawing.WriteByte('\n')
	}
	drawing.AddText("text", "latency (logarithmic scale)", "x", (marginLeft+width-marginRight)/2, "y", height-6, "text-anchor", "middle")
	middle := y(0.5)
	drawing.AddText("text", "percentage of "+of, "transform", drawing.Path("rotate(-90 ", 16.0, " ", middle, ")"), "x", 16.0, "y", middle, "text-anchor", "middle")
	drawing.WriteByte('\n')
}
