package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/demand"
	"github.com/gfaas/gfaas/pkg/command/gpumodel"
	"github.com/gfaas/gfaas/pkg/command/sim/report"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/arrivals"
	"github.com/gfaas/gfaas/pkg/policy/place/verify"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/sim/planned"
	gen "github.com/gfaas/gfaas/pkg/sim/workload"
	"github.com/gfaas/gfaas/pkg/trace"
)

// planOptions are the flags of plan, as given.
type planOptions struct {
	env       *cli.Env
	profile   string
	demand    string
	functions string
	inventory string
	model     string // of GPUs that neither the plan nor the inventory names one for
	trace     string
	routing   string
	slo       time.Duration
	duration  time.Duration
	seed      uint64
	gen.Pattern
}

// Requests come for longer than was asked for until each function has so many, since
// fewer tell nothing of a 99th percentile, or those that meet have a million together;
// and for less where a function would have more than a million, or the clock ends.
const (
	fewestRequests = 10_000
	mostRequests   = 1_000_000
	mostSeconds    = 9e9 // of 2^63 ns, with room for answers
)

func newPlan(env *cli.Env) *cobra.Command {
	o := planOptions{env: env, Pattern: gen.Defaults()}
	cmd := &cobra.Command{
		Use:   "plan PLAN.json",
		Short: "Foretell the latencies that a plan keeps",
		Long: `Plays the instances of a plan on a virtual clock. Each works first come, first
served, with what its row of the profile says a batch takes, while it has a lease of
its GPU: these are given out as gfaas-tokend does, in windows of 100 ms, by the
plan's turns and quotas, and what an instance leaves is lent to others. Requests
come as --pattern says at the rates of the demand, or as a recorded --trace has them,
and --routing gives each to an instance:

  least     to the one of those that are free that would answer first
  weighted  by chance, in proportion to what each is counted on for
  random    by chance, to any

For each function it prints the latencies and the part of the requests within its
objective: the demand's slo_ms, else the slo of --functions, else --slo. -o html
draws the distributions.

An instance has the row of its configuration on the model of its GPU, as the plan
names it; for a GPU without, --inventory or --gpu-model does. Where none of them does
and rows of several models differ, the exit status is 2.

The exit status is 3 when a function's p95 is beyond its
objective, or nothing serves it. Simulated: no GPU is used, and what a server adds
besides the GPU's time is as the profile has it.`,
		Example: `  gfaas-place plan --profile profile.csv --demand demand.csv -o json --out-file plan.json
  gfaas-sim plan plan.json --profile profile.csv --demand demand.csv
  gfaas-sim plan plan.json --profile profile.csv --demand demand.csv --pattern gamma --cv 2 --routing random -o html --out-file plan.html`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.FileArgs("json"),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.profile, "profile", "", "what instances sustain (CSV)")
	f.StringVar(&o.demand, "demand", "", "what is asked for: a file (CSV: function,rps,slo_ms) or a list like resnet=250,bert=40 (default the plan's own)")
	f.StringVar(&o.functions, "functions", "", "the functions (YAML): their objectives")
	f.StringVar(&o.inventory, "inventory", "", "the GPUs there are (CSV: node,gpu,mem_mib,model): the models of those that the plan names none for")
	f.StringVar(&o.model, gpumodel.Flag, "", "model of the GPUs that neither the plan nor --inventory names one for")
	f.StringVar(&o.trace, "trace", "", "requests as they were recorded (CSV: function,invoke_time_ms) instead of a pattern")
	f.DurationVar(&o.slo, "slo", 0, "the p95 latency of functions that have no objective otherwise, like `100ms`")
	cli.Choice(cmd, &o.routing, "routing", "which instance a request goes to", planned.Routings()...)
	cli.Choice(cmd, &o.Shape, "pattern", "how requests come", gen.Shapes()...)
	f.Float64Var(&o.CV, "cv", o.CV, "gamma: standard deviation of the gaps over their mean")
	f.DurationVar(&o.duration, "duration", 10*time.Minute, "for how long requests come; longer where a function has less than 10,000, and of each at most a million")
	f.Uint64Var(&o.seed, "seed", 1, "other requests of the same kind")
	cli.Files(cmd, "csv", "profile", "demand", "inventory", "trace")
	cli.Files(cmd, "yaml yml", "functions")
	env.Outputs(cmd, "table", "json", "csv", "html")
	return cmd
}

