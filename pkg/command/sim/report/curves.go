package report

import (
	"fmt"
	"html"
	"math"
	"strings"

	"github.com/gfaas/gfaas/pkg/sim"
)

// Lengths of the picture, in pixels.
const (
	width, height          = 960.0, 420.0
	left, right, top, base = 56.0, 16.0, 12.0, 44.0
)

// shortest is the least latency the axis shows, in ms: it is logarithmic.
const shortest = 0.1

// axis is a logarithmic scale of latency.
type axis struct{ low, high float64 }

func axisOf(results []*sim.Result) axis {
	a := axis{math.Inf(1), 0}
	for _, r := range results {
		for _, v := range r.Curve {
			a.low, a.high = min(a.low, max(v, shortest)), max(a.high, v)
		}
	}
	if math.IsInf(a.low, 1) {
		a.low = 1
	}
	a.high = max(a.high, a.low*10)
	return a
}

// part is how far along the axis a latency is, 0 to 1.
func (a axis) part(v float64) float64 { return math.Log(max(v, a.low)/a.low) / math.Log(a.high/a.low) }

func (a axis) x(v float64) float64 { return left + a.part(v)*(width-left-right) }

func y(quantile float64) float64 { return height - base - quantile*(height-top-base) }

// curves draws for each policy which part of all invocations took at most how
// long.
func curves(results []*sim.Result) string {
	var out strings.Builder
	a := axisOf(results)
	fmt.Fprintf(&out, `<svg viewBox="0 0 %g %g" role="img" aria-label="Distributions of latency">`+"\n", width, height)
	grid(&out, a)
	for i, r := range results {
		s := styleOf(i)
		var points []string
		for k, q := range Quantiles() {
			if k < len(r.Curve) {
				points = append(points, fmt.Sprintf("%.1f,%.1f", a.x(r.Curve[k]), y(q)))
			}
		}
		fmt.Fprintf(&out, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2" stroke-dasharray="%s"><title>%s</title></polyline>`+"\n",
			strings.Join(points, " "), s.Colour, s.Dash, html.EscapeString(r.Policy))
	}
	out.WriteString("</svg>")
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
func grid(out *strings.Builder, a axis) {
	for _, q := range []float64{0, 0.25, 0.5, 0.75, 0.95, 1} {
		fmt.Fprintf(out, `<line class="grid" x1="%g" x2="%g" y1="%.1f" y2="%.1f"/>`, left, width-right, y(q), y(q))
		fmt.Fprintf(out, `<text x="%g" y="%.1f" text-anchor="end">%g%%</text>`+"\n", left-8, y(q)+4, 100*q)
	}
	for _, v := range a.ticks() {
		fmt.Fprintf(out, `<line class="grid" x1="%.1f" x2="%.1f" y1="%g" y2="%g"/>`, a.x(v), a.x(v), top, height-base)
		fmt.Fprintf(out, `<text x="%.1f" y="%g" text-anchor="middle">%s</text>`+"\n", a.x(v), height-base+18, human(v))
	}
	fmt.Fprintf(out, `<text x="%g" y="%g" text-anchor="middle">latency (logarithmic)</text>`+"\n", (left+width-right)/2, height-6)
}
