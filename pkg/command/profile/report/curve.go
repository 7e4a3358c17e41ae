package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

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
	var b strings.Builder
	open(&b, plotLeft+plotWide+plotRight, plotTop+plotHigh+plotBottom, p.title+" over "+label)
	p.axes(&b, axis(rows, over))
	if objective {
		y := p.y(s.Goal.SLOMS)
		fmt.Fprintf(&b, `<path class="slo" d="M%s %sH%s"/>`, px(plotLeft), px(y), px(plotLeft+plotWide))
		text(&b, plotLeft+plotWide, y-4, "end", "slo", "objective")
	}
	for i, batch := range s.batches() {
		p.line(&b, i, slices.DeleteFunc(slices.Clone(rows), func(r profile.Row) bool { return float64(r.Batch) != batch }), m, over)
	}
	if c := s.Choice; c.OK && slices.ContainsFunc(rows, func(r profile.Row) bool { return r.Config == c.Row.Config }) {
		fmt.Fprintf(&b, `<circle class="chosen" cx="%s" cy="%s" r="7"/>`, px(p.x(over(c.Row))), px(p.y(m.of(c.Row))))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (p plot) axes(b *strings.Builder, values []float64) {
	text(b, plotLeft, 14, "start", "cap", p.title)
	text(b, plotLeft+plotWide/2, plotTop+plotHigh+30, "middle", "", p.label)
	for _, v := range ticks(math.Exp(p.low), math.Exp(p.high)) {
		fmt.Fprintf(b, `<path class="grid" d="M%s %sH%s"/>`, px(plotLeft), px(p.y(v)), px(plotLeft+plotWide))
		text(b, plotLeft-6, p.y(v)+4, "end", "", number.Metric(v))
	}
	last := math.Inf(-1)
	for _, v := range values {
		if x := p.x(v); x-last >= 26 {
			text(b, x, plotTop+plotHigh+14, "middle", "", number.Plain(v))
			last = x
		}
	}
	fmt.Fprintf(b, `<path class="axis" d="M%s %sV%sH%s"/>`, px(plotLeft), px(plotTop), px(plotTop+plotHigh), px(plotLeft+plotWide))
}

// ticks are round numbers between two positive ones: powers of ten times 1, 2
// and 5, fewer when there are many.
func ticks(low, high float64) (out []float64) {
	for _, steps := range [][]float64{{1, 2, 3, 4, 5, 6, 7, 8, 9}, {1, 2, 5}, {1}} {
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
	return out
}

func (p plot) line(b *strings.Builder, i int, rows []profile.Row, m metric, over func(profile.Row) float64) {
	var d strings.Builder
	for k, r := range rows {
		fmt.Fprintf(&d, "%s%s %s", []string{"M", "L"}[min(k, 1)], px(p.x(over(r))), px(p.y(m.of(r))))
	}
	fmt.Fprintf(b, `<path class="line %s" d="%s"/>`, line(i), d.String())
	for _, r := range rows {
		fmt.Fprintf(b, `<path class="%s" d="%s"><title>%s</title></path>`, line(i), marker(i, p.x(over(r)), p.y(m.of(r))), escape(tip(r)))
	}
}

// marker is the outline of the i-th kind of point.
func marker(i int, x, y float64) string {
	switch i % 4 {
	case 0:
		return fmt.Sprintf("M%s %sa3 3 0 1 0 6 0a3 3 0 1 0 -6 0z", px(x-3), px(y))
	case 1:
		return fmt.Sprintf("M%s %sh5.4v5.4h-5.4z", px(x-2.7), px(y-2.7))
	case 2:
		return fmt.Sprintf("M%s %sl3.6 6.2h-7.2z", px(x), px(y-3.8))
	}
	return fmt.Sprintf("M%s %sl3.8 3.8l-3.8 3.8l-3.8 -3.8z", px(x), px(y-3.8))
}