// foretold is what comes of a function.
type foretold struct {
	Function string  `json:"function"`
	RPS      float64 `json:"rps"`
	SLOMS    float64 `json:"slo_ms"` // 0 is none
	P50MS    float64 `json:"p50_ms"`
	P95MS    float64 `json:"p95_ms"`
	P99MS    float64 `json:"p99_ms"`
	Within   float64 `json:"within"` // part of the requests within the objective

	curve []float64
}

// missed says whether the function does not keep its objective.
func (f foretold) missed() bool { return f.curve == nil || f.SLOMS > 0 && f.P95MS > f.SLOMS }

// promise is the answer of plan.
type promise struct {
	Arrivals  string     `json:"arrivals"`
	Routing   string     `json:"routing"`
	Functions []foretold `json:"functions"`
}

func (o *planOptions) run(cmd *cobra.Command, path string) error {
	if err := o.check(cmd, path); err != nil {
		return err
	}
	p, err := cli.Load(o.env, path, plan.Read)
	if err != nil {
		return err
	}
	rows, err := cli.Load(o.env, o.profile, profile.Read)
	if err != nil {
		return err
	}
	wanted, err := o.wanted(p)
	if err != nil {
		return err
	}
	if err := o.nameModels(cmd, &p); err != nil {
		return err
	}
	gpus, err := planned.FromPlan(p, rows)
	if ambiguous := new(profile.AmbiguousError); errors.As(err, &ambiguous) {
		return gpumodel.Ask(path, err)
	}
	if err != nil {
		return cli.Fail(cli.ExitFailure, "give the profile that the plan was made from", fmt.Errorf("%s: %w", path, err))
	}
	if wrong := verify.Plan(p, verify.Inputs{}); len(wrong) > 0 {
		o.env.Notef("note: the plan promises what it cannot give: %s", wrong[0].Message)
		if len(wrong) > 1 {
			o.env.Notef("note: gfaas-place verify lists %d more faults", len(wrong)-1)
		}
	}
	out, err := o.foretell(cmd.Context(), wanted, gpus)
	if err != nil {
		return err
	}
	if err := o.print(out); err != nil {
		return err
	}
	return o.verdict(out)
}

// nameModels names the models of those GPUs for which the plan names none.
func (o *planOptions) nameModels(cmd *cobra.Command, p *plan.Plan) error {
	var inventory []plan.Device
	if o.inventory != "" {
		var err error
		if inventory, err = cli.Load(o.env, o.inventory, plan.ReadInventory); err != nil {
			return err
		}
	}
	return gpumodel.Name(cmd, p, inventory, o.model)
}

func (o *planOptions) check(cmd *cobra.Command, path string) error {
	given := cmd.Flags().Changed
	stdin := 0
	for _, name := range []string{path, o.profile, o.demand, o.functions, o.inventory, o.trace} {
		if name == "-" {
			stdin++
		}
	}
	switch {
	case o.profile == "":
		return cli.Fail(cli.ExitUsage, "it is the one that the plan was made from", errors.New("--profile is missing: expected a file"))
	case stdin > 1 || o.trace == "-":
		return cli.Usagef("standard input (-) can be only one of the files, and not the trace")
	case o.trace != "" && (given("pattern") || given("cv") || given("duration")):
		return cli.Usagef("--trace says when requests come: it cannot be used with --pattern, --cv or --duration")
	case given("cv") && o.Shape != "gamma":
		return cli.Usagef("--cv is of --pattern gamma")
	case given("slo") && o.slo <= 0:
		return cli.Usagef("--slo %s: expected more than 0, like 100ms", o.slo)
	case o.duration < time.Second || o.duration > 1000*time.Hour:
		return cli.Usagef("--duration %s: expected 1s to 1000h", o.duration)
	}
	if err := o.Check(); err != nil {
		return cli.Usagef("%w", err)
	}
	return nil
}

