package sim

import (
	"errors"
	"fmt"
	"slices"
	"strings"

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

// workload is the flags that say what is simulated on what, as given: those of
// every command that runs queueing policies.
type workload struct {
	env         *cli.Env
	functions   string
	model       string // of GPU
	trace       string
	gpus        int
	mem         gpu.Bytes
	concurrency int
	pool        int
	set         []string
	seed        uint64
	given       *pflag.FlagSet
	unsorted    bool // the trace was found to be
	noted       bool // it was told what is to be known of the trace
}

func (o *workload) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	o.given = f
	f.StringVar(&o.functions, "functions", "", "what functions cost (CSV: function,warm_ms and optionally cold_ms,load_ms,mem_mib,weight,tenant,model; or a profile)")
	f.StringVar(&o.model, gpumodel.Flag, "", "GPU model whose rows count, where --functions is a profile (default the only one of each function)")
	f.StringVar(&o.trace, "trace", "", "the invocations (CSV: function,invoke_time_ms, or counts a minute)")
	f.IntVar(&o.gpus, "gpus", 1, "how many GPUs there are")
	cli.Memory(f, &o.mem, "gpu-mem", "memory of each GPU, like `16GiB` (default no limit)")
	f.IntVar(&o.concurrency, "concurrency", 1, "invocations that a GPU runs at once (D); lb, lalb and lalb-o3 run one")
	f.IntVar(&o.pool, "pool", residency.Unlimited, "containers that exist on each GPU, running ones included; -1 is no limit")
	f.StringArrayVar(&o.set, "set", nil, "a parameter of the policy or the model, like `t=10s`")
	f.Uint64Var(&o.seed, "seed", 1, "what invocations that a trace counts by the minute are spread by")
	cli.Files(cmd, "csv", "functions", "trace")
	cli.Keys(cmd, "set", cli.ParameterKeys(parameters)...)
}

// most are limits that keep a slip of the finger from taking all memory.
const (
	mostGPUs        = 1 << 16
	mostConcurrency = 1 << 16
)

// check finds what is wrong with the flags themselves.
func (o *workload) check() error {
	switch {
	case o.functions == "":
		return cli.Usagef("--functions is missing: expected a file")
	case o.trace == "":
		return cli.Fail(cli.ExitUsage, "gfaas-sim generate makes one", errors.New("--trace is missing: expected a file"))
	case o.functions == "-" && o.trace == "-":
		return cli.Usagef("standard input (-) can be only one of the files")
	case o.gpus < 1 || o.gpus > mostGPUs:
		return cli.Usagef("--gpus %d is out of range, expected 1 to %d", o.gpus, mostGPUs)
	case o.concurrency < 1 || o.concurrency > mostConcurrency:
		return cli.Usagef("--concurrency %d is out of range, expected 1 to %d", o.concurrency, mostConcurrency)
	case o.pool < residency.Unlimited:
		return cli.Usagef("--pool %d is out of range, expected 0 or more, or -1 for no limit", o.pool)
	case o.mem < 0 || o.mem == 0 && o.given.Changed("gpu-mem"):
		return cli.Usagef("--gpu-mem %s: expected more than 0, like 16GiB", o.mem)
	}
	return nil
}

// ignored are the flags that were given and that none of the policies looks at.
func (o *workload) ignored(policies []string) (out []string) {
	others := func(not func(policy string) bool) bool {
		return slices.ContainsFunc(policies, func(policy string) bool { return !not(policy) })
	}
	several := others(queue.OneAtATime) && o.concurrency > 1
	if cli.Given(o.given, "concurrency") && !others(queue.OneAtATime) && o.concurrency > 1 {
		out = append(out, fmt.Sprintf("--concurrency %d", o.concurrency))
	}
	if cli.Given(o.given, "pool") && !others(func(policy string) bool { return queue.OneAtATime(policy) || policy == "fcfs-naive" }) {
		out = append(out, fmt.Sprintf("--pool %d", o.pool))
	}
	var keys []string
	for _, text := range o.set {
		key, _, _ := strings.Cut(text, "=")
		keys = append(keys, key)
	}
	none := queue.Ignored(keys, policies...)
	adapts := several && slices.Contains(keys, "utilization") && !slices.Contains(none, "utilization")
	for _, key := range keys {
		if slices.Contains(none, key) || key == "interference" && !several || (key == "demand" || key == "utilization") && !adapts {
			out = append(out, "--set "+key)
		}
	}
	return out
}

// noteIgnored tells of what was said in vain.
func (o *workload) noteIgnored(policies ...string) {
	who := "none of the policies uses it here"
	if len(policies) == 1 {
		who = policies[0] + " does not use it here"
	}
	for _, flag := range o.ignored(policies) {
		o.env.Notef("note: %s: %s", flag, who)
	}
}

// load reads the functions and opens the trace.
func (o *workload) load() (sim.Config, *trace.Source, error) {
	c := sim.Config{GPUs: o.gpus, Mem: int64(o.mem), Concurrency: o.concurrency,
		Config: queue.Config{Pool: o.pool, Options: queue.Defaults()}}
	if err := o.check(); err != nil {
		return c, nil, err
	}
	for _, text := range o.set {
		if err := cli.SetParameter(parameters, &c, text); err != nil {
			return c, nil, err
		}
	}
	var err error
	c.Functions, err = cli.Load(o.env, o.functions, trace.ReadFunctionsOn(o.model))
	if several := new(trace.ModelsError); errors.As(err, &several) {
		return c, nil, cli.Fail(cli.ExitUsage, gpumodel.ByFlag, err)
	}
	if err != nil {
		return c, nil, err
	}
	if len(c.Functions) == 0 {
		return c, nil, cli.Usagef("--%s %q: %s has no row of it", gpumodel.Flag, o.model, o.functions)
	}
	source, err := trace.OpenSource(o.trace)
	return c, source, err
}

// simulate runs the trace under the config's policy. A trace that is not in
// order is read whole and sorted first.
func (o *workload) simulate(c sim.Config, source *trace.Source) (*sim.Result, error) {
	names := trace.NamesOf(c.Functions, o.functions)
	if o.unsorted {
		return o.simulateSorted(c, source, names)
	}
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
	o.env.Notef("note: %v: sorted by time", err)
	if c.Restart != nil {
		if err := c.Restart(); err != nil {
			return nil, err
		}
	}
	return o.simulateSorted(c, source, names)
}

func (o *workload) simulateSorted(c sim.Config, source *trace.Source, names *trace.Names) (*sim.Result, error) {
	sorted, err := source.Sorted(names, o.seed)
	if err != nil {
		return nil, err
	}
	return sim.Run(c, sorted)
}

// memory says how much memory functions need that no GPU has.
func memory(c sim.Config, f trace.Function) string {
	return fmt.Sprintf("%s needs %s and a GPU has %s", f.Name, gpu.FromMiB(f.MemMiB), gpu.Bytes(c.Mem))
}
