// Package report draws profiles: for each function heat maps and curves of
// throughput, latency and efficacy over SM share, quota and batch, and the
// configuration to run it in. A page stands alone: it loads nothing.
package report

import (
	"fmt"
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/policy/search"
	"github.com/gfaas/gfaas/pkg/profile"
)

// Section is one function on one model of GPU.
type Section struct {
	Function string
	GPU      string
	Rows     []profile.Row
	Goal     search.Goal
	Choice   search.Choice
	MemMiB   float64 // of a GPU; 0 is without limit
	Trials   []profile.Trial
	// AtRandom reports whether requests are taken to come at random. Then Worth is how many
	// a second the planner counts on of an instance of Choice.
	AtRandom bool
	Worth    float64
	Outlook
}

// title names the section.
func (s Section) title() string {
	if s.GPU == "" {
		return s.Function
	}
	return s.Function + " on " + s.GPU
}

// metric is a figure of a row.
type metric struct {
	name string
	unit string
	of   func(profile.Row) float64
	low  bool // less is better
}

var metrics = []metric{
	{"Throughput", "requests/s of one instance", func(r profile.Row) float64 { return r.ThroughputRPS }, false},
	{"p95 latency", "ms", func(r profile.Row) float64 { return r.P95MS }, true},
	{"Efficacy", "requests/s per whole GPU", profile.Row.Efficacy, false},
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

// axis are the values of a dimension, ascending.
func axis(rows []profile.Row, of func(profile.Row) float64) []float64 {
	var all []float64
	for _, r := range rows {
		all = append(all, of(r))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// table finds rows by their configuration.
func (s Section) table() map[profile.Config]profile.Row {
	t := map[profile.Config]profile.Row{}
	for _, r := range s.Rows {
		t[r.Config] = r
	}
	return t
}

// summary says what the choice means, in sentences.
func (s Section) summary() []string {
	c := s.Choice
	if !c.OK {
		return append([]string{"No configuration to run it in: " + c.Reason + "."}, s.mostGoodput()...)
	}
	// Side by side in SM share and one after the other in time.
	fit := math.Floor(100/c.Row.SMPct+1e-9) * math.Floor(1/c.Row.Quota+1e-9)
	if s.MemMiB > 0 && c.Row.GPUMemMiB > 0 {
		fit = min(fit, math.Floor(s.MemMiB/c.Row.GPUMemMiB))
	}
	lines := []string{
		fmt.Sprintf("Run it with sm_pct %s (limit %s), quota %s, batch %d: %s requests/s at p95 %s ms.",
			number.Plain(c.Row.SMPct), number.Plain(c.LimitSMPct), number.Plain(c.Row.Quota), c.Row.Batch, number.Metric(c.Row.ThroughputRPS), number.Metric(c.Row.P95MS)),
		fmt.Sprintf("A GPU holds %s such instances, which sustain %s requests/s together.", number.Plain(fit), number.Metric(fit*c.Row.ThroughputRPS)),
		"It has " + c.Reason + ".",
	}
	lines = append(lines, underPoisson(c.Row)...)
	if _, _, measured := c.Row.Goodput(s.Goal.SLOMS); s.AtRandom && !measured {
		lines = append(lines, fmt.Sprintf("When requests come at random, plans count on it for %s requests/s within %s ms.",
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
		lines = append(lines, fmt.Sprintf("%d of %d configurations keep p95 within %s ms.", met, len(s.Rows), number.Plain(s.Goal.SLOMS)))
	}
	if unstable > 0 {
		lines = append(lines, fmt.Sprintf("%d of %d configurations were measured while their figures kept changing: do not rely on those.", unstable, len(s.Rows)))
	}
	return lines
}

// underPoisson says what the row sustains of arrivals that do not wait for answers,
// where that was measured.
func underPoisson(r profile.Row) []string {
	if !r.GoodputKnown {
		return nil
	}
	slo := number.Plain(r.SLOMS)
	if r.GoodputRPS == 0 {
		return []string{"Of Poisson arrivals no rate keeps p95 within " + slo + " ms."}
	}
	line := fmt.Sprintf("Of Poisson arrivals it takes %s requests/s with p95 within %s ms, which is %s of what it sustains",
		number.Metric(r.GoodputRPS), slo, number.Percent(r.GoodputRPS/r.ThroughputRPS, 0))
	if r.IdleP95MS > 0 {
		line += fmt.Sprintf("; alone a request takes %s ms", number.Metric(r.IdleP95MS))
	}
	return []string{line + "."}
}

// alike is by how much more goodput another configuration must have to be told of.
const alike = 0.02

// mostGoodput says which configuration has the most goodput per whole GPU for the
// objective, where that is not the chosen one.
func (s Section) mostGoodput() []string {
	worth := func(r profile.Row) float64 {
		rps, _, _ := r.Goodput(s.Goal.SLOMS)
		return rps / (r.SMPct / 100 * r.Quota)
	}
	var best profile.Row
	most, chosen := 0.0, 0.0
	for _, r := range s.Rows {
		if v := worth(r); v > most {
			best, most = r, v
		}
	}
	if s.Choice.OK {
		chosen = worth(s.Choice.Row)
	}
	if s.Goal.SLOMS <= 0 || most <= chosen*(1+alike) {
		return nil
	}
	line := fmt.Sprintf("Where requests come at random, sm_pct %s, quota %s, batch %d is best: a GPU of it takes %s requests/s of Poisson arrivals within %s ms",
		number.Plain(best.SMPct), number.Plain(best.Quota), best.Batch, number.Metric(most), number.Plain(s.Goal.SLOMS))
	if s.Choice.OK && s.Choice.Row.GoodputKnown {
		line += fmt.Sprintf(", of the one above %s", number.Metric(chosen))
	}
	return []string{line + "."}
}