// wanted are the functions with their rates and objectives.
func (o *planOptions) wanted(p plan.Plan) ([]plan.Demand, error) {
	var out []plan.Demand
	for _, d := range p.Demand {
		out = append(out, plan.Demand{Function: d.Function, RPS: d.RPS})
	}
	if o.demand != "" {
		var err error
		if out, err = demand.Load(o.env, o.demand); err != nil {
			return nil, err
		}
	}
	own := map[string]time.Duration{}
	if o.functions != "" {
		functions, err := cli.LoadFunctions(o.env, o.functions)
		if err != nil {
			return nil, err
		}
		for _, fn := range functions {
			own[fn.Name] = fn.SLO
		}
	}
	for i, d := range out {
		if slo := own[d.Function]; d.SLOMS == 0 && slo > 0 {
			out[i].SLOMS = float64(slo) / float64(time.Millisecond)
		} else if d.SLOMS == 0 {
			out[i].SLOMS = float64(o.slo) / float64(time.Millisecond)
		}
	}
	return out, nil
}

// foretell plays the plan, one group of GPUs after another.
func (o *planOptions) foretell(ctx context.Context, wanted []plan.Demand, gpus [][]planned.Instance) (promise, error) {
	out := promise{Arrivals: o.Shape, Routing: o.routing, Functions: []foretold{}}
	var recorded map[string][]float64
	if o.trace != "" {
		var err error
		if recorded, err = o.recorded(); err != nil {
			return out, err
		}
		out.Arrivals = "trace"
		if err := o.compareNames(wanted, recorded); err != nil {
			return out, err
		}
	}
	groups := planned.Groups(gpus)
	bar := o.env.Progress(len(groups), "simulating", "groups of GPUs")
	defer func() { _ = bar.Finish() }()
	took := map[string][]float64{}
	for n, group := range groups {
		if err := ctx.Err(); err != nil {
			return out, err
		}
		at := recorded
		if recorded == nil {
			at = o.requests(wanted, group)
		}
		maps.Copy(took, planned.Latencies(planned.Config{
			GPUs: group, Arrivals: at, Routing: planned.Routing(o.routing), WindowMS: arrivals.Window, Seed: o.seed + uint64(n),
		}))
		_ = bar.Add(1)
	}
	for _, d := range wanted {
		if at, known := recorded[d.Function]; recorded != nil && !known {
			o.env.Notef("note: %s has no request of %s", o.trace, d.Function)
			continue
		} else if known && at[len(at)-1] > at[0] {
			d.RPS = float64(len(at)-1) / (at[len(at)-1] - at[0]) * 1000
		}
		seen, served := took[d.Function]
		if served && len(seen) == 0 {
			o.env.Notef("note: no request of %s came in all that was played: it has so few beside others", d.Function)
			continue
		}
		out.Functions = append(out.Functions, kept(d, seen))
	}
	return out, nil
}

// compareNames says what a trace has that nothing is told of. That none of the demand's
// functions has a request is an error: no objective could be missed.
func (o *planOptions) compareNames(wanted []plan.Demand, recorded map[string][]float64) error {
	others := slices.Sorted(maps.Keys(recorded))
	all := len(others)
	for _, d := range wanted {
		others = slices.DeleteFunc(others, func(name string) bool { return name == d.Function })
	}
	if len(others) == all {
		return cli.Fail(cli.ExitFailure, "the demand and the trace name functions alike", fmt.Errorf("%s has no request of a function of the demand", o.trace))
	}
	if len(others) > 0 {
		text := csvfile.Quote(others[0])
		if more := len(others) - 1; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		o.env.Notef("note: %s has requests of %s, not in the demand: what comes of them is not told", o.trace, text)
	}
	return nil
}

// requests are the moments, in ms, at which requests of a group's functions come: for
// as long for all of them, since they meet.
func (o *planOptions) requests(wanted []plan.Demand, group [][]planned.Instance) map[string][]float64 {
	served := map[string]bool{}
	least, most, sum := math.Inf(1), 0.0, 0.0
	for _, gpu := range group {
		for _, in := range gpu {
			served[in.Function] = true
			if in.Endless {
				sum += 1000 / arrivals.Window // it works in each window, which takes as long to play
			}
		}
	}
	for _, d := range wanted {
		if served[d.Function] {
			least, most, sum = min(least, d.RPS), max(most, d.RPS), sum+d.RPS
		}
	}
	seconds := max(o.duration.Seconds(), min(fewestRequests/least, mostRequests/sum))
	seconds = min(seconds, mostRequests/most, mostSeconds)
	out := map[string][]float64{}
	for n, d := range wanted {
		if !served[d.Function] {
			continue
		}
		at := o.Arrivals(d.RPS, seconds, o.seed, uint64(n))
		for i := range at {
			at[i] *= 1000
		}
		out[d.Function] = at
	}
	return out
}

