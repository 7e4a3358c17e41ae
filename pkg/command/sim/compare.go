package sim

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/sim/report"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/sim"
	"github.com/gfaas/gfaas/pkg/trace"
)

// compareOptions holds the flags of compare.
type compareOptions struct {
	workload
	policies   []string
	byFunction bool
}

func newCompare(env *cli.Env) *cobra.Command {
	o := compareOptions{workload: workload{env: env}}
	cmd := &cobra.Command{
		Use:   "compare",
		Short: "Compare queueing policies on one trace",
		Long: `Run the same trace through several queueing policies, and print a row of results for
each policy. gfaas-sim queue --help describes the policies and their parameters (--set).

The table has the most important columns. -o wide adds the makespan (the time from the
first arrival to the last completion), gpu-warm starts, fairness and false misses. A
miss is a start that is not gpu-warm, and it is false if another GPU had the model of
the function; the column has the fraction of the misses that are false. -o csv has the
columns of -o wide in full precision. -o json and -o jsonl have an object for each
policy, with the same fields as that of gfaas-sim queue -o json. With --by-function, the
table and -o csv have a row for each policy and function instead. -o html writes a self-contained page with the policy that has the lowest latency, the
distributions of latency, and the mean latency of each function.

lb, lalb and lalb-o3 have no cold starts: they load models onto GPUs, and never start an
instance. Compare them only with each other.

If a function needs more memory than a GPU has, its invocations are rejected, and the
exit status is 3.`,
		Example: `  # Compare two policies
  gfaas-sim compare --functions costs.csv --trace trace.csv --pool 16 --policy fcfs,mqfq-sticky
  # Compare all policies on a page with pictures
  gfaas-sim compare --functions costs.csv --trace trace.csv --gpus 4 --gpu-mem 16GiB -o html --out-file report.html`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.flags(cmd)
	cmd.Flags().StringSliceVar(&o.policies, "policy", queue.Names(), "policies to compare, in the order of the output")
	cli.ListOf(cmd, "policy", queue.Names()...)
	cmd.Flags().BoolVar(&o.byFunction, "by-function", false, "for table and csv: print a row for each policy and function")
	env.Outputs(cmd, "table", "wide", "json", "jsonl", "csv", "html")
	cli.Meaning(cmd, cli.ExitNo, "an invocation was rejected, because its function is larger than a GPU")
	return cmd
}

func (o *compareOptions) run(ctx context.Context) error {
	if err := o.checkPolicies(); err != nil {
		return err
	}
	c, source, err := o.load()
	if err != nil {
		return err
	}
	defer source.Close()
	o.noteIgnored(o.policies...)
	results, err := o.simulateAll(ctx, c, source)
	if err != nil {
		return err
	}
	if err := o.print(c, results); err != nil {
		return err
	}
	if slices.ContainsFunc(results, func(r *sim.Result) bool { return r.Rejected > 0 }) {
		o.explain(c)
		return cli.Exit(cli.ExitNo)
	}
	return nil
}

func (o *compareOptions) checkPolicies() error {
	if len(o.policies) == 0 {
		return cli.Usagef("--policy is empty: expected one or more of %s", strings.Join(queue.Names(), ", "))
	}
	for i, name := range o.policies {
		if !slices.Contains(queue.Names(), name) {
			return cli.Usagef("unknown policy %s in --policy: expected one or more of %s", csvfile.Quote(name), strings.Join(queue.Names(), ", "))
		}
		if slices.Contains(o.policies[:i], name) {
			return cli.Usagef("--policy lists %s twice: expected each policy once", name)
		}
	}
	return nil
}

func (o *compareOptions) simulateAll(ctx context.Context, c sim.Config, source *trace.Source) ([]*sim.Result, error) {
	c.Progress = func(int64) error { return ctx.Err() }
	c.Curve = report.Quantiles()
	bar := o.env.Progress(len(o.policies), "simulating", "policies")
	defer func() { _ = bar.Finish() }()
	var results []*sim.Result
	for _, name := range o.policies {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		c.Policy = name
		start := time.Now()
		r, err := o.simulate(c, source)
		if err != nil {
			return nil, err
		}
		r.WallMS = float64(time.Since(start).Microseconds()) / 1e3
		results = append(results, r)
		_ = bar.Add(1)
	}
	return results, nil
}

func (o *compareOptions) print(c sim.Config, results []*sim.Result) error {
	switch o.env.Output {
	case "html":
		return o.env.Emit(func(w io.Writer) error {
			return report.HTML(w, report.Comparison{Setting: o.setting(c, results[0]), Results: results})
		})
	}
	if o.byFunction {
		return o.env.Show(results, func() [][]string { return functionsByPolicy(results) })
	}
	if o.env.Output == "csv" {
		return o.env.Show(results, func() [][]string { return compareRows(results, csvfile.Format, csvfile.Format) })
	}
	return o.env.Show(results, func() [][]string {
		rows := compareRows(results, human, func(v float64) string { return number.Percent(v, 1) })
		rows[0] = columns
		if o.env.Output == "wide" {
			return rows
		}
		return narrow(rows)
	})
}

// functionsByPolicy returns a row for each policy and function.
func functionsByPolicy(results []*sim.Result) (rows [][]string) {
	for _, r := range results {
		of := functionRows(r)
		if rows == nil {
			rows = append(rows, append([]string{"policy"}, of[0]...))
		}
		for _, row := range of[1:] {
			rows = append(rows, append([]string{r.Policy}, row...))
		}
	}
	return rows
}

// setting describes the simulation in one line.
func (o *compareOptions) setting(c sim.Config, r *sim.Result) string {
	text := fmt.Sprintf("%d invocations of %d functions on %d GPUs", r.Invocations, len(r.Functions), c.GPUs)
	if c.GPUs == 1 {
		text = strings.TrimSuffix(text, "s")
	}
	if c.Mem > 0 {
		text += " of " + o.mem.String()
	}
	text += fmt.Sprintf("; concurrency %d", c.Concurrency)
	if c.Pool >= 0 {
		text += fmt.Sprintf(", up to %d instances on each GPU", c.Pool)
	}
	if len(o.set) > 0 {
		text += "; " + strings.Join(o.set, ", ")
	}
	return text + ". Simulated, without a GPU."
}

// onlyWide lists the columns that only the output wide has. Without them, the table fits into 120
// columns.
var onlyWide = []string{"MAKESPAN", "GPU-WARM", "FALSE MISSES", "LARGEST GAP", "BOUND"}

// narrow returns a table without the columns in onlyWide.
func narrow(table [][]string) (rows [][]string) {
	for _, row := range table {
		var cells []string
		for i, cell := range row {
			if !slices.Contains(onlyWide, table[0][i]) {
				cells = append(cells, cell)
			}
		}
		rows = append(rows, cells)
	}
	return rows
}

// columns replaces the header of compareRows in the tables.
var columns = []string{"POLICY", "MEAN", "P50", "P95", "P99", "MAX", "MAKESPAN", "COLD", "HOST-WARM", "GPU-WARM",
	"MISSES", "FALSE MISSES", "BUSY", "REJECTED", "LARGEST GAP", "BOUND"}

// compareRows returns a row for each policy. The header has the names of the JSON fields.
func compareRows(results []*sim.Result, ms, ratio func(float64) string) [][]string {
	rows := [][]string{{"policy", "mean_ms", "p50_ms", "p95_ms", "p99_ms", "max_ms", "makespan_ms", "cold_starts", "host_warm_starts",
		"gpu_warm_starts", "miss_ratio", "false_miss_ratio", "gpu_utilization", "rejected", "max_gap_ms", "bound_ms"}}
	for _, r := range results {
		l := r.LatencyMS
		rows = append(rows, []string{r.Policy, ms(l.Mean), ms(l.P50), ms(l.P95), ms(l.P99), ms(l.Max), ms(r.MakespanMS), integer(r.ColdStarts),
			integer(r.HostWarmStarts), integer(r.GPUWarmStarts), ratio(r.MissRatio), ratio(r.FalseMissRatio), ratio(r.GPUUtilization),
			integer(r.Rejected), ms(r.Fairness.MaxGapMS), ms(r.Fairness.BoundMS)})
	}
	return rows
}
