package report

import (
	"cmp"
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/command/svg"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/profile"
)

const (
	plotWidth, plotHeight                    = 300.0, 190.0
	plotLeft, plotTop, plotRight, plotBottom = 52.0, 22.0, 16.0, 34.0
)

// plot is a chart of a metric (y, logarithmic) over a dimension (x, linear from 0).
type plot struct {
	title string
	label string  // of the x axis
	xMax  float64 // end of the x axis
	low   float64 // range of the y axis, as logarithms
	high  float64
}

func (p plot) x(v float64) float64 { return plotLeft + plotWidth*v/p.xMax }
func (p plot) y(v float64) float64 {
	return plotTop + plotHeight*(1-(math.Log(v)-p.low)/(p.high-p.low))
}

// curve draws a metric over a dimension, with one line per batch size. It draws the rows for which include
// returns true.
func (s Section) curve(m metric, label string, dimension func(profile.Row) float64, include func(profile.Row) bool) string {
	rows := slices.DeleteFunc(slices.Clone(s.Rows), func(r profile.Row) bool { return m.of(r) <= 0 || !include(r) })
	if len(rows) == 0 {
		return ""
	}
	slices.SortStableFunc(rows, func(a, b profile.Row) int { return cmp.Compare(dimension(a), dimension(b)) })
	p := plot{title: m.title(), label: label, low: math.Inf(1), high: math.Inf(-1)}
	for _, r := range rows {
		p.xMax, p.low, p.high = max(p.xMax, dimension(r)), min(p.low, math.Log(m.of(r))), max(p.high, math.Log(m.of(r)))
	}
	objective := m.lowerIsBetter && s.Goal.SLOMS > 0
	if objective {
		p.low, p.high = min(p.low, math.Log(s.Goal.SLOMS)), max(p.high, math.Log(s.Goal.SLOMS))
	}
	room := max(0.05*(p.high-p.low), 0.05)
	p.low, p.high = p.low-room, p.high+room
	b := drawing(plotLeft+plotWidth+plotRight, plotTop+plotHeight+plotBottom, p.title+" over "+label)
	p.axes(b)
	if objective {
		y := p.y(s.Goal.SLOMS)
		b.Add("path", "class", "slo", "d", b.Path("M", plotLeft, " ", y, "H", plotLeft+plotWidth))
		caption(b, plotLeft+plotWidth, y-4, "end", "slo", "objective "+number.Metric(s.Goal.SLOMS)+" ms")
	}
	for i, batch := range s.batches() {
		p.rows(b, i, slices.DeleteFunc(slices.Clone(rows), func(r profile.Row) bool { return float64(r.Batch) != batch }), m, dimension)
	}
	if c := s.Choice; c.OK && slices.ContainsFunc(rows, func(r profile.Row) bool { return r.Config == c.Row.Config }) {
		b.Add("circle", "class", "chosen", "cx", p.x(dimension(c.Row)), "cy", p.y(m.of(c.Row)), "r", 7)
	}
	return end(b)
}

func (p plot) axes(b *svg.Drawing) {
	caption(b, plotLeft, 14, "start", "cap", p.title)
	caption(b, plotLeft+plotWidth/2, plotTop+plotHeight+30, "middle", "", p.label)
	for _, v := range ticks(math.Exp(p.low), math.Exp(p.high)) {
		b.Add("path", "class", "grid", "d", b.Path("M", plotLeft, " ", p.y(v), "H", plotLeft+plotWidth))
		caption(b, plotLeft-6, p.y(v)+4, "end", "", number.Metric(v))
	}
	for _, v := range rounds(0, p.xMax) {
		b.Add("path", "class", "axis", "d", b.Path("M", p.x(v), " ", plotTop+plotHeight, "v4"))
		caption(b, p.x(v), plotTop+plotHeight+15, "middle", "", number.Metric(v))
	}
	b.Add("path", "class", "axis", "d", b.Path("M", plotLeft, " ", plotTop, "V", plotTop+plotHeight, "H", plotLeft+plotWidth))
}

// ticks returns round numbers between two positive numbers: powers of ten times 1, 2 and 5. If those are
// too many, it returns only powers of ten; if too few, equidistant numbers.
func ticks(low, high float64) (values []float64) {
	for _, steps := range [][]float64{{1, 2, 5}, {1}} {
		values = nil
		for e := math.Floor(math.Log10(low)); e <= math.Log10(high); e++ {
			for _, step := range steps {
				if v := step * math.Pow(10, e); v >= low && v <= high {
					values = append(values, v)
				}
			}
		}
		if len(values) <= 8 {
			break
		}
	}
	if len(values) < 3 {
		values = rounds(low, high)
	}
	return values
}

// mostRounds limits the number of labels on a linear axis.
const mostRounds = 6

// rounds returns the multiples of a round number in an interval.
func rounds(low, high float64) (values []float64) {
	power := math.Pow(10, math.Floor(math.Log10(high-low))-1)
	for _, step := range []float64{1, 2, 5, 10, 20, 50, 100} {
		first, last := math.Ceil(low/(step*power)-1e-9)+0, math.Floor(high/(step*power)+1e-9)
		if last-first >= mostRounds {
			continue
		}
		for k := first; k <= last; k++ {
			values = append(values, k*step*power)
		}
		break
	}
	return values
}

// rows draws the line and the markers of the i-th batch size.
func (p plot) rows(b *svg.Drawing, i int, rows []profile.Row, m metric, dimension func(profile.Row) float64) {
	d := ""
	for k, r := range rows {
		d += b.Path([]string{"M", "L"}[min(k, 1)], p.x(dimension(r)), " ", p.y(m.of(r)))
	}
	b.Add("path", "class", "line "+line(i), "d", d)
	for _, r := range rows {
		b.AddTitled("path", tip(r), "class", line(i), "d", b.Marker(i, p.x(dimension(r)), p.y(m.of(r)), 1))
	}
}
