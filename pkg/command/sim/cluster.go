package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/events"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/online"
	"github.com/gfaas/gfaas/pkg/sim/cluster"
)

// maxCluster is the most GPUs a cluster may have.
const maxCluster = 1_000_000

// schedulers are the words of --scheduler.
var schedulers = []string{"dilu", "exclusive", "infless", "fast"}

// clusterOptions are the flags of cluster, as given.
type clusterOptions struct {
	env       *cli.Env
	events    string
	scheduler string
	inventory string
	nodes     int
	perNode   int
	mem       gpu.Bytes
	dilu      online.DiluOptions
	traceOut  string
}

func newCluster(env *cli.Env) *cobra.Command {
	o := clusterOptions{env: env, mem: 40 * gpu.GiB, dilu: online.DiluDefaults()}
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Place a cluster's instances as they come and go",
		Long: `Plays starts and stops of instances to a scheduler that knows nothing of what
comes next, and counts the GPUs in use, what is left over on them, and how long
decisions take. All GPUs of an instance are on one node.

dilu       SM requests sum to at most --omega on a GPU, limits to --gamma; first
           beside what runs beside the function's other instances, then where
           least is left over (Dilu, section 3.3)
infless    SM limits sum to at most 1; where least is left over
fast       the same, by SMs alone
exclusive  whole GPUs

EVENTS.csv has the columns time_s, action (start or stop), instance, function,
kind (training, inference, llm or any other word, of which dilu looks for llm),
gpus, sm_request, sm_limit (fractions of a GPU) and mem_mib; the last three are
per GPU. A column gpu may name the models of GPU that will do, as in V100|A100.
A stop needs no more than its instance.

What has no room is rejected, not queued; then the exit status is 3. In the
result sm_fragmentation and mem_fragmentation are the part of the GPUs in use
that nobody requested, over time; sm_allocated_peak is the largest part of the
whole cluster that was requested at once.`,
		Example: `  gfaas-sim cluster --events events.csv --scheduler dilu --nodes 1000 --gpus-per-node 4 --gpu-mem 40GiB -o json
  gfaas-sim cluster --events events.csv --inventory gpus.csv --trace-out decisions.jsonl`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.events, "events", "", "what starts and stops (CSV)")
	f.StringVar(&o.scheduler, "scheduler", schedulers[0], "who places: "+strings.Join(schedulers, ", "))
	f.StringVar(&o.inventory, "inventory", "", "the GPUs there are (CSV: node,gpu,mem_mib)")
	f.IntVar(&o.nodes, "nodes", 1000, "how many nodes there are, without --inventory")
	f.IntVar(&o.perNode, "gpus-per-node", 4, "how many GPUs each has")
	cli.Memory(f, &o.mem, "gpu-mem", "memory of each GPU")
	f.Float64Var(&o.dilu.Omega, "omega", o.dilu.Omega, "dilu: most that SM requests on a GPU sum to")
	f.Float64Var(&o.dilu.Gamma, "gamma", o.dilu.Gamma, "dilu: most that SM limits on a GPU sum to")
	f.Float64Var(&o.dilu.Alpha, "alpha", o.dilu.Alpha, "dilu: weight of SMs left over, 0 to 1")
	f.Float64Var(&o.dilu.Beta, "beta", o.dilu.Beta, "dilu: weight of memory left over, 0 to 1")
	f.StringVar(&o.traceOut, "trace-out", "", "write every decision and its reason to this file (JSON lines)")
	cli.Words(cmd, "scheduler", schedulers...)
	cli.Files(cmd, "csv", "events", "inventory")
	cli.Files(cmd, "jsonl", "trace-out")
	env.Outputs(cmd, "table", "json", "csv")
	return cmd
}

func (o *clusterOptions) run(cmd *cobra.Command) error {
	if err := o.check(cmd); err != nil {
		return err
	}
	log, err := cli.Load(o.env, o.events, events.Read)
	if err != nil {
		return err
	}
	if log.Sorted {
		o.env.Notef("note: %s is not in the order of time: its events were sorted", o.events)
	}
	devices, err := o.devices()
	if err != nil {
		return err
	}
	began := time.Now()
	w := cluster.World{
		Placer: o.placer(devices), Mem: make([]gpu.Bytes, len(devices)),
		Clock: func() time.Duration { return time.Since(began) },
	}
	for i, d := range devices {
		w.Mem[i] = gpu.FromMiB(d.MemMiB - d.UsedMemMiB)
	}
	var trace bytes.Buffer
	if o.traceOut != "" {
		w.Decided = tracer(&trace, devices)
	}
	bar := o.env.Progress(len(log.Events), "simulating", "events")
	w.Progress = func(played int) error {
		_ = bar.Set(played)
		return cmd.Context().Err()
	}
	result, err := cluster.Run(w, log.Events)
	_ = bar.Finish()
	if err != nil {
		return err
	}
	result.Scheduler = o.scheduler
	if o.traceOut != "" {
		if err := o.env.WriteTo(o.traceOut, trace.Bytes()); err != nil {
			return err
		}
	}
	if err := o.env.Show(result, func() [][]string { return o.table(result) }); err != nil {
		return err
	}
	if result.Rejected > 0 {
		return cli.Exit(cli.ExitNo)
	}
	return nil
}