// lead is what is played, at most, before the first request of a trace.
const lead = time.Minute

// recorded are the moments of a trace, in ms, by function. Of a trace that begins
// later than that lead, whole windows before are left out: an instance that spans GPUs
// works in each, and there may be millions.
func (o *planOptions) recorded() (map[string][]float64, error) {
	source, err := trace.OpenSource(o.trace)
	if err != nil {
		return nil, err
	}
	defer source.Close()
	names := trace.NewNames()
	rows, err := source.Sorted(names, o.seed)
	if err != nil {
		return nil, err
	}
	out := map[string][]float64{}
	for before := time.Duration(-1); ; {
		row, err := rows.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		if before < 0 {
			before = max(0, row.At-lead).Truncate(arrivals.Window * time.Millisecond)
		}
		name := names.All()[row.Function]
		out[name] = append(out[name], float64(row.At-before)/float64(time.Millisecond))
	}
}

func kept(d plan.Demand, sorted []float64) foretold {
	f := foretold{
		Function: d.Function, RPS: d.RPS, SLOMS: d.SLOMS, P50MS: tidy(planned.Quantile(sorted, 0.5)),
		P95MS: tidy(planned.Quantile(sorted, 0.95)), P99MS: tidy(planned.Quantile(sorted, 0.99)),
	}
	if f.Within = 1; d.SLOMS > 0 {
		f.Within = planned.Within(sorted, d.SLOMS)
	}
	if len(sorted) == 0 {
		f.Within = 0
		return f
	}
	for _, q := range report.Quantiles() {
		f.curve = append(f.curve, planned.Quantile(sorted, q))
	}
	return f
}

// tidy keeps microseconds of a latency.
func tidy(ms float64) float64 { return float64(int64(ms*1000+0.5)) / 1000 }

func (o *planOptions) print(p promise) error {
	if o.env.Output == "html" {
		page := report.Promise{Setting: o.setting(p)}
		for _, f := range p.Functions {
			page.Functions = append(page.Functions, report.Kept{
				Function: f.Function, RPS: f.RPS, SLOMS: f.SLOMS, P50MS: f.P50MS, P95MS: f.P95MS, P99MS: f.P99MS, Within: f.Within, Missed: f.missed(), Curve: f.curve,
			})
		}
		return o.env.Emit(func(w io.Writer) error { return report.PromiseHTML(w, page) })
	}
	ms, part := csvfile.Format, csvfile.Format
	header := []string{"function", "rps", "slo_ms", "p50_ms", "p95_ms", "p99_ms", "within"}
	if o.env.Output == "table" {
		ms, part = human, func(v float64) string { return number.Percent(v, 2) }
		header = []string{"FUNCTION", "RPS", "OBJECTIVE", "P50", "P95", "P99", "WITHIN", ""}
	}
	return o.env.Show(p, func() [][]string {
		rows := [][]string{header}
		for _, f := range p.Functions {
			row := []string{f.Function, csvfile.Format(f.RPS), ms(f.SLOMS), ms(f.P50MS), ms(f.P95MS), ms(f.P99MS), part(f.Within)}
			if o.env.Output == "table" {
				row[1] = number.Trimmed(f.RPS, 3)
				row = append(row, map[bool]string{true: "missed"}[f.missed()])
				if f.SLOMS == 0 {
					row[2], row[6] = "-", "-"
				}
			}
			rows = append(rows, row)
		}
		return rows
	})
}

// setting says in a line what was played.
func (o *planOptions) setting(p promise) string {
	return fmt.Sprintf("Requests: %s. Routing: %s. Simulated: no GPU was used.", p.Arrivals, p.Routing)
}

// verdict says which functions do not keep their objective.
func (o *planOptions) verdict(p promise) error {
	missed := false
	for _, f := range p.Functions {
		switch {
		case f.curve == nil:
			o.env.Notef("%s: nothing of the plan serves it", f.Function)
		case f.missed():
			o.env.Notef("%s: p95 is %s ms, the objective %s", f.Function, csvfile.Format(f.P95MS), csvfile.Format(f.SLOMS))
		}
		missed = missed || f.missed()
	}
	if missed {
		return cli.Exit(cli.ExitNo)
	}
	return nil
}
