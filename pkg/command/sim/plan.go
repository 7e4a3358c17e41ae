package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/demand"
	"github.com/gfaas/gfaas/pkg/command/gpumodel"
	"github.com/gfaas/gfaas/pkg/command/sim/report"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/arrivals"
	"github.com/gfaas/gfaas/pkg/policy/place/prepare"
	"github.com/gfaas/gfaas/pkg/policy/place/verify"
	"github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/sim/planned"
	gen "github.com/gfaas/gfaas/pkg/sim/workload"
	"github.com/gfaas/gfaas/pkg/trace"
)

// planOptions holds the flags of plan.
type planOptions struct {
	env       *cli.Env
	profile   string
	demand    string
	functions string
	inventory string
	model     string // default for GPUs whose model neither the plan nor the inventory names
	trace     string
	routing   string
	policy    string // of gfaas-tokend
	set       []string
	slo       time.Duration
	duration  time.Duration
	seed      uint64
	gen.Pattern
}

func newPlan(env *cli.Env) *cobra.Command {
	o := planOptions{env: env, Pattern: gen.Defaults()}
	cmd := &cobra.Command{
		Use:   "plan PLAN.json",
		Short: "Predict the latencies of a plan",
		Long: `Predict the latencies of a plan by simulating its instances on a virtual clock. An
instance processes its requests in the order of arrival, while it has the right to use
its GPU (a lease). Durations come from the profile. Leases follow the rules of
gfaas-tokend --policy multi-token, in windows of 100 ms. In each window, an instance may
use its GPU for the fraction that is its quota or, if the plan has a timetable, at the
times that the timetable gives it. Other instances may use the time that it leaves
unused.

With --policy introspective, all instances with requests run at the same time, with the SM
share of the limit of their slices, and between the requests and the limits of the slices.
--set changes the parameters of this policy, which gfaas-tokend(1) lists. The objectives
of the functions decide which instances get their limits first. An instance is faster on
the SMs of its limit than on those of its request, by the rows of the profile with these
SM shares; between two rows, its speed is interpolated.

--policy tgs simulates TGS, a baseline of the Dilu paper, which gfaas-tokend does not have.
The first instance of each GPU in the plan is productive and runs at any time. The others
share a small part of the GPU, which grows by 1% every 100 ms while the productive
instance launches as much as before, and is halved when it launches less.

Requests arrive at the rates of the demand, with the pattern of --pattern, or at the
times of a recorded --trace. --routing is the rule that selects the instance of a
request:

    least     the free instance that would answer first
    weighted  a random instance, in proportion to the rates of the instances in the plan
    random    a random instance, with equal probabilities

The output contains, for each function, the latencies and the fraction of requests
that were answered within the objective; -o json and csv also have served_rps, the
answers per second up to the last request of any function. The objective is the slo_ms of the demand; if
that is missing, the slo in --functions, and otherwise --slo. -o html draws the
distributions.

The durations of an instance come from the profile row that has its configuration and
the model of its GPU. The model is taken from the plan or, if it is missing there, from
--inventory, and otherwise from --gpu-model. If none of these has it, and the profile has
different figures for this configuration on different GPU models, the exit status is 2.

If the p95 latency of a function exceeds its objective, or no instance serves the
function, the exit status is 3. The simulation needs no GPU. It includes the overhead
of a server only as far as the profile includes it.`,
		Example: `  # Make a plan and predict its latencies
  gfaas-place plan --profile profile.csv --demand demand.csv -o json --out-file plan.json
  gfaas-sim plan plan.json --profile profile.csv --demand demand.csv
  # Draw the latencies under bursty arrivals and random routing
  gfaas-sim plan plan.json --profile profile.csv --demand demand.csv --pattern gamma --cv 2 --routing random -o html --out-file plan.html`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.CompleteFileArgs("json"),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.profile, "profile", "", "profile: throughput and latency of instances (CSV)")
	f.StringVar(&o.demand, "demand", "", "demand: a file (CSV: function,rps,slo_ms) or a list like resnet=250,bert=40 (default: the demand of the plan)")
	f.StringVar(&o.functions, "functions", "", "function file (YAML) with the objectives of functions")
	f.StringVar(&o.inventory, "inventory", "", "inventory with the models of the GPUs whose model is not in the plan (CSV: node,gpu,mem_mib,model)")
	f.StringVar(&o.model, gpumodel.Flag, "", "GPU model of the GPUs whose model is neither in the plan nor in --inventory")
	f.StringVar(&o.trace, "trace", "", "trace of recorded requests (CSV: function,invoke_time_ms), instead of a pattern")
	f.DurationVar(&o.slo, "slo", 0, "p95 latency objective, like 100ms, of functions that have no objective in --demand and none in --functions")
	cli.Choice(cmd, &o.routing, "routing", "rule that selects the instance of a request", planned.Routings()...)
	cli.Choice(cmd, &o.policy, "policy", "policy of gfaas-tokend, or tgs", token.MultiToken, token.Introspection, planned.TGS)
	f.StringArrayVar(&o.set, "set", nil, "parameter of the policy introspective, as `KEY=VALUE`, like violation=1.3 (repeatable)")
	cli.Keys(cmd, "set", cli.ParameterKeys(token.IntrospectiveSettings())...)
	cli.Choice(cmd, &o.Shape, "pattern", "pattern of arrivals", gen.Shapes()...)
	f.Float64Var(&o.CV, "cv", o.CV, "for gamma: standard deviation of the gaps divided by their mean")
	f.DurationVar(&o.duration, "duration", 10*time.Minute, "minimum simulated time; it is extended until each function has 10,000 requests, or one of them has a million")
	f.Uint64Var(&o.seed, "seed", 1, "seed of the arrivals and the routing")
	cli.CompleteFiles(cmd, "csv", "profile", "demand", "inventory", "trace")
	cli.CompleteFiles(cmd, "yaml yml", "functions")
	env.Outputs(cmd, "table", "json", "csv", "html")
	cli.Meaning(cmd, cli.ExitNo, "a function misses its objective")
	return cmd
}

