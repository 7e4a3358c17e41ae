package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/gpumodel"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/policy"
	"github.com/gfaas/gfaas/pkg/policy/scale"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/sim/scaling"
	"github.com/gfaas/gfaas/pkg/textfile"
	"github.com/gfaas/gfaas/pkg/trace"
)

// scaleOptions are the flags of scale, as given.
type scaleOptions struct {
	env       *cli.Env
	rps       string
	scaler    string
	profile   string
	function  string
	model     string // of GPU
	estimator string
	traceOut  string
	set       []string

	kind     scale.Kind
	settings scale.Options
}

func newScale(env *cli.Env) *cobra.Command {
	o := scaleOptions{env: env, settings: scale.DefaultOptions()}
	cmd := &cobra.Command{
		Use:   "scale",
		Short: "Try a scaler on a series of loads",
		Long: `Runs a scaler on a series of requests per second (CSV: second,rps) and counts cold
starts, requests beyond what the instances could serve, and the seconds for which
instances were deployed.

` + scalerHelp() + `
Every scaler has three more parameters. At least min=0 and at most max instances run
(max=0 means no bound). With idle=N, the last instance runs until no request came
for N seconds; then all instances beyond min stop. Without it (idle=0), lazy never stops
the last instance, and eager and heuristic stop all in a second without requests.

The run begins with the instances that the first second needs. A scaler gets the load
of a second when that second ends. A new instance serves after the profile's
cold_ms. A second that is not in the series has no requests.`,
		Example: `  gfaas-sim scale --rps series.csv --scaler lazy --profile profile.csv --function resnet -o json
  gfaas-sim generate rps --pattern bursty | gfaas-sim scale --rps - --scaler eager --profile profile.csv --function resnet`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&o.rps, "rps", "", "the series of loads (CSV: second,rps)")
	cli.Choice(cmd, &o.scaler, "scaler", "how the number of instances follows the load", scale.Names()...)
	f.StringVar(&o.profile, "profile", "", "what instances sustain (CSV)")
	f.StringVar(&o.function, "function", "", "the function of the profile that is scaled")
	f.StringVar(&o.model, gpumodel.Flag, "", "GPU model whose rows count (default the only one of the function)")
	cli.Choice(cmd, &o.estimator, "estimator", "what load eager and heuristic provide for", scale.Estimators()...)
	f.StringArrayVar(&o.set, "set", nil, "a parameter of the scaler or its estimator, like `out=20`")
	f.StringVar(&o.traceOut, "trace-out", "", "write every action with its reason to this file (JSON lines)")
	cli.Files(cmd, "csv", "rps", "profile")
	cli.Files(cmd, "jsonl", "trace-out")
	env.Outputs(cmd, "table", "json", "jsonl", "csv", "yaml")
	return cmd
}

func (o *scaleOptions) run(ctx context.Context) error {
	if err := o.check(); err != nil {
		return err
	}
	rows, err := o.loadRows()
	if err != nil {
		return err
	}
	series, err := cli.Load(o.env, o.rps, trace.ReadSeries)
	if err != nil {
		return err
	}
	options, err := o.simulation(rows, series.RPS[0])
	if err != nil {
		return o.located(series, err)
	}
	var decisions bytes.Buffer
	enc := json.NewEncoder(&decisions)
	if o.traceOut != "" {
		options.Decided = func(d scaling.Decision) { _ = enc.Encode(d) }
	}
	bar := o.env.Progress(len(series.RPS), "simulating", "seconds")
	options.Progress = func(second int) error {
		_ = bar.Set(second)
		return ctx.Err()
	}
	result, err := scaling.Run(series.RPS, options)
	_ = bar.Finish()
	if err != nil {
		return o.located(series, err)
	}
	result.Scaler = o.scaler
	if o.traceOut != "" {
		if err := o.env.WriteTo(o.traceOut, decisions.Bytes()); err != nil {
			return err
		}
	}
	return o.env.Show(result, func() [][]string { return o.table(result) })
}

// located is an error of a run with the line of the series that it is about.
func (o *scaleOptions) located(series trace.Series, err error) error {
	name := o.rps
	if name == "-" {
		name = textfile.Stdin
	}
	var load *scaling.LoadError
	if errors.As(err, &load) {
		for series.Lines[load.Second] == 0 {
			load.Second-- // a second without a line has what was estimated from those before
		}
		return &textfile.Fault{File: name, Line: int(series.Lines[load.Second]), Where: "rps", What: err.Error()}
	}
	return fmt.Errorf("%s: %w", name, err)
}

func (o *scaleOptions) check() error {
	switch {
	case o.rps == "":
		return cli.Fail(cli.ExitUsage, "gfaas-sim generate rps makes one", errors.New("--rps is missing: expected a file"))
	case o.profile == "":
		return cli.Fail(cli.ExitUsage, "gfaas-profile run FUNCTION.yaml measures one", errors.New("--profile is missing: expected a file"))
	case o.function == "":
		return cli.Usagef("--function is missing: expected a function of the profile")
	case o.rps == "-" && o.profile == "-":
		return cli.Usagef("standard input (-) can be only one of the files")
	}
	o.kind, _ = scale.KindOf(o.scaler)
	if !o.kind.Estimates && o.estimator != "last" {
		return cli.Usagef("--estimator %s: %s scaling looks at each load, expected %s with it", o.estimator, o.scaler, strings.Join(estimating(), " or "))
	}
	for _, text := range o.set {
		if err := o.parameter(text); err != nil {
			return err
		}
	}
	if err := o.env.CheckOutput("trace-out", o.traceOut); err != nil {
		return err
	}
	if err := o.settings.Check(); err != nil {
		return cli.Usagef("--set %w", err)
	}
	if _, err := scale.NewEstimator(o.estimator, o.settings.Estimate); err != nil {
		return cli.Usagef("--set %w", err)
	}
	return nil
}

