package sim

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/policy"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/sim"
	"github.com/gfaas/gfaas/pkg/trace"
)

// queueOptions holds the flags of queue.
type queueOptions struct {
	workload
	policy   string
	traceOut string
}

func newQueue(env *cli.Env) *cobra.Command {
	o := queueOptions{workload: workload{env: env}}
	cmd := &cobra.Command{
		Use:   "queue",
		Short: "Run a trace of invocations through a queueing policy",
		Long: `Run a trace of invocations through a queueing policy on simulated GPUs. The results are
latencies, the number of starts of each kind (see below), the misses, which are all
starts that are not gpu-warm, and the largest difference between the service that two
functions got (fairness). docs/simulation.md has all rules.

A GPU runs up to --concurrency invocations at the same time, each in an instance of
its function on that GPU. The duration of an invocation depends on the idle instances
of its function on the GPU, and on the costs of the function (--functions):

  gpu-warm   the memory of an idle instance is on the GPU: warm_ms
  host-warm  the memory of all idle instances is on the host: warm_ms + load_ms
  cold       no instance is idle: cold_ms, which includes the start of an instance

--pool limits the number of instances on a GPU, and --gpu-mem the memory that they have
there. Functions with shared_start_ms and the same tenant and model share their weights,
as with gfaas-modeld: on a GPU where an instance of one of them has started before, a
cold start of each of them takes shared_start_ms + warm_ms.

To stay within these limits, a policy evicts idle instances: it removes them, or
moves their memory to the host. The least recently used instance is evicted first,
unless the policy has another rule below.

Each function has a queue. Some policies compare the virtual times of functions: the
sum of the warm_ms of all invocations that were dispatched for a function, divided by
its weight. When an invocation arrives at an empty queue, the virtual time of its
function may be less than that of all functions with waiting invocations. It is then
raised to the least of theirs.

A policy dispatches next:

` + policyHelp() + `
lb, lalb and lalb-o3 run one invocation at a time on a GPU. For them, a GPU has models
instead of instances: an invocation takes warm_ms if the GPU has the model of its
function, and warm_ms + load_ms otherwise.

--set sets parameters of the policy. The policies that have a parameter are given in
parentheses:

` + parameterHelp() + `
--set also sets parameters of the simulator:

` + cli.Entries([]cli.Entry{
			{Name: "interference=0", Help: "if n other invocations run on a GPU when an invocation starts there, it takes 1 + interference × n times as long"},
			{Name: "demand=100", Help: "for the parameter utilization: how busy one running invocation keeps its GPU, as a percentage of the time"},
			{Name: "memory", Help: moverHelp()},
			{Name: "fault=1.44", Help: "for memory=uvm and madvise: how many times as long it takes to fetch and evict memory page by page as to move it as a whole"},
			{Name: "hints=10ms", Help: "for memory=madvise: the time of the hints of an invocation"},
			{Name: "weights-mem", Help: "memory of each GPU for the weights that functions share, in addition to --gpu-mem, like 16GiB; the least recently used weights without instances make room (default no limit)"},
		}) + `
If a function needs more memory than a GPU has, its invocations are rejected and
counted, all others run, and the exit status is 3. A trace that is not in the order of
time is sorted. Percentiles use the nearest rank. Percentiles of all invocations are
exact for up to 262,144 invocations, and those of one function for up to 512; with more
invocations, they are at most half a percent off.`,
		Example: `  # Run a trace with up to 16 instances on one GPU
  gfaas-sim queue --functions costs.csv --trace trace.csv --policy fcfs --pool 16
  # Set a parameter of the policy
  gfaas-sim queue --functions costs.csv --trace trace.csv --policy mqfq-sticky --gpus 2 --concurrency 2 --gpu-mem 16GiB --set t=5s -o json
  # Write each decision with its reason to a file
  zcat trace.csv.gz | gfaas-sim queue --functions costs.csv --trace - --policy lalb-o3 --gpus 12 --trace-out decisions.jsonl`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.flags(cmd)
	cli.Choice(cmd, &o.policy, "policy", "queueing policy", queue.Names()...)
	cmd.Flags().StringVar(&o.traceOut, "trace-out", "", "write each decision with its reason to this file (JSON lines)")
	cli.CompleteFiles(cmd, "jsonl", "trace-out")
	env.Outputs(cmd, "table", "json", "jsonl", "csv", "yaml")
	cli.Meaning(cmd, cli.ExitNo, "an invocation was rejected, because its function is larger than a GPU")
	return cmd
}

// moverHelp describes the values of the parameter memory.
func moverHelp() string {
	text := "how memory moves between the host and a GPU, for comparisons; by default, an eviction takes no time, and memory returns in load_ms."
	for _, m := range sim.Movers() {
		text += " " + m.Name + ": " + m.Help + "."
	}
	return strings.TrimSuffix(text, ".")
}

// policyHelp returns the list of policies for the help.
func policyHelp() string {
	return cli.Entries(lists.Map(queue.Kinds(), func(k queue.Kind) cli.Entry { return cli.Entry{Name: k.Name, Help: k.Help} }))
}

// parameterHelp returns the list of the policies' parameters for the help, each with the
// policies that use it.
func parameterHelp() string {
	return cli.Entries(lists.Map(queue.Parameters(), func(p policy.Parameter[queue.Options]) cli.Entry {
		users := lists.Filter(queue.Kinds(), func(k queue.Kind) bool { return policy.Find(k.Parameters, p.Key) != nil })
		names := strings.Join(lists.Map(users, func(k queue.Kind) string { return k.Name }), ", ")
		entry := cli.Entry{Name: p.Key, Help: p.Help + " (" + cmp.Or(names, "all") + ")"}
		if p.Default != "" {
			entry.Name += "=" + p.Default
		}
		return entry
	}))
}

func (o *queueOptions) run(ctx context.Context) error {
	if err := o.env.CheckOutput("trace-out", o.traceOut); err != nil {
		return err
	}
	c, source, err := o.load()
	if err != nil {
		return err
	}
	defer source.Close()
	o.noteIgnored(o.policy)
	c.Policy = o.policy
	bar, shown := o.env.Progress(-1, "simulating", "invocations"), int64(0)
	c.Progress = func(arrived int64) error {
		_ = bar.Add(int(max(arrived-shown, 0)))
		shown = arrived
		return ctx.Err()
	}
	start := time.Now()
	result, err := o.recorded(c, source)
	_ = bar.Finish()
	if err != nil {
		return err
	}
	result.WallMS = float64(time.Since(start).Microseconds()) / 1e3
	if err := o.print(result); err != nil {
		return err
	}
	if result.Rejected > 0 {
		o.explain(c)
		return cli.Exit(cli.ExitNo)
	}
	return nil
}

// recorded runs the simulation and, with --trace-out, writes all decisions to that file.
func (o *queueOptions) recorded(c sim.Config, source *trace.Source) (*sim.Result, error) {
	if o.traceOut == "" {
		return o.simulate(c, source)
	}
	file, err := o.env.Create(o.traceOut)
	if err != nil {
		return nil, err
	}
	defer file.Cleanup()
	out := bufio.NewWriter(file)
	log := sim.NewLog(out, c.Functions)
	c.Decide = log.Decide
	c.Restart = func() error {
		out.Reset(file)
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return err
		}
		return file.Truncate(0)
	}
	result, err := o.simulate(c, source)
	if err != nil {
		return nil, err
	}
	if err := out.Flush(); err != nil {
		return nil, err
	}
	return result, file.Commit()
}