// prediction is the result of plan.
type prediction struct {
	Arrivals  string                      `json:"arrivals"`
	Routing   string                      `json:"routing"`
	Policy    string                      `json:"policy"`
	Functions []report.FunctionPrediction `json:"functions"`
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
	demands, functions, err := o.loadDemand(p)
	if err != nil {
		return err
	}
	if err := o.nameModels(cmd, &p); err != nil {
		return err
	}
	gpus, err := planned.FromPlan(p, rows, o.policy == token.Introspection)
	if _, ambiguous := errors.AsType[*profile.AmbiguousError](err); ambiguous {
		return gpumodel.AddHint(path, err)
	}
	if err != nil {
		return cli.Fail(cli.ExitFailure, "give the profile from which the plan was made", fmt.Errorf("%s: %w", path, err))
	}
	if wrong := verify.Plan(p, verify.Inputs{}); len(wrong) > 0 {
		o.env.Notef("note: the plan is not valid: %s", wrong[0].Message)
		if len(wrong) > 1 {
			o.env.Notef("note: %d more problems; run gfaas-place verify to list them", len(wrong)-1)
		}
	}
	result, err := o.predict(cmd.Context(), demands, functions, gpus)
	if err != nil {
		return err
	}
	if err := o.print(result); err != nil {
		return err
	}
	return o.verdict(result)
}

// loadDemand returns the functions with their rates and objectives, and the function file.
func (o *planOptions) loadDemand(p plan.Plan) (list []plan.Demand, functions []function.Function, err error) {
	list = lists.Map(p.Demand, func(d plan.Served) plan.Demand { return plan.Demand{Function: d.Function, RPS: d.RPS} })
	if o.demand != "" {
		if list, err = demand.Load(o.env, o.demand); err != nil {
			return nil, nil, err
		}
	}
	if o.functions != "" {
		if functions, err = cli.LoadFunctions(o.env, o.functions); err != nil {
			return nil, nil, err
		}
	}
	prepare.Objectives(list, functions, o.slo)
	return list, functions, nil
}