// parameter stores one key=value of --set.
func (o *scaleOptions) parameter(text string) error {
	key, value, ok := strings.Cut(text, "=")
	if !ok {
		return cli.Usagef("--set %s: expected KEY=VALUE", csvfile.Quote(text))
	}
	parameter := policy.Find(scale.ParametersOf(o.scaler, o.estimator), key)
	if parameter == nil {
		return cli.Usagef("--set %s: %s has no such parameter", csvfile.Quote(text), o.who())
	}
	if err := parameter.Set(&o.settings, value); err != nil {
		return cli.Usagef("--set %s: %v", csvfile.Quote(text), err)
	}
	return nil
}

func (o *scaleOptions) who() string {
	if !o.kind.Estimates {
		return o.scaler
	}
	return fmt.Sprintf("%s with the estimator %s", o.scaler, o.estimator)
}

// loadRows are the function's configurations that sustain something.
func (o *scaleOptions) loadRows() ([]profile.Row, error) {
	all, err := cli.Load(o.env, o.profile, profile.Read)
	if err != nil {
		return nil, err
	}
	of := slices.DeleteFunc(all, func(r profile.Row) bool { return r.Function != o.function })
	if len(of) == 0 {
		return nil, fmt.Errorf("%s has no row of the function %s", o.profile, csvfile.Quote(o.function))
	}
	if of, err = gpumodel.Rows(of, o.profile, o.model); err != nil {
		return nil, err
	}
	if models := profile.Models(of); profile.Differ(of) {
		return nil, gpumodel.Unknown(o.profile, models, gpumodel.ByFlag)
	} else if len(models) > 0 {
		of = profile.On(of, models[0])
	}
	able := slices.DeleteFunc(of, func(r profile.Row) bool { return r.ThroughputRPS < csvfile.Smallest })
	if len(able) == 0 {
		return nil, fmt.Errorf("%s: no configuration of %s sustains any request", o.profile, csvfile.Quote(o.function))
	}
	return able, nil
}

// simulation sets the run up for a series that begins with that load.
func (o *scaleOptions) simulation(rows []profile.Row, first float64) (scaling.Options, error) {
	unit, err := scale.Unit(rows)
	if err != nil {
		return scaling.Options{}, err
	}
	load, err := scale.NewEstimator(o.estimator, o.settings.Estimate)
	if err != nil {
		return scaling.Options{}, err
	}
	out := scaling.Options{Cold: o.cold(rows)}
	out.Scaler = o.make(unit, rows, load)
	// What the first second needs, whatever the estimator.
	out.First, err = scaling.First(o.make(unit, rows, scale.Last{}), first)
	return out, err
}

// make makes the scaler.
func (o *scaleOptions) make(unit scale.Instance, rows []profile.Row, load scale.Estimator) *scale.Scaler {
	return o.kind.New(scale.Setup{Rows: rows, Unit: unit, Load: load, Options: o.settings})
}

// estimating returns the scalers that follow an estimate of the load.
func estimating() (names []string) {
	for _, k := range scale.Kinds() {
		if k.Estimates {
			names = append(names, k.Name)
		}
	}
	return names
}

// scalerHelp returns the part of the help that lists scalers and estimators.
func scalerHelp() string {
	var scalers, estimators []cli.Entry
	for _, k := range scale.Kinds() {
		scalers = append(scalers, cli.Entry{Name: k.Name, Help: k.Help + cli.Parameters(k.Parameters)})
	}
	for _, k := range scale.EstimatorKinds() {
		estimators = append(estimators, cli.Entry{Name: k.Name, Help: k.Help + "." + cli.Parameters(k.Parameters)})
	}
	return cli.Entries(scalers) + "\n" + strings.Join(estimating(), " and ") + " follow an estimate of the load, --estimator:\n\n" + cli.Entries(estimators)
}

// cold is how long an instance takes until it serves: its row's cold_ms, or
// where that is missing the largest of the function's.
func (o *scaleOptions) cold(rows []profile.Row) func(profile.Row) time.Duration {
	most := 0.0
	for _, r := range rows {
		most = max(most, r.ColdMS)
	}
	if most == 0 {
		o.env.Notef("note: %s has no cold_ms of %s: a new instance serves at once", o.profile, o.function)
	}
	return func(r profile.Row) time.Duration {
		if r.ColdMS == 0 {
			r.ColdMS = most
		}
		return time.Duration(math.Round(r.ColdMS * float64(time.Millisecond)))
	}
}

// table is a result as a row, under the names of the JSON form for csv.
func (o *scaleOptions) table(r scaling.Result) [][]string {
	n := csvfile.Format
	if o.env.Output == "csv" {
		return [][]string{
			{"scaler", "cold_starts", "slo_violation_ratio", "instance_seconds", "max_instances"},
			{r.Scaler, strconv.Itoa(r.ColdStarts), n(r.SLOViolationRatio), n(r.InstanceSeconds), strconv.Itoa(r.MaxInstances)},
		}
	}
	return [][]string{
		{"SCALER", "COLD STARTS", "VIOLATIONS", "INSTANCE SECONDS", "MAX INSTANCES"},
		{r.Scaler, strconv.Itoa(r.ColdStarts), number.Percent(r.SLOViolationRatio, 2),
			n(r.InstanceSeconds), strconv.Itoa(r.MaxInstances)},
	}
}
