package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/gpumodel"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/policy"
	"github.com/gfaas/gfaas/pkg/policy/scale"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/sim/scaling"
	"github.com/gfaas/gfaas/pkg/textfile"
	"github.com/gfaas/gfaas/pkg/trace"
)

// scaleOptions holds the flags of scale.
type scaleOptions struct {
	env       *cli.Env
	rps       string
	scaler    string
	profile   string
	function  string
	model     string // of the GPUs
	maxBatch  int
	estimator string
	traceOut  string
	first     string
	slo       time.Duration
	set       []string

	kind     scale.Kind
	settings scale.Options
}

func newScale(env *cli.Env) *cobra.Command {
	o := scaleOptions{env: env, settings: scale.DefaultOptions()}
	cmd := &cobra.Command{
		Use:   "scale",
		Short: "Try an autoscaler on a series of request rates",
		Long: `Run an autoscaler on the load of one function, a series of request rates in requests per
second (CSV: second,rps). The results are the number of cold starts, the fraction of the
requests that were beyond the capacity of the instances, and two sums over all
instances: instance-seconds, the times for which they were starting or running, and GPU
seconds, these times multiplied by SM share and quota (request).

The scalers (--scaler):

` + scalerHelp() + `
All scalers have three more parameters. min=0 is the minimum number of running
instances, and max=0 the maximum (0: no limit). With idle=N, one instance keeps running
until there have been no requests for N seconds; then all instances beyond min stop.
With idle=0, the default, lazy never stops the last instance, and eager and heuristic
stop all instances after a second without requests.

An instance has the throughput of a row with a batch only if batches reach it. With
--max-batch 1, the default, rows with a batch above 1 are not used. gfaas serve uses
the rows up to max of the batcher in function.yaml or, without batcher, up to inflight.

The run begins with the instances that serve the load of the first second or, with
--first call, with one instance, as in gfaas serve, where the first call starts it: it
has the scaler's smallest quota or, with heuristic, the row with the highest throughput
per share of a GPU. A scaler
receives the load of each second at the end of that second. A new instance serves
requests after the time cold_ms of the profile. A second that is missing in the series
has no requests. No instance starts because requests wait, as in gfaas serve with
--placement dilu or maxrect.`,
		Example: `  # Run a scaler on a series of request rates
  gfaas-sim scale --rps series.csv --scaler lazy --profile profile.csv --function resnet -o json
  # Generate the series
  gfaas-sim generate rps --pattern bursty | gfaas-sim scale --rps - --scaler eager --profile profile.csv --function resnet`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&o.rps, "rps", "", "series of request rates (CSV: second,rps)")
	cli.Choice(cmd, &o.scaler, "scaler", "autoscaler", scale.Names()...)
	f.StringVar(&o.profile, "profile", "", "profile: throughput and latency of instances (CSV)")
	f.StringVar(&o.function, "function", "", "function to scale; the profile has its rows")
	f.StringVar(&o.model, gpumodel.Flag, "", "use only the profile rows for this GPU model (not needed if the rows of the function are for only one GPU model)")
	f.IntVar(&o.maxBatch, "max-batch", 1, "largest batch that reaches an instance: max of the function's batcher, or its inflight")
	cli.Choice(cmd, &o.estimator, "estimator", "estimator of the load for eager and heuristic", scale.Estimators()...)
	f.DurationVar(&o.slo, "slo", 0, "latency objective: lazy and eager start the smallest configuration whose p95 meets it, and heuristic uses only those that meet it (0: none)")
	cli.Choice(cmd, &o.first, "first", "instances at the beginning: as many as the first second needs, or one that a call has started", "needed", "call")
	f.StringArrayVar(&o.set, "set", nil, "parameter of the scaler or its estimator, as `KEY=VALUE`, like out=20 (repeatable)")
	f.StringVar(&o.traceOut, "trace-out", "", "write each action with its reason to this file (JSON lines)")
	cli.CompleteFiles(cmd, "csv", "rps", "profile")
	cli.CompleteFiles(cmd, "jsonl", "trace-out")
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
	if _, err := scale.Unit(rows, o.slo); err != nil {
		return fmt.Errorf("%s: %s: %w", o.profile, o.function, err)
	}
	series, err := cli.Load(o.env, o.rps, trace.ReadSeries)
	if err != nil {
		return err
	}
	options, err := scaling.NewOptions(o.kind, rows, o.slo, o.estimator, o.settings, series.RPS[0], o.first == "call")
	if err != nil {
		return o.located(series, err)
	}
	if !slices.ContainsFunc(rows, func(r profile.Row) bool { return r.ColdMS > 0 }) {
		o.env.Notef("note: %s has no cold_ms of %s, so new instances serve requests at once", o.profile, o.function)
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

// located adds the file to an error of a run and, if possible, the line of the series.
func (o *scaleOptions) located(series trace.Series, err error) error {
	name := o.rps
	if name == "-" {
		name = textfile.Stdin
	}
	if load, ok := errors.AsType[*scaling.LoadError](err); ok {
		second := load.Second
		for series.Lines[second] == 0 {
			second-- // without a line, the load was estimated from earlier seconds
		}
		return &textfile.Fault{File: name, Line: int(series.Lines[second]), Where: "rps", What: err.Error()}
	}
	return fmt.Errorf("%s: %w", name, err)
}

func (o *scaleOptions) check() error {
	switch {
	case o.rps == "":
		return cli.Fail(cli.ExitUsage, "generate one with gfaas-sim generate rps", errors.New("--rps is missing: expected a file"))
	case o.profile == "":
		return cli.Fail(cli.ExitUsage, "measure a profile with gfaas-profile run FUNCTION.yaml", errors.New("--profile is missing: expected a file"))
	case o.function == "":
		return cli.Usagef("--function is missing: expected a function in the profile")
	case o.maxBatch < 1:
		return cli.Usagef("--max-batch %d: expected 1 or more", o.maxBatch)
	case o.slo < 0:
		return cli.Usagef("--slo %v: expected 0 or more", o.slo)
	}
	o.kind, _ = scale.KindOf(o.scaler)
	if !o.kind.Estimates && o.estimator != "last" {
		return cli.Usagef("--estimator %s has no effect with --scaler %s: expected --scaler %s", o.estimator, o.scaler, strings.Join(scale.Estimating(), " or "))
	}
	for _, text := range o.set {
		if err := o.setParameter(text); err != nil {
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
	return cli.CheckStdin(o.rps, o.profile)
}

// setParameter stores one key=value of --set.
func (o *scaleOptions) setParameter(text string) error {
	key, value, ok := strings.Cut(text, "=")
	if !ok {
		return cli.Usagef("--set %s: expected KEY=VALUE", csvfile.Quote(text))
	}
	parameter := policy.Find(scale.ParametersOf(o.scaler, o.estimator), key)
	if parameter == nil {
		return cli.Usagef("--set %s: unknown parameter of %s", csvfile.Quote(text), o.scalerName())
	}
	if err := parameter.Set(&o.settings, value); err != nil {
		return cli.Usagef("--set %s: %v", csvfile.Quote(text), err)
	}
	return nil
}

func (o *scaleOptions) scalerName() string {
	if !o.kind.Estimates {
		return o.scaler
	}
	return fmt.Sprintf("%s with the estimator %s", o.scaler, o.estimator)
}

// loadRows returns the function's configurations with a throughput.
func (o *scaleOptions) loadRows() ([]profile.Row, error) {
	measured, err := cli.Load(o.env, o.profile, profile.Read)
	if err != nil {
		return nil, err
	}
	of := slices.DeleteFunc(measured, func(r profile.Row) bool { return r.Function != o.function })
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
	rows := slices.DeleteFunc(of, func(r profile.Row) bool { return r.ThroughputRPS < csvfile.Smallest })
	if len(rows) == 0 {
		return nil, fmt.Errorf("%s: no configuration of %s has a throughput above 0", o.profile, csvfile.Quote(o.function))
	}
	reachable := scale.Reachable(rows, o.maxBatch)
	if len(reachable) == 0 {
		return nil, cli.Fail(cli.ExitFailure, "state the largest batch with --max-batch", fmt.Errorf("%s: all configurations of %s have a batch above %d", o.profile, csvfile.Quote(o.function), o.maxBatch))
	}
	if len(reachable) < len(rows) {
		o.env.Notef("note: %d of %s of %s not used, because of a batch above %d (--max-batch)", len(rows)-len(reachable), number.Count(len(rows), "row"), o.function, o.maxBatch)
	}
	return reachable, nil
}

// scalerHelp returns the part of the help that lists scalers and estimators.
func scalerHelp() string {
	scalers := lists.Map(scale.Kinds(), func(k scale.Kind) cli.Entry {
		return cli.Entry{Name: k.Name, Help: k.Help + cli.Parameters(k.Parameters)}
	})
	estimators := lists.Map(scale.EstimatorKinds(), func(k scale.EstimatorKind) cli.Entry {
		return cli.Entry{Name: k.Name, Help: k.Help + "." + cli.Parameters(k.Parameters)}
	})
	return cli.Entries(scalers) + "\n" + strings.Join(scale.Estimating(), " and ") + " use one of these estimates of the load (--estimator):\n\n" + cli.Entries(estimators)
}

// table returns the result as a table with one row. For csv, the header has the names of the JSON
// fields.
func (o *scaleOptions) table(r scaling.Result) [][]string {
	n := csvfile.Format
	if o.env.Output == "csv" {
		return [][]string{
			{"scaler", "cold_starts", "slo_violation_ratio", "instance_seconds", "max_instances", "gpu_seconds"},
			{r.Scaler, strconv.Itoa(r.ColdStarts), n(r.SLOViolationRatio), n(r.InstanceSeconds), strconv.Itoa(r.MaxInstances), n(r.GPUSeconds)},
		}
	}
	return [][]string{
		{"SCALER", "COLD STARTS", "VIOLATIONS", "INSTANCE SECONDS", "MAX INSTANCES", "GPU SECONDS"},
		{r.Scaler, strconv.Itoa(r.ColdStarts), number.Percent(r.SLOViolationRatio, 2),
			n(r.InstanceSeconds), strconv.Itoa(r.MaxInstances), number.Short(r.GPUSeconds)},
	}
}