// predict simulates the plan.
func (o *planOptions) predict(ctx context.Context, demand []plan.Demand, described []function.Function, gpus [][]planned.Instance) (prediction, error) {
	result := prediction{Arrivals: o.Shape, Routing: o.routing, Policy: o.policy, Functions: []report.FunctionPrediction{}}
	introspective, err := o.introspective()
	if err != nil {
		return result, err
	}
	r := planned.Run{
		Demand: demand, GPUs: gpus, Pattern: o.Pattern, Duration: o.duration, Routing: planned.Routing(o.routing), Seed: o.seed,
		Policy: o.policy, Introspective: introspective, Functions: described,
	}
	if o.trace != "" {
		if r.Recorded, err = o.recorded(); err != nil {
			return result, err
		}
		result.Arrivals = "trace"
		if err := o.compareNames(demand, r.Recorded); err != nil {
			return result, err
		}
	}
	bar := o.env.Progress(len(planned.Groups(gpus)), "simulating", "groups of GPUs")
	defer func() { _ = bar.Finish() }()
	r.Progress = func(index int) error {
		_ = bar.Set(index)
		return ctx.Err()
	}
	functions, silent, err := r.Predict()
	for _, d := range demand {
		if _, known := r.Recorded[d.Function]; err == nil && r.Recorded != nil && !known {
			o.env.Notef("note: %s has no request of %s", o.trace, d.Function)
		} else if slices.Contains(silent, d.Function) {
			o.env.Notef("note: the simulation had no request of %s, because its rate is so low compared with other functions", d.Function)
		}
	}
	result.Functions = append(result.Functions, lists.Map(functions, predictionOf)...)
	return result, err
}

// nameModels sets the models of the GPUs for which the plan names no model.
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
	switch {
	case o.profile == "":
		return cli.Fail(cli.ExitUsage, "give the profile from which the plan was made", errors.New("--profile is missing: expected a file"))
	case o.trace != "" && (given("pattern") || given("cv") || given("duration")):
		return cli.Usagef("--trace contains the times of requests: it cannot be used with --pattern, --cv or --duration")
	case given("cv") && o.Shape != "gamma":
		return cli.Usagef("--cv needs --pattern gamma")
	case len(o.set) > 0 && o.policy != token.Introspection:
		return cli.Usagef("--set has no effect with --policy %s: expected --policy %s", o.policy, token.Introspection)
	case given("slo") && o.slo <= 0:
		return cli.Usagef("--slo %s: expected more than 0, like 100ms", o.slo)
	case o.duration < time.Second || o.duration > 1000*time.Hour:
		return cli.Usagef("--duration %s: expected 1s to 1000h", o.duration)
	}
	if err := o.Check(); err != nil {
		return cli.Usagef("%w", err)
	}
	_, err := o.introspective()
	return cmp.Or(err, cli.CheckStdin(path, o.profile, o.demand, o.functions, o.inventory, o.trace))
}

// introspective returns the parameters of --set.
func (o *planOptions) introspective() (token.IntrospectiveParameters, error) {
	p := token.DefaultIntrospective()
	if err := cli.SetParameters("set", token.IntrospectiveSettings(), &p, o.set...); err != nil {
		return p, err
	}
	if err := p.Check(); err != nil {
		return p, cli.Usagef("--set %w", err)
	}
	return p, nil
}

// compareNames prints a note about functions of the trace that are not in the demand. It returns
// an error if the trace has no request to a function of the demand, because then no objective
// could be missed.
func (o *planOptions) compareNames(demands []plan.Demand, recorded map[string][]float64) error {
	unknown := slices.Sorted(maps.Keys(recorded))
	total := len(unknown)
	for _, d := range demands {
		unknown = slices.DeleteFunc(unknown, func(name string) bool { return name == d.Function })
	}
	if len(unknown) == total {
		return cli.Fail(cli.ExitFailure, "use the same names of functions in the demand and the trace", fmt.Errorf("%s has no request of a function in the demand", o.trace))
	}
	if len(unknown) > 0 {
		text := csvfile.Quote(unknown[0])
		if more := len(unknown) - 1; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		o.env.Notef("note: %s has requests of %s, which is not in the demand; the result does not contain them", o.trace, text)
	}
	return nil
}

// lead is the longest simulated time before the first request of a trace.
const lead = time.Minute

