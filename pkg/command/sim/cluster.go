package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/events"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/online"
	"github.com/gfaas/gfaas/pkg/reason"
	"github.com/gfaas/gfaas/pkg/sim/cluster"
)

// maxClusterGPUs is the largest number of GPUs of a cluster.
const maxClusterGPUs = 1_000_000

// clusterOptions holds the flags of cluster.
type clusterOptions struct {
	env        *cli.Env
	events     string
	schedulers []string
	without    []string
	inventory  string
	nodes      int
	perNode    int
	mem        gpu.Bytes
	dilu       online.DiluOptions
	traceOut   string
}

func newCluster(env *cli.Env) *cobra.Command {
	o := clusterOptions{env: env, mem: 40 * gpu.GiB, dilu: online.DiluDefaults()}
	schedulers := lists.Map(online.Kinds(), func(k online.Kind) cli.Entry { return cli.Entry{Name: k.Name, Help: k.Help} })
	parameters := slices.Clone(online.DiluParameters)
	for i := range parameters {
		parameters[i].Help = "for dilu: " + parameters[i].Help
	}
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Simulate a scheduler that places the instances of a cluster",
		Long: `Simulate a scheduler that chooses the GPUs of each instance when the instance starts,
without knowledge of later starts and stops. The result contains the number of GPUs in
use, their unused resources (fragmentation) and the duration of decisions. All GPUs of
an instance are on one node. With several schedulers (--scheduler dilu,infless), the output
has a row for each; -o json is then a list.

An instance is guaranteed its SM request, a fraction of the SMs of each of its GPUs, and
may use up to its SM limit. In the formulas below, Σ request and Σ limit are the sums of
the SM requests and SM limits of the instances on a GPU, Σ memory is the sum of their
memory, and M is the memory of the GPU. α and β are --alpha and --beta for dilu, and 0.6
and 0.4 for infless.

The schedulers (--scheduler):

` + cli.Entries(schedulers) + `
The file of --events has these columns:

  time_s      time of the event in seconds
  action      start or stop
  instance    name of the instance
  function    name of its function
  kind        training, inference, llm or another word; for an llm instance that needs
              several GPUs, dilu prefers those with the most free memory
  gpus        number of GPUs of the instance
  sm_request  SM request of the instance, 0 to 1
  sm_limit    SM limit of the instance, from sm_request to 1
  mem_mib     memory of the instance on each GPU, in MiB
  gpu         GPU models on which the instance may run, like V100|A100 (optional); a
              GPU without a model in --inventory may run every instance

A stop needs only time_s, action and instance; the other cells can be empty.

If no GPU has room for an instance, the instance is rejected, not queued, and the exit
status of the command is 3. In the result, sm_fragmentation is the fraction of the SMs of
the GPUs in use that no instance requested, averaged over time, and mem_fragmentation is
the corresponding fraction of the memory. sm_allocated_peak is the largest fraction of
the SMs of the whole cluster that was requested at one time.

--without leaves out principles of dilu: wa (workload affinity) is the preference for
GPUs that host friends; rc (resource complementarity) is the choice by remaining SMs and
memory. Without rc, dilu takes the first GPU with room.`,
		Example: `  # Simulate Dilu's scheduler on 4000 GPUs
  gfaas-sim cluster --events events.csv --scheduler dilu --nodes 1000 --gpus-per-node 4 --gpu-mem 40GiB -o json
  # Write each decision with its reason to a file
  gfaas-sim cluster --events events.csv --inventory gpus.csv --trace-out decisions.jsonl`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.events, "events", "", "file with the starts and stops of instances (CSV)")
	f.StringSliceVar(&o.schedulers, "scheduler", online.Names()[:1], "schedulers, in the order of the output: "+strings.Join(online.Names(), ", "))
	f.StringSliceVar(&o.without, "without", nil, "for dilu: principles to leave out: wa, rc")
	f.StringVar(&o.inventory, "inventory", "", "inventory of GPUs (CSV: node,gpu,mem_mib, and optionally model)")
	f.IntVar(&o.nodes, "nodes", 1000, "number of nodes, if there is no --inventory")
	f.IntVar(&o.perNode, "gpus-per-node", 4, "number of GPUs of each node, if there is no --inventory")
	cli.Memory(f, &o.mem, "gpu-mem", "memory of each GPU")
	cli.ParameterFlags(cmd, parameters, &o.dilu)
	f.StringVar(&o.traceOut, "trace-out", "", "write each decision with its reason to this file (JSON lines)")
	cli.ListOf(cmd, "scheduler", online.Names()...)
	cli.ListOf(cmd, "without", "wa", "rc")
	cli.CompleteFiles(cmd, "csv", "events", "inventory")
	cli.CompleteFiles(cmd, "jsonl", "trace-out")
	env.Outputs(cmd, "table", "json", "csv")
	cli.Meaning(cmd, cli.ExitNo, "an instance was rejected")
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
		o.env.Notef("note: %s is not in order of time; its events were sorted", o.events)
	}
	devices, err := o.devices()
	if err != nil {
		return err
	}
	bar := o.env.Progress(len(o.schedulers)*len(log.Events), "simulating", "events")
	defer func() { _ = bar.Finish() }()
	var trace bytes.Buffer
	var results []cluster.Result
	for i, scheduler := range o.schedulers {
		w := o.world(scheduler, devices, &trace)
		w.Progress = func(played int) error {
			_ = bar.Set(i*len(log.Events) + played)
			return cmd.Context().Err()
		}
		result, err := cluster.Run(w, log.Events)
		if err != nil {
			return err
		}
		result.Scheduler = scheduler
		results = append(results, result)
	}
	_ = bar.Finish()
	if o.traceOut != "" {
		if err := o.env.WriteTo(o.traceOut, trace.Bytes()); err != nil {
			return err
		}
	}
	if err := o.show(results); err != nil {
		return err
	}
	if slices.ContainsFunc(results, func(r cluster.Result) bool { return r.Rejected > 0 }) {
		return cli.Exit(cli.ExitNo)
	}
	return nil
}

