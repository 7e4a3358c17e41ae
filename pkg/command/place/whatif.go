package place

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/plan"
	policy "github.com/gfaas/gfaas/pkg/policy/place"
)

// mostPoints is how many plans a sweep may make.
const mostPoints = 10_000

// sweep are the factors that demands are planned with, and the ways in which
// requests arrive: one empty one where they arrive as the flags say.
type sweep struct {
	rps, slo []float64
	arrivals []string
}

// plans is how many plans it takes.
func (s sweep) plans() int { return len(s.rps) * len(s.slo) * len(s.arrivals) }

// parseSweep reads factors like "rps=1,2,4 slo=0.5,1 arrivals=poisson,steady"; what
// is not named stays as it is.
func parseSweep(text string) (sweep, error) {
	s := sweep{[]float64{1}, []float64{1}, []string{""}}
	seen := map[string]bool{}
	for _, part := range strings.Fields(strings.ReplaceAll(text, ";", " ")) {
		name, list, _ := strings.Cut(part, "=")
		if name == "arrivals" && !seen[name] {
			seen[name], s.arrivals = true, strings.Split(list, ",")
			if i := slices.IndexFunc(s.arrivals, func(a string) bool { return a != plan.ArrivalsPoisson && a != plan.ArrivalsSteady }); i >= 0 {
				return s, fmt.Errorf("arrivals: %s: expected %s or %s", csvfile.Quote(s.arrivals[i]), plan.ArrivalsPoisson, plan.ArrivalsSteady)
			}
			continue
		}
		at := map[string]*[]float64{"rps": &s.rps, "slo": &s.slo}[name]
		if at == nil || seen[name] {
			return s, fmt.Errorf("%s: expected factors like rps=1,2,4 slo=0.5,1, each once", csvfile.Quote(part))
		}
		seen[name], *at = true, nil
		for item := range strings.SplitSeq(list, ",") {
			v, err := csvfile.Positive(strings.TrimSpace(item))
			if err != nil {
				return s, fmt.Errorf("%s: %w", name, err)
			}
			*at = append(*at, v)
		}
	}
	if len(seen) == 0 {
		return s, fmt.Errorf("no factor, expected some like rps=1,2,4 slo=0.5,1")
	}
	if n := s.plans(); n > mostPoints {
		return s, fmt.Errorf("%d plans, expected at most %d", n, mostPoints)
	}
	return s, nil
}

// outcome is one plan of a sweep.
type outcome struct {
	RPSFactor   float64 `json:"rps_factor"`
	SLOFactor   float64 `json:"slo_factor"`
	Arrivals    string  `json:"arrivals,omitempty"` // where the sweep names some
	RPS         float64 `json:"rps"`
	GPUsUsed    int     `json:"gpus_used"`
	Bound       int     `json:"bound"`
	BoundMethod string  `json:"bound_method"`
	Instances   int     `json:"instances"`
	Unplaced    int     `json:"unplaced"` // functions
	UnplacedRPS float64 `json:"unplaced_rps"`
}

// whatIf plans for the demand times every pair of factors, for each way to arrive.
func (o *planOptions) whatIf(cmd *cobra.Command, in policy.Input) error {
	s, err := parseSweep(o.sweep)
	if err != nil {
		return cli.Usagef("--what-if: %w", err)
	}
	if o.current.path != "" {
		return cli.Usagef("--what-if plans from nothing: it cannot be used with --current")
	}
	form := "csv"
	if cmd.Flags().Changed("output") {
		form = o.env.Output
	}
	if form == "svg" || form == "html" {
		return cli.Usagef("--output %s is not offered with --what-if: expected table, json, csv", form)
	}
	o.env.Output = form
	o.notes(in)
	changed := slices.ContainsFunc(s.slo, func(factor float64) bool { return factor != 1 })
	if changed && !slices.ContainsFunc(in.Demand, func(d plan.Demand) bool { return d.SLOMS > 0 }) {
		o.env.Notef("note: the demand has no slo_ms, so its factors change nothing")
	}
	bar := o.env.Progress(s.plans(), "planning", "plans")
	var out []outcome
	for i := range s.plans() { // the last named changes fastest
		if err := cmd.Context().Err(); err != nil {
			return err
		}
		rps, slo, arrivals := s.rps[i/len(s.arrivals)/len(s.slo)], s.slo[i/len(s.arrivals)%len(s.slo)], s.arrivals[i%len(s.arrivals)]
		one, err := o.outcome(in, rps, slo, arrivals)
		if err != nil {
			return fmt.Errorf("rps × %s, slo × %s: %w", csvfile.Format(rps), csvfile.Format(slo), err)
		}
		out = append(out, one)
		_ = bar.Add(1)
	}
	_ = bar.Finish()
	return o.env.Show(out, func() [][]string { return outcomeTable(out) })
}

// outcome plans for the demand times these factors, its requests arriving so.
func (o *planOptions) outcome(in policy.Input, rps, slo float64, arrivals string) (outcome, error) {
	started := time.Now()
	o.over = func() bool { return time.Since(started) >= o.limit }
	in.Demand = slices.Clone(in.Demand)
	out := outcome{RPSFactor: rps, SLOFactor: slo, Arrivals: arrivals}
	if arrivals != "" {
		in.Poisson = arrivals == plan.ArrivalsPoisson
	}
	for i := range in.Demand {
		in.Demand[i].RPS = times(in.Demand[i].RPS, rps)
		in.Demand[i].SLOMS = times(in.Demand[i].SLOMS, slo)
		out.RPS += in.Demand[i].RPS
	}
	p, err := o.plan(in)
	if err != nil {
		return out, err
	}
	out.GPUsUsed, out.Bound, out.BoundMethod, out.Unplaced = p.GPUsUsed, p.Bound, p.BoundMethod, len(p.Unplaced)
	for _, u := range p.Unplaced {
		out.UnplacedRPS += u.RPS
	}
	seen := map[string]bool{}
	for _, g := range p.GPUs {
		for _, in := range g.Instances {
			seen[in.ID] = true
		}
	}
	out.Instances = len(seen)
	return out, nil
}

// times is a number times a factor as decimals are multiplied: 100 × 0.57 is 57, so
// that what takes 57 ms is within.
func times(v, factor float64) float64 {
	product, err := strconv.ParseFloat(number.Significant(v*factor, 15), 64)
	if err != nil {
		return v * factor
	}
	return product
}

func outcomeTable(all []outcome) [][]string {
	rows := [][]string{{"rps_factor", "slo_factor", "rps", "gpus_used", "bound", "bound_method", "instances", "unplaced", "unplaced_rps"}}
	n := csvfile.Format
	for _, o := range all {
		rows = append(rows, []string{n(o.RPSFactor), n(o.SLOFactor), number.Trimmed(o.RPS, 6), strconv.Itoa(o.GPUsUsed), strconv.Itoa(o.Bound),
			o.BoundMethod, strconv.Itoa(o.Instances), strconv.Itoa(o.Unplaced), number.Trimmed(o.UnplacedRPS, 6)})
	}
	if len(all) > 0 && all[0].Arrivals != "" {
		rows[0] = slices.Insert(rows[0], 2, "arrivals")
		for i, o := range all {
			rows[i+1] = slices.Insert(rows[i+1], 2, o.Arrivals)
		}
	}
	return rows
}