func (o *clusterOptions) check(cmd *cobra.Command) error {
	f := cmd.Flags()
	switch {
	case o.events == "":
		return cli.Usagef("--events is missing: expected a file")
	case o.events == "-" && o.inventory == "-":
		return cli.Usagef("standard input (-) can be only one of the files")
	case !slices.Contains(schedulers, o.scheduler):
		return cli.Usagef("--scheduler %q: expected %s", o.scheduler, strings.Join(schedulers, ", "))
	case cli.Conflict(f, "inventory", "nodes") || cli.Conflict(f, "inventory", "gpus-per-node") || cli.Conflict(f, "inventory", "gpu-mem"):
		return cli.Usagef("--inventory says which GPUs there are: expected no --nodes, --gpus-per-node or --gpu-mem beside it")
	case o.nodes < 1 || o.nodes > maxCluster:
		return cli.Usagef("--nodes %d: expected a number from 1 to %d", o.nodes, maxCluster)
	case o.perNode < 1 || o.perNode > events.MaxGPUs || o.nodes*o.perNode > maxCluster:
		return cli.Usagef("--gpus-per-node %d: expected a number from 1 to %d, and at most %d GPUs together", o.perNode, events.MaxGPUs, maxCluster)
	case o.mem <= 0:
		return cli.Usagef("--gpu-mem %s: expected more than 0, like 40GiB", o.mem)
	}
	if err := o.env.CheckOutput("trace-out", o.traceOut); err != nil {
		return err
	}
	if err := o.dilu.Validate(); err != nil {
		return cli.Usagef("--%w", err)
	}
	return nil
}

// devices are the GPUs of the cluster, node by node.
func (o *clusterOptions) devices() ([]plan.Device, error) {
	if o.inventory != "" {
		list, err := cli.Load(o.env, o.inventory, plan.ReadInventory)
		return online.Grouped(list), err
	}
	out := make([]plan.Device, 0, o.nodes*o.perNode)
	for n := range o.nodes {
		name := fmt.Sprintf("node%d", n)
		for g := range o.perNode {
			out = append(out, plan.Device{Node: name, Index: g, MemMiB: o.mem.MiB()})
		}
	}
	return out, nil
}

func (o *clusterOptions) placer(devices []plan.Device) online.Placer {
	switch o.scheduler {
	case "exclusive":
		return online.Exclusive(devices)
	case "infless":
		return online.INFless(devices)
	case "fast":
		return online.FaST(devices)
	}
	return online.Dilu(devices, o.dilu)
}

// decision is a line of --trace-out.
type decision struct {
	Time     float64 `json:"time_s"`
	Instance string  `json:"instance"`
	Node     string  `json:"node,omitempty"`
	GPUs     []int   `json:"gpus"` // on the node; none: rejected
	Fresh    int     `json:"fresh"`
	Reason   string  `json:"reason"`
}

func tracer(b *bytes.Buffer, devices []plan.Device) func(events.Event, online.Decision) {
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	return func(e events.Event, d online.Decision) {
		line := decision{Time: e.Time, Instance: e.Instance, GPUs: []int{}, Fresh: d.Fresh, Reason: string(d.Reason)}
		for _, g := range d.GPUs {
			line.Node = devices[g].Node
			line.GPUs = append(line.GPUs, devices[g].Index)
		}
		_ = enc.Encode(line) // a buffer takes all
	}
}

// table is a result as a row, under the names of the JSON form for csv.
func (o *clusterOptions) table(r cluster.Result) [][]string {
	if o.env.Output == "csv" {
		n := csvfile.Format
		return [][]string{
			{"scheduler", "gpus", "gpus_peak", "gpu_seconds", "sm_fragmentation", "mem_fragmentation", "sm_allocated_peak", "placed", "rejected",
				"decision_mean_us", "decision_p99_us"},
			{r.Scheduler, fmt.Sprint(r.GPUs), fmt.Sprint(r.GPUsPeak), n(r.GPUSeconds), n(r.SMFragmentation), n(r.MemFragmentation),
				n(r.AllocatedPeak), fmt.Sprint(r.Placed), fmt.Sprint(r.Rejected), n(r.Decision.Mean), n(r.Decision.P99)},
		}
	}
	return [][]string{
		{"SCHEDULER", "GPUS", "PEAK", "GPU SECONDS", "SM FRAGMENTATION", "MEM FRAGMENTATION", "SM ALLOCATED", "PLACED", "REJECTED", "MEAN µs", "P99 µs"},
		{r.Scheduler, fmt.Sprint(r.GPUs), fmt.Sprint(r.GPUsPeak), number.Fixed(r.GPUSeconds, 0), number.Percent(r.SMFragmentation, 1),
			number.Percent(r.MemFragmentation, 1), number.Percent(r.AllocatedPeak, 1), fmt.Sprint(r.Placed), fmt.Sprint(r.Rejected),
			number.Fixed(r.Decision.Mean, 2), number.Fixed(r.Decision.P99, 2)},
	}
}
