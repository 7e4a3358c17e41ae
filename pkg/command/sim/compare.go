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

// compareOptions are the flags of compare, as given.
type compareOptions struct {
	workload
	policies []string
}

func newCompare(env *cli.Env) *cobra.Command {
	o := compareOptions{workload: workload{env: env}}
	cmd := &cobra.Command{
		Use:   "compare",
		Short: "Run one trace through several queueing policies",
		Long: `Runs the same trace through several queueing policies, as gfaas-sim queue does
with one, and puts what came out side by side. -o html makes one page, which
needs no network, with the distributions of latency and what each function got:
each policy's curve has marks at places of its own, and a box that takes it away;
-o json and jsonl are the results of gfaas-sim queue, one after another.

lb, lalb and lalb-o3 keep models on GPUs, not containers: they never pay for a
new container, and are to be compared with each other.

When a function is larger than a GPU its invocations are rejected, and the exit
status is 3.`,
		Example: `  gfaas-sim compare --functions costs.csv --trace trace.csv --pool 16 --policy fcfs,mqfq-sticky
  gfaas-sim compare --functions costs.csv --trace trace.csv --gpus 4 --gpu-mem 16GiB -o html --out-file report.html`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.flags(cmd)
	cmd.Flags().StringSliceVar(&o.policies, "policy", queue.Names(), "the policies, in the order they are to be shown")
	cli.ListOf(cmd, "policy", queue.Names()...)
	env.Outputs(cmd, "table", "json", "jsonl", "csv", "html")
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
		return cli.Usagef("--policy is empty, expected some of %s", strings.Join(queue.Names(), ", "))
	}
	for i, name := range o.policies {
		if !slices.Contains(queue.Names(), name) {
			return cli.Usagef("--policy %s: there is no such policy, expected some of %s", csvfile.Quote(name), strings.Join(queue.Names(), ", "))
		}
		if slices.Contains(o.policies[:i], name) {
			return cli.Usagef("--policy %s is named twice, expected once", name)
		}
	}
	return nil
}

func (o *compareOptions) simulateAll(ctx context.Context, c sim.Config, source *trace.Source) ([]*sim.Result, error) {
	c.Progress = func(int64) error { return ctx.Err() }
	c.Curve = report.Quantiles()
	bar := o.env.Progress(len(o.policies), "simulating", "policies")
	defer func() { _ = bar.Finish() }()
	var out []*sim.Result
	for _, name := range o.policies {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		c.Policy = name
		begin := time.Now()
		r, err := o.simulate(c, source)
		if err != nil {
			return nil, err
		}
		r.WallMS = float64(time.Since(begin).Microseconds()) / 1e3
		out = append(out, r)
		_ = bar.Add(1)
	}
	return out, nil
}

func (o *compareOptions) print(c sim.Config, results []*sim.Result) error {
	switch o.env.Output {
	case "html":
		return o.env.Emit(func(w io.Writer) error {
			return report.HTML(w, report.Comparison{Setting: o.setting(c, results[0]), Results: results})
		})
	case "csv":
		return o.env.Show(results, func() [][]string { return compareRows(results, csvfile.Format, csvfile.Format) })
	}
	return o.env.Show(results, func() [][]string {
		rows := compareRows(results, human, func(v float64) string { return number.Percent(v, 1) })
		rows[0] = columns
		return rows
	})
}

// setting is what was simulated on what, in a line.
func (o *compareOptions) setting(c sim.Config, r *sim.Result) string {
	text := fmt.Sprintf("%d invocations of %d functions on %d GPUs", r.Invocations, len(r.Functions), c.GPUs)
	if c.GPUs == 1 {
		text = strings.TrimSuffix(text, "s")
	}
	if c.Mem > 0 {
		text += " of " + o.mem.String()
	}
	text += fmt.Sprintf("; %d at once on each", c.Concurrency)
	if c.Pool >= 0 {
		text += fmt.Sprintf(", %d containers on each", c.Pool)
	}
	if len(o.set) > 0 {
		text += "; " + strings.Join(o.set, ", ")
	}
	return text + ". Simulated: no GPU was used."
}

// columns are the names of compareRows in the table.
var columns = []string{"POLICY", "MEAN", "P50", "P95", "P99", "MAX", "MAKESPAN", "COLD", "HOST-WARM", "GPU-WARM",
	"MISSES", "FALSE MISSES", "BUSY", "REJECTED", "LARGEST GAP", "BOUND"}

// compareRows is a line a policy, under the names of the JSON form.
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
