package sim

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/gpumodel"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/sim"
	"github.com/gfaas/gfaas/pkg/trace"
)

// workload holds the common flags of the commands that run queueing policies: they describe the
// simulation.
type workload struct {
	env         *cli.Env
	functions   string
	model       string // of the GPUs
	trace       string
	gpus        int
	mem         gpu.Bytes
	concurrency int
	pool        int
	set         []string
	seed        uint64
	repeatUntil time.Duration
	batchWindow time.Duration
	flagSet     *pflag.FlagSet
	unsorted    bool // the trace is not in order of time
	noted       bool // the note about the trace was printed
}

func (o *workload) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	o.flagSet = f
	f.StringVar(&o.functions, "functions", "", "file with the costs of the functions: a profile, or CSV with the columns function,warm_ms and optionally cold_ms,load_ms,mem_mib,weight,tenant,model,inflight,batch_slope,shared_start_ms,weights_mib")
	f.StringVar(&o.model, gpumodel.Flag, "", "if --functions is a profile: use only its rows for this GPU model (not needed if the rows of each function are for only one GPU model)")
	f.StringVar(&o.trace, "trace", "", "file with a trace of invocations: CSV with the columns function,invoke_time_ms, or with counts per minute")
	f.IntVar(&o.gpus, "gpus", 1, "number of GPUs")
	cli.Memory(f, &o.mem, "gpu-mem", "memory of each GPU, as a `size` like 16GiB (default no limit)")
	f.IntVar(&o.concurrency, "concurrency", 1, "limit on the invocations that a GPU runs at once; lb, lalb and lalb-o3 always run one")
	f.IntVar(&o.pool, "pool", residency.Unlimited, "limit on the number of instances on each GPU, idle and running; -1 means no limit")
	f.StringArrayVar(&o.set, "set", nil, "parameter of the policy or the simulator, as `KEY=VALUE`, like t=10s (repeatable)")
	f.Uint64Var(&o.seed, "seed", 1, "seed of the random arrival times within a minute, for a trace with counts per minute")
	f.DurationVar(&o.repeatUntil, "repeat-until", 0, "closed loop: when an invocation completes before this time of the trace, another one of its function arrives at once (default never)")
	f.DurationVar(&o.batchWindow, "batch-window", time.Second, "how long invocations of a function with inflight above 1 join those that an instance runs, while another function waits for an instance")
	cli.CompleteFiles(cmd, "csv", "functions", "trace")
	cli.Keys(cmd, "set", cli.ParameterKeys(parameters)...)
}

// Limits on flags, so that a typing error does not use up the memory.
const (
	maxGPUs        = 1 << 16
	maxConcurrency = 1 << 16
)

// check returns an error if a flag is invalid.
func (o *workload) check() error {
	switch {
	case o.functions == "":
		return cli.Usagef("--functions is missing: expected a file")
	case o.trace == "":
		return cli.Fail(cli.ExitUsage, "generate one with gfaas-sim generate", errors.New("--trace is missing: expected a file"))
	case o.gpus < 1 || o.gpus > maxGPUs:
		return cli.Usagef("--gpus %d is out of range, expected 1 to %d", o.gpus, maxGPUs)
	case o.concurrency < 1 || o.concurrency > maxConcurrency:
		return cli.Usagef("--concurrency %d is out of range, expected 1 to %d", o.concurrency, maxConcurrency)
	case o.pool < residency.Unlimited:
		return cli.Usagef("--pool %d is out of range, expected 0 or more, or -1 for no limit", o.pool)
	case o.repeatUntil < 0 || o.repeatUntil > trace.MaxSeconds*time.Second:
		return cli.Usagef("--repeat-until %v is out of range, expected 0 to %v", o.repeatUntil, trace.MaxSeconds*time.Second)
	case o.batchWindow < 0:
		return cli.Usagef("--batch-window %v: expected 0 or more", o.batchWindow)
	case o.mem < 0 || o.mem == 0 && o.flagSet.Changed("gpu-mem"):
		return cli.Usagef("--gpu-mem %s: expected more than 0, like 16GiB", o.mem)
	}
	return cli.CheckStdin(o.functions, o.trace)
}

