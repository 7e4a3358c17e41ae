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
	plotWide, plotHigh                       = 300.0, 190.0
	plotLeft, plotTop, plotRight, plotBottom = 52.0, 22.0, 16.0, 34.0
)

// plot is a chart of a metric over a dimension: x is linear from 0, y is
// logarithmic.
type plot struct {
	title string
	label string // of x
	most  float64
	low   float64 // logs of y
	high  float64
}

func (p plot) x(v float64) float64 { return plotLeft + plotWide*v/p.most }
func (p plot) y(v float64) float64 {
	return plotTop + plotHigh*(1-(math.Log(v)-p.low)/(p.high-p.low))
}

// curve draws a metric, for each batch a line, over a dimension of the rows
// that are kept.
func (s Section) curve(m metric, label string, over func(profile.Row) float64, keep func(profile.Row) bool) string {
	rows := slices.DeleteFunc(slices.Clone(s.Rows), func(r profile.Row) bool { return m.of(r) <= 0 || !keep(r) })
	if len(rows) == 0 {
		return ""
	}
	slices.SortStableFunc(rows, func(a, b profile.Row) int { return cmp.Compare(over(a), over(b)) })
	p := plot{title: m.name + ", " + m.unit, label: label, low: math.Inf(1), high: math.Inf(-1)}
	for _, r := range rows {
		p.most, p.low, p.high = max(p.most, over(r)), min(p.low, math.Log(m.of(r))), max(p.high, math.Log(m.of(r)))
	}
	objective := m.low && s.Goal.SLOMS > 0
	if objective {
		p.low, p.high = min(p.low, math.Log(s.Goal.SLOMS)), max(p.high, math.Log(s.Goal.SLOMS))
	}
	room := max(0.05*(p.high-p.low), 0.05)
	p.low, p.high = p.low-room, p.high+room
	b := drawing(plotLeft+plotWide+plotRight, plotTop+plotHigh+plotBottom, p.title+" over "+label)
	p.axes(b)
	if objective {
		y := p.y(s.Goal.SLOMS)
		b.Add("path", "class", "slo", "d", b.Path("M", plotLeft, " ", y, "H", plotLeft+plotWide))
		caption(b, plotLeft+plotWide, y-4, "end", "slo", "objective "+number.Metric(s.Goal.SLOMS)+" ms")
	}
	for i, batch := range s.batches() {
		p.rows(b, i, slices.DeleteFunc(slices.Clone(rows), func(r profile.Row) bool { return float64(r.Batch) != batch }), m, over)
	}
	if c := s.Choice; c.OK && slices.ContainsFunc(rows, func(r profile.Row) bool { return r.Config == c.Row.Config }) {
		b.Add("circle", "class", "chosen", "cx", p.x(over(c.Row)), "cy", p.y(m.of(c.Row)), "r", 7)
	}
	return end(b)
}

func (p plot) axes(b *svg.Drawing) {
	caption(b, plotLeft, 14, "start", "cap", p.title)
	caption(b, plotLeft+plotWide/2, plotTop+plotHigh+30, "middle", "", p.label)
	for _, v := range ticks(math.Exp(p.low), math.Exp(p.high)) {
		b.Add("path", "class", "grid", "d", b.Path("M", plotLeft, " ", p.y(v), "H", plotLeft+plotWide))
		caption(b, plotLeft-6, p.y(v)+4, "end", "", number.Metric(v))
	}
	for _, v := range rounds(0, p.most) {
		b.Add("path", "class", "axis", "d", b.Path("M", p.x(v), " ", plotTop+plotHigh, "v4"))
		caption(b, p.x(v), plotTop+plotHigh+15, "middle", "", number.Metric(v))
	}
	b.Add("path", "class", "axis", "d", b.Path("M", plotLeft, " ", plotTop, "V", plotTop+plotHigh, "H", plotLeft+plotWide))
}

// ticks are round numbers between two positive ones: powers of ten times 1, 2
// and 5, fewer when there are many, and as far apart as each other when they are
// few.
func ticks(low, high float64) (out []float64) {
	for _, steps := range [][]float64{{1, 2, 5}, {1}} {
		out = nil
		for e := math.Floor(math.Log10(low)); e <= math.Log10(high); e++ {
			for _, step := range steps {
				if v := step * math.Pow(10, e); v >= low && v <= high {
					out = append(out, v)
				}
			}
		}
		if len(out) <= 8 {
			break
		}
	}
	if len(out) < 3 {
		out = rounds(low, high)
	}
	return out
}

// mostRounds is how many numbers name a linear axis, at most.
const mostRounds = 6

// rounds are multiples of a round number between two numbers.
func rounds(low, high float64) (out []float64) {
	power := math.Pow(10, math.Floor(math.Log10(high-low))-1)
	for _, step := range []float64{1, 2, 5, 10, 20, 50, 100} {
		first, last := math.Ceil(low/(step*power)-1e-9)+0, math.Floor(high/(step*power)+1e-9)
		if last-first >= mostRounds {
			continue
		}
		for k := first; k <= last; k++ {
			out = append(out, k*step*power)
		}
		break
	}
	return out
}

// rows draws those of the i-th batch.
func (p plot) rows(b *svg.Drawing, i int, rows []profile.Row, m metric, over func(profile.Row) float64) {
	d := ""
	for k, r := range rows {
		d += b.Path([]string{"M", "L"}[min(k, 1)], p.x(over(r)), " ", p.y(m.of(r)))
	}
	b.Add("path", "class", "line "+line(i), "d", d)
	for _, r := range rows {
		b.AddTitled("path", tip(r), "class", line(i), "d", b.Marker(i, p.x(over(r)), p.y(m.of(r)), 1))
	}
}