// world returns the inputs of a run with one scheduler. With --trace-out, the run writes its decisions to trace.
func (o *clusterOptions) world(scheduler string, devices []plan.Device, trace *bytes.Buffer) cluster.World {
	start := time.Now()
	w := cluster.World{
		Placer: online.Kinds()[slices.Index(online.Names(), scheduler)].New(devices, o.dilu), Mem: make([]gpu.Bytes, len(devices)),
		Clock: func() time.Duration { return time.Since(start) },
	}
	for i, d := range devices {
		w.Mem[i] = gpu.FromMiB(d.MemMiB - d.UsedMemMiB)
	}
	if o.traceOut != "" {
		w.Decided = tracer(trace, devices)
	}
	return w
}

// show prints the results: one as an object, and several as a list.
func (o *clusterOptions) show(results []cluster.Result) error {
	rows := func() [][]string { return o.table(results) }
	if len(results) == 1 {
		return o.env.Show(results[0], rows)
	}
	return o.env.Show(results, rows)
}

// check returns a usage error for invalid flags, and sets the options of dilu from --without.
func (o *clusterOptions) check(cmd *cobra.Command) error {
	f := cmd.Flags()
	switch {
	case o.events == "":
		return cli.Usagef("--events is missing: expected a file")
	case len(o.schedulers) == 0:
		return cli.Usagef("--scheduler is empty: expected one or more of %s", strings.Join(online.Names(), ", "))
	case o.traceOut != "" && len(o.schedulers) > 1:
		return cli.Usagef("--trace-out: expected one scheduler, not %s", strings.Join(o.schedulers, ", "))
	case cli.Conflict(f, "inventory", "nodes") || cli.Conflict(f, "inventory", "gpus-per-node") || cli.Conflict(f, "inventory", "gpu-mem"):
		return cli.Usagef("--inventory lists the GPUs: it cannot be used with --nodes, --gpus-per-node or --gpu-mem")
	case o.nodes < 1 || o.nodes > maxClusterGPUs:
		return cli.Usagef("--nodes %d: expected a number from 1 to %d", o.nodes, maxClusterGPUs)
	case o.perNode < 1 || o.perNode > events.MaxGPUs || o.nodes*o.perNode > maxClusterGPUs:
		return cli.Usagef("--gpus-per-node %d: expected a number from 1 to %d, and at most %d GPUs in total", o.perNode, events.MaxGPUs, maxClusterGPUs)
	case o.mem <= 0:
		return cli.Usagef("--gpu-mem %s: expected more than 0, like 40GiB", o.mem)
	}
	for i, name := range o.schedulers {
		if !slices.Contains(online.Names(), name) {
			return cli.Usagef("--scheduler %q: expected %s", name, strings.Join(online.Names(), ", "))
		}
		if slices.Contains(o.schedulers[:i], name) {
			return cli.Usagef("--scheduler lists %s twice: expected each scheduler once", name)
		}
	}
	for _, principle := range o.without {
		switch principle {
		case "wa":
			o.dilu.NoAffinity = true
		case "rc":
			o.dilu.NoComplement = true
		default:
			return cli.Usagef("--without %q: expected wa or rc", principle)
		}
	}
	if err := o.env.CheckOutput("trace-out", o.traceOut); err != nil {
		return err
	}
	if err := o.dilu.Validate(); err != nil {
		return cli.Usagef("--%w", err) // err begins with the name of the parameter, which is also that of its flag
	}
	return cli.CheckStdin(o.events, o.inventory)
}

