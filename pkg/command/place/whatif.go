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
	"github.com/gfaas/gfaas/pkg/policy/place/prepare"
)

// maxPlans limits the number of plans of a sweep.
const maxPlans = 10_000

// sweep holds the factors of the demand and the arrival processes to plan for. The arrival process is
// a single empty string if the flags determine it.
type sweep struct {
	rps, slo []float64
	arrivals []string
}

// plans returns the number of plans.
func (s sweep) plans() int { return len(s.rps) * len(s.slo) * len(s.arrivals) }

// parseSweep parses a sweep like "rps=1,2,4 slo=0.5,1 arrivals=poisson,steady". The factor of a missing
// name is 1.
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
			return s, fmt.Errorf("%s: expected rps, slo or arrivals once each, like rps=1,2,4 slo=0.5,1", csvfile.Quote(part))
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
		return s, fmt.Errorf("no factors: expected some like rps=1,2,4 slo=0.5,1")
	}
	if n := s.plans(); n > maxPlans {
		return s, fmt.Errorf("%d plans, expected at most %d", n, maxPlans)
	}
	return s, nil
}

// outcome is one plan of a sweep.
type outcome struct {
	RPSFactor   float64 `json:"rps_factor"`
	SLOFactor   float64 `json:"slo_factor"`
	Arrivals    string  `json:"arrivals,omitempty"` // if the sweep lists arrivals
	RPS         float64 `json:"rps"`
	GPUsUsed    int     `json:"gpus_used"`
	Bound       int     `json:"bound"`
	BoundMethod string  `json:"bound_method"`
	Instances   int     `json:"instances"`
	Unplaced    int     `json:"unplaced"` // number of functions
	UnplacedRPS float64 `json:"unplaced_rps"`
	// UnplacedFunctions has the names of these functions. CSV and table have only their number,
	// because a large fleet would need very long cells.
	UnplacedFunctions []string `json:"unplaced_functions"`
}

// whatIf makes a plan for every combination of factors and arrivals, and prints a line for each.
func (o *planOptions) whatIf(cmd *cobra.Command, in policy.Input) error {
	s, err := parseSweep(o.sweep)
	if err != nil {
		return cli.Usagef("--what-if: %w", err)
	}
	if o.current.path != "" {
		return cli.Usagef("--what-if cannot be used with --current")
	}
	form := "csv"
	if cmd.Flags().Changed("output") {
		form = o.env.Output
	}
	if form == "svg" || form == "html" {
		return cli.Usagef("--output %s is not available with --what-if: expected table, json or csv", form)
	}
	o.env.Output = form
	o.printInputNotes(in)
	changed := slices.ContainsFunc(s.slo, func(factor float64) bool { return factor != 1 })
	if changed && !slices.ContainsFunc(in.Demand, func(d plan.Demand) bool { return d.SLOMS > 0 }) {
		o.env.Notef("note: no function has an objective, so the factors of slo have no effect")
	}
	bar := o.env.Progress(s.plans(), "planning", "plans")
	var out []outcome
	for i := range s.plans() { // arrivals change fastest
		if err := cmd.Context().Err(); err != nil {
			return err
		}
		rps, slo, arrivals := s.rps[i/len(s.arrivals)/len(s.slo)], s.slo[i/len(s.arrivals)%len(s.slo)], s.arrivals[i%len(s.arrivals)]
		result, err := o.outcome(in, rps, slo, arrivals)
		if err != nil {
			return fmt.Errorf("rps × %s, slo × %s: %w", csvfile.Format(rps), csvfile.Format(slo), err)
		}
		out = append(out, result)
		_ = bar.Add(1)
	}
	_ = bar.Finish()
	return o.env.Show(out, func() [][]string { return outcomeTable(out) })
}

// outcome makes a plan for the scaled demand with the given arrivals.
func (o *planOptions) outcome(in policy.Input, rps, slo float64, arrivals string) (outcome, error) {
	started := time.Now()
	o.options.Expired = func() bool { return time.Since(started) >= o.limit }
	in.Demand = prepare.Scaled(in.Demand, rps, slo)
	out := outcome{RPSFactor: rps, SLOFactor: slo, Arrivals: arrivals}
	if arrivals != "" {
		in.Poisson = arrivals == plan.ArrivalsPoisson
	}
	for _, d := range in.Demand {
		out.RPS += d.RPS
	}
	p, err := o.plan(in)
	if err != nil {
		return out, err
	}
	out.GPUsUsed, out.Bound, out.BoundMethod, out.Unplaced = p.GPUsUsed, p.Bound, p.BoundMethod, len(p.Unplaced)
	out.UnplacedFunctions = []string{}
	for _, u := range p.Unplaced {
		out.UnplacedRPS += u.RPS
		out.UnplacedFunctions = append(out.UnplacedFunctions, u.Function)
	}
	instances := map[string]bool{}
	for _, g := range p.GPUs {
		for _, in := range g.Instances {
			instances[in.ID] = true
		}
	}
	out.Instances = len(instances)
	return out, nil
}

func outcomeTable(outcomes []outcome) [][]string {
	rows := [][]string{{"rps_factor", "slo_factor", "rps", "gpus_used", "bound", "bound_method", "instances", "unplaced", "unplaced_rps"}}
	n := csvfile.Format
	for _, o := range outcomes {
		rows = append(rows, []string{n(o.RPSFactor), n(o.SLOFactor), number.Trimmed(o.RPS, 6), strconv.Itoa(o.GPUsUsed), strconv.Itoa(o.Bound),
			o.BoundMethod, strconv.Itoa(o.Instances), strconv.Itoa(o.Unplaced), number.Trimmed(o.UnplacedRPS, 6)})
	}
	if len(outcomes) > 0 && outcomes[0].Arrivals != "" {
		rows[0] = slices.Insert(rows[0], 2, "arrivals")
		for i, o := range outcomes {
			rows[i+1] = slices.Insert(rows[i+1], 2, o.Arrivals)
		}
	}
	return rows
}