// explain prints a note for each function that no GPU can hold.
func (o *workload) explain(c sim.Config) {
	for _, f := range c.Functions {
		if sim.TooLarge(c, f) {
			o.env.Notef("note: rejected: %s needs %s, and a GPU has %s", f.Name, gpu.FromMiB(f.MemMiB), gpu.Bytes(c.Mem))
		}
	}
}

func (o *queueOptions) print(r *sim.Result) error {
	if o.env.Output != "table" {
		return o.env.Show(r, func() [][]string { return functionRows(r) })
	}
	return o.env.Emit(func(w io.Writer) error {
		return cli.Summary(w, summary(r), functionRows(r))
	})
}

// summary returns the lines of a result that do not refer to single functions.
func summary(r *sim.Result) [][2]string {
	lines := [][2]string{
		{"policy", r.Policy},
		{"invocations", fmt.Sprintf("%d, of which %d completed, %d rejected", r.Invocations, r.Completed, r.Rejected)},
		{"makespan", human(r.MakespanMS)},
		{"latency", fmt.Sprintf("mean %s, p50 %s, p95 %s, p99 %s, max %s", human(r.LatencyMS.Mean), human(r.LatencyMS.P50),
			human(r.LatencyMS.P95), human(r.LatencyMS.P99), human(r.LatencyMS.Max))},
		{"starts", fmt.Sprintf("%d cold, %d host-warm, %d gpu-warm", r.ColdStarts, r.HostWarmStarts, r.GPUWarmStarts)},
		{"misses", number.Percent(r.MissRatio, 1)},
		{"GPUs busy", number.Percent(r.GPUUtilization, 1)},
		{"largest gap", fmt.Sprintf("%s (MQFQ allows %s)", human(r.Fairness.MaxGapMS), human(r.Fairness.BoundMS))},
	}
	if queue.OneAtATime(r.Policy) {
		lines[5][1] += fmt.Sprintf(", %s of them cached on another GPU", number.Percent(r.FalseMissRatio, 1))
	}
	return lines
}

// functionRows returns a row for each function. For csv, the header has the names of the JSON
// fields.
func functionRows(r *sim.Result) [][]string {
	n := csvfile.Format
	return cli.Rows(r.Functions, func(f sim.FunctionResult) []cli.Cell {
		return []cli.Cell{{"function", f.Function}, {"invocations", integer(f.Invocations)}, {"mean_ms", n(f.MeanMS)},
			{"p99_ms", n(f.P99MS)}, {"variance", n(f.Variance)}, {"service_ms", n(f.ServiceMS)}}
	})
}

// human formats milliseconds for people.
func human(ms float64) string {
	switch {
	case ms >= 1e4:
		return fmt.Sprintf("%.1f s", ms/1e3)
	case ms >= 100:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return strings.TrimSuffix(fmt.Sprintf("%.2f", ms), ".00") + " ms"
}