// devices returns the GPUs of the cluster. The GPUs of a node are adjacent.
func (o *clusterOptions) devices() ([]plan.Device, error) {
	if o.inventory != "" {
		list, err := cli.Load(o.env, o.inventory, plan.ReadInventory)
		return online.Grouped(list), err
	}
	devices := make([]plan.Device, 0, o.nodes*o.perNode)
	for n := range o.nodes {
		name := fmt.Sprintf("node%d", n)
		for g := range o.perNode {
			devices = append(devices, plan.Device{Node: name, Index: g, MemMiB: o.mem.MiB()})
		}
	}
	return devices, nil
}

// decision is a line of --trace-out.
type decision struct {
	Time     float64 `json:"time_s"`
	Instance string  `json:"instance"`
	Node     string  `json:"node,omitempty"`
	GPUs     []int   `json:"gpus"`   // indices on the node; empty if rejected
	Fresh    int     `json:"fresh"`  // number of these GPUs that were not in use before
	Reason   string  `json:"reason"` // text form of Cause

	Cause reason.Reason `json:"cause"`
}

// tracer returns a function that appends a line to b for each decision.
func tracer(b *bytes.Buffer, devices []plan.Device) func(events.Event, online.Decision) {
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	return func(e events.Event, d online.Decision) {
		line := decision{Time: e.Time, Instance: e.Instance, GPUs: []int{}, Fresh: d.NewGPUs, Reason: d.Reason.String(), Cause: d.Reason}
		for _, g := range d.GPUs {
			line.Node = devices[g].Node
			line.GPUs = append(line.GPUs, devices[g].Index)
		}
		_ = enc.Encode(line) // writing to a buffer does not fail
	}
}

// table returns a header, and a row for each result. For csv, the columns have the names of the JSON fields, except that
// decision_us.mean is decision_mean_us, and decision_us.p99 is decision_p99_us.
func (o *clusterOptions) table(results []cluster.Result) [][]string {
	count, n := strconv.Itoa, csvfile.Format
	return cli.Rows(results, func(r cluster.Result) []cli.Cell {
		if o.env.Output == "csv" {
			return []cli.Cell{{"scheduler", r.Scheduler}, {"gpus", count(r.GPUs)}, {"gpus_peak", count(r.GPUsPeak)},
				{"gpu_seconds", n(r.GPUSeconds)}, {"sm_fragmentation", n(r.SMFragmentation)},
				{"mem_fragmentation", n(r.MemFragmentation)}, {"sm_allocated_peak", n(r.AllocatedPeak)},
				{"placed", count(r.Placed)}, {"rejected", count(r.Rejected)},
				{"decision_mean_us", n(r.Decision.Mean)}, {"decision_p99_us", n(r.Decision.P99)}}
		}
		return []cli.Cell{{"SCHEDULER", r.Scheduler}, {"GPUS", count(r.GPUs)}, {"PEAK", count(r.GPUsPeak)},
			{"GPU SECONDS", number.Fixed(r.GPUSeconds, 0)}, {"SM FRAGMENTATION", number.Percent(r.SMFragmentation, 1)},
			{"MEM FRAGMENTATION", number.Percent(r.MemFragmentation, 1)},
			{"SM ALLOCATED", number.Percent(r.AllocatedPeak, 1)}, {"PLACED", count(r.Placed)},
			{"REJECTED", count(r.Rejected)}, {"MEAN µs", number.Fixed(r.Decision.Mean, 2)},
			{"P99 µs", number.Fixed(r.Decision.P99, 2)}}
	})
}
