package report

import (
	"fmt"
	"math"

	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/profile"
)

// scale maps a metric to a colour, by its logarithm.
type scale struct {
	low, high float64 // logs
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

// part is where a value lies between the worst (0) and the best (1).
func (s scale) part(v float64) float64 {
	part := 0.5
	if s.high > s.low {
		part = (math.Log(v) - s.low) / (s.high - s.low)
	}
	if s.metric.low {
		part = 1 - part
	}
	return part
}

const (
	cellHigh  = 20.0
	leftRoom  = 42.0 // for the quotas
	lowerRoom = 34.0 // for the SM shares
	upperRoom = 22.0 // for the title
)

// heat draws a metric over SM share (to the right) and quota (upwards) at a
// batch. Configurations that miss the objective are crossed out, holes are
// empty, the chosen one has a frame. With tips the pointer shows a cell's row.
func (s Section) heat(m metric, batch int, tips bool) string {
	sms, quotas, table := s.sms(), s.quotas(), s.table()
	colours := newScale(s.Rows, m)
	wide := min(max(math.Floor(400/float64(len(sms))), 18), 56)
	width, height := leftRoom+wide*float64(len(sms))+8, upperRoom+cellHigh*float64(len(quotas))+lowerRoom
	b := drawing(width, height, fmt.Sprintf("%s at batch %d", m.name, batch))
	caption(b, leftRoom, 14, "start", "cap", fmt.Sprintf("batch %d", batch))
	var frame []any
	for j, q := range quotas {
		y := upperRoom + cellHigh*float64(len(quotas)-1-j)
		caption(b, leftRoom-6, y+14, "end", "", number.Trimmed(q, 3))
		for i, sm := range sms {
			x := leftRoom + wide*float64(i)
			r, ok := table[profile.Config{SMPct: sm, Quota: q, Batch: batch}]
			if !ok || m.of(r) <= 0 {
				b.Add("rect", "class", "hole", "x", x, "y", y, "width", wide-1, "height", cellHigh-1)
				continue
			}
			class, text := level(colours.part(m.of(r)))
			rect := []any{"class", class, "x", x, "y", y, "width", wide - 1, "height", cellHigh - 1}
			if tips {
				b.AddTitled("rect", tip(r), rect...)
			} else {
				b.Add("rect", rect...)
			}
			if !s.Goal.Meets(r) {
				b.Add("path", "class", "miss", "d", b.Path("M", x+1, " ", y+cellHigh-2, "l", wide-3, " ", 3-cellHigh))
			}
			if wide >= 28 {
				caption(b, x+(wide-1)/2, y+13.5, "middle", text, number.Metric(m.of(r)))
			}
			if s.Choice.OK && s.Choice.Row.Config == r.Config {
				frame = []any{"class", "chosen", "x", x - 1, "y", y - 1, "width", wide + 1, "height", cellHigh + 1}
			}
		}
	}
	if frame != nil {
		b.Add("rect", frame...)
	}
	under := height - lowerRoom
	widest := 26.0
	for _, sm := range sms {
		widest = max(widest, 7*float64(len(number.Trimmed(sm, 2)))+4)
	}
	every := int(math.Ceil(widest / wide))
	for i, sm := range sms {
		if i%every == 0 {
			caption(b, leftRoom+wide*float64(i)+wide/2, under+13, "middle", "", number.Trimmed(sm, 2))
		}
	}
	caption(b, leftRoom+wide*float64(len(sms))/2, under+29, "middle", "", "SM share, %")
	b.AddText("text", "quota", "transform", b.Path("translate(11 ", upperRoom+cellHigh*float64(len(quotas))/2, ") rotate(-90)"), "text-anchor", "middle")
	return end(b)
}

// tip is what the pointer shows of a cell.
func tip(r profile.Row) string {
	t := fmt.Sprintf("sm_pct %s, quota %s, batch %d: %s requests/s, p95 %s ms, efficacy %s", number.Plain(r.SMPct), number.Plain(r.Quota), r.Batch,
		number.Metric(r.ThroughputRPS), number.Metric(r.P95MS), number.Metric(r.Efficacy()))
	if r.Errors > 0 {
		t += fmt.Sprintf(", %d errors", r.Errors)
	}
	if r.Unstable > 0 {
		t += ", unstable"
	}
	return t
}
