package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/command/svg"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/profile"
)

const (
	mostLoads = 3    // configurations whose latency is drawn over the load
	beyond    = 1.6  // times the objective: how far the queue's curve is followed
	kneeSteps = 80   // of that curve
	aside     = 1.05 // times the largest rate: where the picture ends
)

// underLoad are the configurations whose latency is drawn over the load: those
// whose goodput was measured or tried, the chosen one first, then those of the
// most goodput a whole GPU.
func (s Section) underLoad() []profile.Row {
	rows := slices.DeleteFunc(slices.Clone(s.Rows), func(r profile.Row) bool {
		return r.SLOMS <= 0 || r.ThroughputRPS <= 0 || r.GoodputRPS <= 0 && len(s.trialsOf(r)) == 0
	})
	worth := func(r profile.Row) float64 {
		if s.Choice.OK && r.Config == s.Choice.Row.Config {
			return math.Inf(1)
		}
		return r.GoodputRPS / (r.SMPct * r.Quota)
	}
	slices.SortStableFunc(rows, func(a, b profile.Row) int { return cmp.Compare(worth(b), worth(a)) })
	return rows[:min(len(rows), mostLoads)]
}

// trialsOf are those of the row's configuration for its objective.
func (s Section) trialsOf(r profile.Row) (out []profile.Trial) {
	for _, t := range s.Trials {
		if t.Config == r.Config && t.SLOMS == r.SLOMS {
			out = append(out, t)
		}
	}
	return out
}

// load draws p95 over the rate of Poisson arrivals: what was measured at rest and
// at the trials, the objective, and the goodput, where they meet.
func (s Section) load(r profile.Row) string {
	trials := s.trialsOf(r)
	p := plot{title: "p95 latency, ms", label: "requests offered a second", most: max(r.ThroughputRPS, r.GoodputRPS+r.GoodputCIRPS), low: math.Log(r.SLOMS), high: math.Log(r.SLOMS * beyond)}
	see := func(rps, ms float64) {
		p.most = max(p.most, rps)
		if ms > 0 {
			p.low, p.high = min(p.low, math.Log(ms)), max(p.high, math.Log(ms))
		}
	}
	see(0, r.IdleP95MS)
	for _, t := range trials {
		see(t.OfferedRPS, t.P95MS)
	}
	p.most *= aside
	room := max(0.08*(p.high-p.low), 0.05)
	p.low, p.high = p.low-room, p.high+room
	b := drawing(plotLeft+plotWide+plotRight, plotTop+plotHigh+plotBottom, "p95 latency over the load at "+config(r))
	p.axes(b)
	caption(b, plotLeft+plotWide, 14, "end", "", config(r))
	p.line(b, "slo", "", [2]float64{0, r.SLOMS}, [2]float64{p.most, r.SLOMS})
	caption(b, plotLeft+4, p.y(r.SLOMS)-4, "start", "slo", "objective "+number.Metric(r.SLOMS)+" ms")
	p.line(b, "most", fmt.Sprintf("throughput when each waits for the one before: %s requests/s", number.Metric(r.ThroughputRPS)),
		[2]float64{r.ThroughputRPS, math.Exp(p.low)}, [2]float64{r.ThroughputRPS, math.Exp(p.high)})
	if r.GoodputRPS > 0 {
		p.line(b, "queue", "a queue with this latency at rest and this goodput", p.queue(r)...)
	}
	if r.IdleP95MS > 0 {
		b.AddTitled("path", fmt.Sprintf("alone: p95 %s ms", number.Metric(r.IdleP95MS)), "class", "within", "d", b.Marker(3, p.x(0), p.y(r.IdleP95MS), 1.2))
	}
	for _, t := range trials {
		p.trial(b, t)
	}
	if r.GoodputRPS > 0 {
		x, y := p.x(r.GoodputRPS), p.y(r.SLOMS)
		if half := r.GoodputCIRPS; half > 0 {
			p.line(b, "spread", "", [2]float64{max(0, r.GoodputRPS-half), r.SLOMS}, [2]float64{r.GoodputRPS + half, r.SLOMS})
		}
		p.line(b, "knee", "", [2]float64{r.GoodputRPS, r.SLOMS}, [2]float64{r.GoodputRPS, math.Exp(p.low)})
		b.AddTitled("circle", fmt.Sprintf("goodput: %s requests/s with p95 within %s ms", number.Metric(r.GoodputRPS), number.Metric(r.SLOMS)), "class", "chosen", "cx", x, "cy", y, "r", 7)
		anchor, shift := "end", -6.0
		if x < plotLeft+plotWide/2 {
			anchor, shift = "start", 6
		}
		caption(b, x+shift, plotTop+plotHigh-6, anchor, "cap", "goodput "+number.Metric(r.GoodputRPS)+"/s")
	}
	return end(b)
}

// config names a configuration.
func config(r profile.Row) string {
	return fmt.Sprintf("SM %s%%, quota %s, batch %d", number.Trimmed(r.SMPct, 2), number.Trimmed(r.Quota, 3), r.Batch)
}

// line draws a line through points: loads and latencies.
func (p plot) line(b *svg.Drawing, class, title string, points ...[2]float64) {
	d := ""
	for i, at := range points {
		d += b.Path([]string{"M", "L"}[min(i, 1)], p.x(at[0]), " ", p.y(at[1]))
	}
	if title == "" {
		b.Add("path", "class", class, "d", d)
		return
	}
	b.AddTitled("path", title, "class", class, "d", d)
}

// queue is the curve of a queue whose waits grow as u/(1-u), u being its
// utilization, from the row's latency at rest through its goodput (see package
// goodput); nothing where the row does not tell one.
func (p plot) queue(r profile.Row) (points [][2]float64) {
	capacity, rest := max(r.ThroughputRPS, 1.001*r.GoodputRPS), r.IdleP95MS
	if rest <= 0 || rest >= r.SLOMS {
		return nil
	}
	odds := func(rps float64) float64 { return rps / (capacity - rps) }
	slack := (r.SLOMS - rest) / odds(r.GoodputRPS)
	top := beyond*r.SLOMS - rest
	last := capacity * top / (top + slack) // where the wait is that
	for i := range kneeSteps + 1 {
		rps := last * float64(i) / kneeSteps
		points = append(points, [2]float64{rps, rest + slack*odds(rps)})
	}
	return points
}

// trial draws one: a point with the confidence interval of its p95, at the top
// where there is none.
func (p plot) trial(b *svg.Drawing, t profile.Trial) {
	class, kind := "within", 0
	if t.P95MS == 0 || t.P95MS > t.SLOMS {
		class, kind = "over", 2
	}
	says := fmt.Sprintf("at %s requests/s: %d of %d took longer than %s ms", number.Metric(t.OfferedRPS), t.Misses, t.Samples, number.Metric(t.SLOMS))
	ms := math.Exp(p.high)
	if t.P95MS > 0 {
		ms = t.P95MS
		says += fmt.Sprintf(", p95 %s ms", number.Metric(ms))
		if half := min(t.P95CIMS, ms-math.Exp(p.low)); half > 0 {
			says += fmt.Sprintf(" ± %s", number.Metric(t.P95CIMS))
			p.line(b, "spread", "", [2]float64{t.OfferedRPS, ms - half}, [2]float64{t.OfferedRPS, min(ms+half, math.Exp(p.high))})
		}
	}
	b.AddTitled("path", says, "class", class, "d", b.Marker(kind, p.x(t.OfferedRPS), p.y(ms), 1.2))
}