// recorded returns the times of the requests in a trace, in ms, by function. If the first request
// is later than lead, it shifts all times by whole windows: simulating an instance that spans
// several GPUs takes time in each window, and there may be millions of empty ones.
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
	times := map[string][]float64{}
	for shift := time.Duration(-1); ; {
		row, err := rows.Next()
		if errors.Is(err, io.EOF) {
			return times, nil
		}
		if err != nil {
			return nil, err
		}
		if shift < 0 {
			shift = max(0, row.At-lead).Truncate(arrivals.Window * time.Millisecond)
		}
		name := names.All()[row.Function]
		times[name] = append(times[name], float64(row.At-shift)/float64(time.Millisecond))
	}
}

// predictionOf returns the figures of a function from its simulated latencies.
func predictionOf(f planned.Prediction) report.FunctionPrediction {
	p := report.FunctionPrediction{
		Function: f.Function, RPS: f.RPS, SLOMS: f.SLOMS, P50MS: roundToMicros(number.Quantile(f.Latencies, 0.5)),
		P95MS: roundToMicros(number.Quantile(f.Latencies, 0.95)), P99MS: roundToMicros(number.Quantile(f.Latencies, 0.99)),
		ServedRPS: f.ServedRPS,
	}
	p.Missed = len(f.Latencies) == 0 || p.SLOMS > 0 && p.P95MS > p.SLOMS
	if len(f.Latencies) == 0 {
		return p
	}
	if p.Within = 1; f.SLOMS > 0 {
		p.Within = planned.Within(f.Latencies, f.SLOMS)
	}
	p.Curve = lists.Map(report.Quantiles(), func(q float64) float64 { return number.Quantile(f.Latencies, q) })
	return p
}

// roundToMicros rounds a latency to microseconds.
func roundToMicros(ms float64) float64 { return float64(int64(ms*1000+0.5)) / 1000 }

func (o *planOptions) print(p prediction) error {
	if o.env.Output == "html" {
		setting := fmt.Sprintf("Arrivals: %s. Routing: %s. Simulated, without a GPU.", p.Arrivals, p.Routing)
		if p.Policy != token.MultiToken {
			setting = "Policy: " + p.Policy + ". " + setting
		}
		page := report.Prediction{Setting: setting, Functions: p.Functions}
		return o.env.Emit(func(w io.Writer) error { return report.PredictionHTML(w, page) })
	}
	ms, fraction := csvfile.Format, csvfile.Format
	header := []string{"function", "rps", "slo_ms", "p50_ms", "p95_ms", "p99_ms", "within", "served_rps"}
	if o.env.Output == "table" {
		ms, fraction = human, func(v float64) string { return number.Percent(v, 2) }
		header = []string{"FUNCTION", "RPS", "OBJECTIVE", "P50", "P95", "P99", "WITHIN", ""}
	}
	return o.env.Show(p, func() [][]string {
		rows := [][]string{header}
		for _, f := range p.Functions {
			row := []string{f.Function, csvfile.Format(f.RPS), ms(f.SLOMS), ms(f.P50MS), ms(f.P95MS), ms(f.P99MS), fraction(f.Within), csvfile.Format(f.ServedRPS)}
			if o.env.Output == "table" {
				row[1] = number.Trimmed(f.RPS, 3)
				row[7] = map[bool]string{true: "missed"}[f.Missed]
				if f.SLOMS == 0 {
					row[2], row[6] = "-", "-"
				}
			}
			rows = append(rows, row)
		}
		return rows
	})
}

// verdict prints a note for each function that misses its objective. It returns an exit status if
// there is such a function.
func (o *planOptions) verdict(p prediction) error {
	missed := false
	for _, f := range p.Functions {
		switch {
		case f.Curve == nil:
			o.env.Notef("%s: no instance in the plan serves it", f.Function)
		case f.Missed:
			o.env.Notef("%s: p95 is %s ms, but the objective is %s ms", f.Function, csvfile.Format(f.P95MS), csvfile.Format(f.SLOMS))
		}
		missed = missed || f.Missed
	}
	if missed {
		return cli.Exit(cli.ExitNo)
	}
	return nil
}
