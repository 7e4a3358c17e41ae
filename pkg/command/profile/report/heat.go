package report

import (
	"fmt"
	"math"

	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/profile"
)

// scale maps a metric's values to colours by their logarithms.
type scale struct {
	low, high float64 // logarithms
	metric    metric
}

func newScale(rows []profile.Row, m metric) scale {
	s := scale{math.Inf(1), math.Inf(-1), m}
	for _, r := range rows {
		if v := m.of(r); v > 0 {
			s.low, s.high = min(s.low, math.Log(v)), max(s.high, math.Log(v))
		}
	}
	return s
}

// fraction returns the position of a value between the worst (0) and the best (1).
func (s scale) fraction(v float64) float64 {
	position := 0.5
	if s.high > s.low {
		position = (math.Log(v) - s.low) / (s.high - s.low)
	}
	if s.metric.lowerIsBetter {
		position = 1 - position
	}
	return position
}

const (
	cellHeight   = 20.0
	leftMargin   = 42.0 // labels of the quotas
	bottomMargin = 34.0 // labels of the SM shares
	topMargin    = 22.0 // title
)

// heat draws a metric at a batch size over SM share (x) and quota (y). It crosses out configurations that
// miss the objective, frames the chosen configuration, and leaves cells without a measurement empty. With
// tips, each cell has a tooltip with its row.
func (s Section) heat(m metric, batch int, tips bool) string {
	sms, quotas, table := s.sms(), s.quotas(), s.table()
	colours := newScale(s.Rows, m)
	cellWidth := min(max(math.Floor(400/float64(len(sms))), 18), 56)
	width, height := leftMargin+cellWidth*float64(len(sms))+8, topMargin+cellHeight*float64(len(quotas))+bottomMargin
	b := drawing(width, height, fmt.Sprintf("%s at batch %d", m.name, batch))
	caption(b, leftMargin, 14, "start", "cap", fmt.Sprintf("batch %d", batch))
	var frame []any
	for j, q := range quotas {
		y := topMargin + cellHeight*float64(len(quotas)-1-j)
		caption(b, leftMargin-6, y+14, "end", "", number.Trimmed(q, 3))
		for i, sm := range sms {
			x := leftMargin + cellWidth*float64(i)
			r, ok := table[profile.Config{SMPct: sm, Quota: q, Batch: batch}]
			if !ok || m.of(r) <= 0 {
				b.Add("rect", "class", "hole", "x", x, "y", y, "width", cellWidth-1, "height", cellHeight-1)
				continue
			}
			class, text := level(colours.fraction(m.of(r)))
			rect := []any{"class", class, "x", x, "y", y, "width", cellWidth - 1, "height", cellHeight - 1}
			if tips {
				b.AddTitled("rect", tip(r), rect...)
			} else {
				b.Add("rect", rect...)
			}
			if !s.Goal.Meets(r) {
				b.Add("path", "class", "miss", "d", b.Path("M", x+1, " ", y+cellHeight-2, "l", cellWidth-3, " ", 3-cellHeight))
			}
			if cellWidth >= 28 {
				caption(b, x+(cellWidth-1)/2, y+13.5, "middle", text, number.Metric(m.of(r)))
			}
			if s.Choice.OK && s.Choice.Row.Config == r.Config {
				frame = []any{"class", "chosen", "x", x - 1, "y", y - 1, "width", cellWidth + 1, "height", cellHeight + 1}
			}
		}
	}
	if frame != nil {
		b.Add("rect", frame...)
	}
	bottom := height - bottomMargin
	widest := 26.0
	for _, sm := range sms {
		widest = max(widest, 7*float64(len(number.Trimmed(sm, 2)))+4)
	}
	every := int(math.Ceil(widest / cellWidth))
	for i, sm := range sms {
		if i%every == 0 {
			caption(b, leftMargin+cellWidth*float64(i)+cellWidth/2, bottom+13, "middle", "", number.Trimmed(sm, 2))
		}
	}
	caption(b, leftMargin+cellWidth*float64(len(sms))/2, bottom+29, "middle", "", "SM share, %")
	b.AddText("text", "quota", "transform", b.Path("translate(11 ", topMargin+cellHeight*float64(len(quotas))/2, ") rotate(-90)"), "text-anchor", "middle")
	return end(b)
}

// tip returns the tooltip of a row.
func tip(r profile.Row) string {
	t := fmt.Sprintf("sm_pct %s, quota %s, batch %d: %s requests/s, p95 %s ms, %s requests/s per whole GPU", number.Plain(r.SMPct), number.Plain(r.Quota), r.Batch,
		number.Metric(r.ThroughputRPS), number.Metric(r.P95MS), number.Metric(r.Efficacy()))
	if r.Errors > 0 {
		t += fmt.Sprintf(", %d errors", r.Errors)
	}
	if r.Unstable > 0 {
		t += ", unstable"
	}
	return t
}
