// Package report renders profiles as an HTML page (Page.HTML) or as text (Page.Terminal) for the command
// gfaas-profile report.
//
// A Page has a Section for each function and GPU model: heat maps and curves of throughput, latency and
// efficacy over SM share, quota and batch size, and the recommended configuration. An Outlook adds plans for
// given request rates, and a Fleet plans several functions together. The page loads no other resources.
package report

import (
	"fmt"
	"math"

	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/policy/search"
	"github.com/gfaas/gfaas/pkg/profile"
)

// Section describes one function on one GPU model.
type Section struct {
	Function string
	GPU      string
	Rows     []profile.Row
	Goal     search.Goal
	Choice   search.Choice
	MemMiB   float64 // memory of a GPU; 0: no limit
	Trials   []profile.Trial
	// AtRandom reports whether the planner assumes random arrivals. Then Worth is the rate, in requests
	// per second, that the planner assigns to an instance of Choice.
	AtRandom bool
	Worth    float64
	Outlook
}

// title returns the heading of the section.
func (s Section) title() string {
	if s.GPU == "" {
		return s.Function
	}
	return s.Function + " on " + s.GPU
}

// metric is a value of a row that the report draws. The efficacy appears under the name of its unit.
type metric struct {
	name          string
	unit          string // may be empty
	of            func(profile.Row) float64
	lowerIsBetter bool
}

// title returns the name with the unit.
func (m metric) title() string {
	if m.unit == "" {
		return m.name
	}
	return m.name + ", " + m.unit
}

var metrics = []metric{
	{"Throughput", "requests/s per instance", func(r profile.Row) float64 { return r.ThroughputRPS }, false},
	{"p95 latency", "ms", func(r profile.Row) float64 { return r.P95MS }, true},
	{"Requests/s per whole GPU", "", profile.Row.Efficacy, false},
}

func (s Section) sms() []float64 {
	return axis(s.Rows, func(r profile.Row) float64 { return r.SMPct })
}

func (s Section) quotas() []float64 {
	return axis(s.Rows, func(r profile.Row) float64 { return r.Quota })
}

func (s Section) batches() []float64 {
	return axis(s.Rows, func(r profile.Row) float64 { return float64(r.Batch) })
}

// axis returns the distinct values of a dimension in ascending order.
func axis(rows []profile.Row, of func(profile.Row) float64) []float64 {
	return lists.Distinct(rows, of)
}

// table returns the rows by configuration.
func (s Section) table() map[profile.Config]profile.Row {
	t := map[profile.Config]profile.Row{}
	for _, r := range s.Rows {
		t[r.Config] = r
	}
	return t
}

// summary explains the choice in sentences.
func (s Section) summary() []string {
	c := s.Choice
	if !c.OK {
		return append([]string{"No configuration was chosen: " + c.Reason + "."}, s.mostGoodput()...)
	}
	// Instances fit side by side in SM share and one after the other in time.
	fit := math.Floor(100/c.Row.SMPct+1e-9) * math.Floor(1/c.Row.Quota+1e-9)
	if s.MemMiB > 0 && c.Row.GPUMemMiB > 0 {
		fit = min(fit, math.Floor(s.MemMiB/c.Row.GPUMemMiB))
	}
	lines := []string{
		fmt.Sprintf("Chosen configuration: sm_pct %s (limit %s), quota %s, batch %d: %s requests/s at p95 %s ms.",
			number.Plain(c.Row.SMPct), number.Plain(c.LimitSMPct), number.Plain(c.Row.Quota), c.Row.Batch, number.Metric(c.Row.ThroughputRPS), number.Metric(c.Row.P95MS)),
		fmt.Sprintf("A GPU can host %s such instances, which sustain %s requests/s together.", number.Plain(fit), number.Metric(fit*c.Row.ThroughputRPS)),
		"Reason: " + c.Reason + ".",
	}
	lines = append(lines, underPoisson(c.Row)...)
	if _, _, measured := c.Row.Goodput(s.Goal.SLOMS); s.AtRandom && !measured {
		lines = append(lines, fmt.Sprintf("If requests arrive at random, plans count on such an instance for %s requests/s within %s ms.",
			number.Metric(s.Worth), number.Plain(s.Goal.SLOMS)))
	}
	lines = append(lines, s.mostGoodput()...)
	met, unstable := 0, 0
	for _, r := range s.Rows {
		if s.Goal.Meets(r) {
			met++
		}
		if r.Unstable > 0 {
			unstable++
		}
	}
	if s.Goal.SLOMS > 0 {
		lines = append(lines, fmt.Sprintf("%d of %d configurations have p95 within %s ms.", met, len(s.Rows), number.Plain(s.Goal.SLOMS)))
	}
	if unstable > 0 {
		lines = append(lines, fmt.Sprintf("%d of %d configurations are unstable: their figures kept changing during the measurement. Do not rely on them.", unstable, len(s.Rows)))
	}
	return lines
}

// underPoisson describes the row's measured goodput, the rate of Poisson arrivals that it sustains.
func underPoisson(r profile.Row) []string {
	if !r.GoodputKnown {
		return nil
	}
	slo := number.Plain(r.SLOMS)
	if r.GoodputRPS == 0 {
		return []string{"The goodput is 0: no rate of Poisson arrivals has p95 within " + slo + " ms."}
	}
	line := fmt.Sprintf("The goodput is %s requests/s of Poisson arrivals with p95 within %s ms, %s of the throughput",
		number.Metric(r.GoodputRPS), slo, number.Percent(r.GoodputRPS/r.ThroughputRPS, 0))
	if r.IdleP95MS > 0 {
		line += fmt.Sprintf("; a single request takes %s ms", number.Metric(r.IdleP95MS))
	}
	return []string{line + "."}
}

// goodputTolerance is the relative difference in goodput up to which two configurations count as equal.
const goodputTolerance = 0.02

// mostGoodput names the configuration with the most goodput per whole GPU for the objective, unless it is
// the chosen one.
func (s Section) mostGoodput() []string {
	worth := func(r profile.Row) float64 {
		rps, _, _ := r.Goodput(s.Goal.SLOMS)
		return rps / (r.SMPct / 100 * r.Quota)
	}
	var best profile.Row
	highest, chosen := 0.0, 0.0
	for _, r := range s.Rows {
		if v := worth(r); v > highest {
			best, highest = r, v
		}
	}
	if s.Choice.OK {
		chosen = worth(s.Choice.Row)
	}
	if s.Goal.SLOMS <= 0 || highest <= chosen*(1+goodputTolerance) {
		return nil
	}
	line := fmt.Sprintf("If requests arrive at random, sm_pct %s, quota %s, batch %d is best: a GPU full of such instances sustains %s requests/s of Poisson arrivals within %s ms",
		number.Plain(best.SMPct), number.Plain(best.Quota), best.Batch, number.Metric(highest), number.Plain(s.Goal.SLOMS))
	if s.Choice.OK && s.Choice.Row.GoodputKnown {
		line += fmt.Sprintf(", compared with %s for the chosen configuration", number.Metric(chosen))
	}
	return []string{line + "."}
}
