package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/command/svg"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/profile"
)

const (
	mostLoads = 3    // configurations with a chart of latency over load
	beyond    = 1.6  // end of the queueing curve, as a multiple of the objective
	kneeSteps = 80   // line segments of that curve
	aside     = 1.05 // end of the x axis, as a multiple of the highest rate
)

// underLoad returns up to mostLoads configurations for charts of latency over load: the chosen one first,
// then others in descending order of goodput per whole GPU. Each has a measured goodput or trials for it.
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

// trialsOf returns the trials of the row's configuration for the row's objective.
func (s Section) trialsOf(r profile.Row) []profile.Trial {
	return lists.Filter(s.Trials, func(t profile.Trial) bool { return t.Config == r.Config && t.SLOMS == r.SLOMS })
}

// load draws the p95 latency over the rate of Poisson arrivals: the latency at rest, the trials, the
// objective, and the goodput, at which the latency reaches the objective.
func (s Section) load(r profile.Row) string {
	trials := s.trialsOf(r)
	p := plot{title: "p95 latency, ms", label: "offered load, requests/s", xMax: max(r.ThroughputRPS, r.GoodputRPS+r.GoodputCIRPS), low: math.Log(r.SLOMS), high: math.Log(r.SLOMS * beyond)}
	cover := func(rps, ms float64) {
		p.xMax = max(p.xMax, rps)
		if ms > 0 {
			p.low, p.high = min(p.low, math.Log(ms)), max(p.high, math.Log(ms))
		}
	}
	cover(0, r.IdleP95MS)
	for _, t := range trials {
		cover(t.OfferedRPS, t.P95MS)
	}
	p.xMax *= aside
	room := max(0.08*(p.high-p.low), 0.05)
	p.low, p.high = p.low-room, p.high+room
	b := drawing(plotLeft+plotWidth+plotRight, plotTop+plotHeight+plotBottom, "p95 latency over the load at "+config(r))
	p.axes(b)
	caption(b, plotLeft+plotWidth, 14, "end", "", config(r))
	p.line(b, "slo", "", [2]float64{0, r.SLOMS}, [2]float64{p.xMax, r.SLOMS})
	caption(b, plotLeft+4, p.y(r.SLOMS)-4, "start", "slo", "objective "+number.Metric(r.SLOMS)+" ms")
	p.line(b, "most", fmt.Sprintf("measured throughput: %s requests/s", number.Metric(r.ThroughputRPS)),
		[2]float64{r.ThroughputRPS, math.Exp(p.low)}, [2]float64{r.ThroughputRPS, math.Exp(p.high)})
	if r.GoodputRPS > 0 {
		p.line(b, "queue", "model: a queue with this latency at rest and this goodput", p.queue(r)...)
	}
	if r.IdleP95MS > 0 {
		b.AddTitled("path", fmt.Sprintf("single requests at rest: p95 %s ms", number.Metric(r.IdleP95MS)), "class", "within", "d", b.Marker(svg.Diamond, p.x(0), p.y(r.IdleP95MS), 1.2))
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
		if x < plotLeft+plotWidth/2 {
			anchor, shift = "start", 6
		}
		caption(b, x+shift, plotTop+plotHeight-6, anchor, "cap", "goodput "+number.Metric(r.GoodputRPS)+" requests/s")
	}
	return end(b)
}

// config returns a description of a row's configuration.
func config(r profile.Row) string {
	return fmt.Sprintf("SM %s%%, quota %s, batch %d", number.Trimmed(r.SMPct, 2), number.Trimmed(r.Quota, 3), r.Batch)
}

// line draws a line through points of load and latency.
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

// queue returns the curve of a queue whose waiting time grows with the utilization u as u/(1-u). It starts
// at the row's latency at rest and passes through its goodput (see package goodput). It returns nil if the
// row's values do not determine such a curve.
func (p plot) queue(r profile.Row) (points [][2]float64) {
	capacity, idle := max(r.ThroughputRPS, 1.001*r.GoodputRPS), r.IdleP95MS
	if idle <= 0 || idle >= r.SLOMS {
		return nil
	}
	odds := func(rps float64) float64 { return rps / (capacity - rps) }
	slack := (r.SLOMS - idle) / odds(r.GoodputRPS)
	top := beyond*r.SLOMS - idle
	last := capacity * top / (top + slack) // rate at which the curve reaches beyond times the objective
	for i := range kneeSteps + 1 {
		rps := last * float64(i) / kneeSteps
		points = append(points, [2]float64{rps, idle + slack*odds(rps)})
	}
	return points
}

// trial draws a trial as a point with the confidence interval of its p95. A trial without a p95 appears
// at the upper edge.
func (p plot) trial(b *svg.Drawing, t profile.Trial) {
	class, shape := "within", svg.Circle
	if t.P95MS == 0 || t.P95MS > t.SLOMS {
		class, shape = "over", svg.Triangle
	}
	tooltip := fmt.Sprintf("trial at %s requests/s: %d of %d requests missed %s ms", number.Metric(t.OfferedRPS), t.Misses, t.Samples, number.Metric(t.SLOMS))
	ms := math.Exp(p.high)
	if t.P95MS > 0 {
		ms = t.P95MS
		tooltip += fmt.Sprintf(", p95 %s ms", number.Metric(ms))
		if half := min(t.P95CIMS, ms-math.Exp(p.low)); half > 0 {
			tooltip += fmt.Sprintf(" ± %s", number.Metric(t.P95CIMS))
			p.line(b, "spread", "", [2]float64{t.OfferedRPS, ms - half}, [2]float64{t.OfferedRPS, min(ms+half, math.Exp(p.high))})
		}
	}
	b.AddTitled("path", tooltip, "class", class, "d", b.Marker(shape, p.x(t.OfferedRPS), p.y(ms), 1.2))
}