// ignored returns the given flags that have no effect under any of the policies.
func (o *workload) ignored(policies []string) (flags []string) {
	anyExcept := func(not func(policy string) bool) bool {
		return slices.ContainsFunc(policies, func(policy string) bool { return !not(policy) })
	}
	several := anyExcept(queue.OneAtATime) && o.concurrency > 1
	if cli.OnCommandLine(o.flagSet, "concurrency") && !anyExcept(queue.OneAtATime) && o.concurrency > 1 {
		flags = append(flags, fmt.Sprintf("--concurrency %d", o.concurrency))
	}
	if cli.OnCommandLine(o.flagSet, "pool") && !anyExcept(func(policy string) bool { return queue.OneAtATime(policy) || policy == "fcfs-naive" }) {
		flags = append(flags, fmt.Sprintf("--pool %d", o.pool))
	}
	var keys []string
	for _, text := range o.set {
		key, _, _ := strings.Cut(text, "=")
		keys = append(keys, key)
	}
	unused := queue.Ignored(keys, policies...)
	adapts := several && slices.Contains(keys, "utilization") && !slices.Contains(unused, "utilization")
	moves := slices.Contains(keys, "memory") && anyExcept(queue.OneAtATime) && o.mem != 0 // fault and hints belong to it
	for _, key := range keys {
		if (key == "memory" || key == "fault" || key == "hints") && !moves || slices.Contains(unused, key) ||
			key == "interference" && !several || (key == "demand" || key == "utilization") && !adapts {
			flags = append(flags, "--set "+key)
		}
	}
	return flags
}

// noteIgnored prints a note for each flag without effect.
func (o *workload) noteIgnored(policies ...string) {
	reason := "no effect on any of the policies here"
	if len(policies) == 1 {
		reason = "no effect on " + policies[0] + " here"
	}
	for _, flag := range o.ignored(policies) {
		o.env.Notef("note: %s: %s", flag, reason)
	}
}

// load reads the functions and opens the trace.
func (o *workload) load() (sim.Config, *trace.Source, error) {
	c := sim.Config{GPUs: o.gpus, Mem: int64(o.mem), Concurrency: o.concurrency, RepeatUntil: o.repeatUntil, BatchWindow: o.batchWindow, Fault: sim.DefaultFault, Hints: sim.DefaultHints,
		Config: queue.Config{Pool: o.pool, Options: queue.Defaults()}}
	if err := o.check(); err != nil {
		return c, nil, err
	}
	if err := cli.SetParameters("set", parameters, &c, o.set...); err != nil {
		return c, nil, err
	}
	var err error
	c.Functions, err = cli.Load(o.env, o.functions, trace.ReadFunctionsOn(o.model))
	if _, several := errors.AsType[*trace.ModelsError](err); several {
		return c, nil, cli.Fail(cli.ExitUsage, gpumodel.ByFlag, err)
	}
	if err != nil {
		return c, nil, err
	}
	if len(c.Functions) == 0 {
		return c, nil, cli.Usagef("--%s %q: %s has no row of this model", gpumodel.Flag, o.model, o.functions)
	}
	source, err := trace.OpenSource(o.trace)
	return c, source, err
}

// simulate runs the trace under the policy in c. If the trace is not in order, simulate reads it
// whole and sorts it.
func (o *workload) simulate(c sim.Config, source *trace.Source) (*sim.Result, error) {
	names := trace.NamesOf(c.Functions, o.functions)
	if !o.unsorted {
		rows, err := source.Rows(names, o.seed)
		if err != nil {
			return nil, err
		}
		if text := rows.Note(); text != "" && !o.noted {
			o.noted = true
			o.env.Notef("note: %s", text)
		}
		result, err := sim.Run(c, rows)
		if !trace.IsUnsorted(err) {
			return result, err
		}
		o.unsorted = true
		o.env.Notef("note: %v: the trace was sorted by time", err)
		if c.Restart != nil {
			if err := c.Restart(); err != nil {
				return nil, err
			}
		}
	}
	sorted, err := source.Sorted(names, o.seed)
	if err != nil {
		return nil, err
	}
	return sim.Run(c, sorted)
}
