package place

import (
	"cmp"
	"encoding/csv"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/gpumodel"
	"github.com/gfaas/gfaas/pkg/command/picture"
	"github.com/gfaas/gfaas/pkg/command/planning"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	policy "github.com/gfaas/gfaas/pkg/policy/place"
	"github.com/gfaas/gfaas/pkg/policy/place/diff"
	"github.com/gfaas/gfaas/pkg/policy/place/prepare"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// planOptions holds the flags of plan.
type planOptions struct {
	env          *cli.Env
	files        inputs
	gpus         int
	mem          gpu.Bytes
	algorithm    string
	options      policy.Options
	limit        time.Duration
	current      currentOptions
	arrivals     planning.Arrivals
	instances    instanceOptions
	sweep        string
	printedNotes []string // notes that were printed
}

// maxGPUs is the largest value of --gpus.
const maxGPUs = 1_000_000

func newPlan(env *cli.Env) *cobra.Command {
	o := planOptions{env: env, options: policy.DefaultOptions()}
	cmd := &cobra.Command{
		Use:     "plan",
		Short:   "Plan instances on GPUs for a demand",
		Long:    planLong,
		Example: planExample,
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	o.files.flags(cmd)
	o.files.functionsFlag(cmd, "the objectives of functions, and the GPUs, memory and weights of an instance")
	f.IntVar(&o.gpus, "gpus", 0, "number of GPUs (default as many as necessary)")
	cli.Memory(f, &o.mem, "gpu-mem", "limit on the memory that the plan uses on each GPU, as a `size` like 16GiB (default no limit)")
	cli.Choice(cmd, &o.algorithm, "algorithm", "planning algorithm", policy.Names()...)
	cli.Choice(cmd, &o.options.Model, "model", "rule by which instances share a GPU", plan.ModelRect, plan.ModelTokens)
	f.BoolVar(&o.options.ShareModels, "share-models", false, "count the weights of a model once for all instances of a tenant on a GPU")
	f.Uint64Var(&o.options.Seed, "seed", 0, "seed of the search; another seed may give a different plan that is as good")
	f.DurationVar(&o.limit, "time-limit", prepare.TimeLimit, "time limit for improving the plan")
	cli.ParameterFlags(cmd, policy.Parameters(), &o.options)
	o.current.flags(cmd)
	o.arrivals.Flags(cmd)
	o.instances.flags(cmd)
	f.StringVar(&o.sweep, "what-if", "", "plan for multiples of the rates and objectives in the demand, given as `FACTORS` like 'rps=1,2,4 slo=0.5,1', and print a row for each combination")
	env.Outputs(cmd, "table", "json", "csv", "svg", "html")
	cli.Meaning(cmd, cli.ExitNo, "a part of the demand is not in the plan (unplaced)")
	return cmd
}

// withDemandLine adds the line of the demand to a planning error that concerns a function.
func (o *planOptions) withDemandLine(in policy.Input, err error) error {
	var of *policy.DemandError
	if !errors.As(err, &of) {
		return err
	}
	file := o.files.demand
	if file == "-" {
		file = textfile.Stdin
	}
	for _, d := range in.Demand {
		if d.Function == of.Function && d.Line > 0 {
			return &textfile.Fault{File: file, Line: d.Line, Where: "rps", What: err.Error()}
		}
	}
	return err
}

func (o *planOptions) run(cmd *cobra.Command) error {
	started := time.Now()
	o.env.Noted = func(text string) {
		if text, note := strings.CutPrefix(text, "note: "); note {
			o.printedNotes = append(o.printedNotes, text)
		}
	}
	if err := o.checkAlgorithm(cmd); err != nil {
		return err
	}
	in, err := o.input(cmd)
	if err != nil {
		return err
	}
	if cmd.Flags().Changed("what-if") {
		return o.whatIf(cmd, in)
	}
	expired, done := o.env.Deadline(started, o.limit, "planning")
	o.options.Expired = expired
	// --time-limit asks for the use of the whole time, unless several plans must share it.
	o.options.UntilExpired = cmd.Flags().Changed("time-limit") && o.current.path == "" && o.instances.maxPerGPU == 0
	p, changes, err := o.makePlan(cmd, in)
	steadyArrivals := o.steadyArrivalsNote(p, in)
	done()
	if err != nil {
		return o.withDemandLine(in, err)
	}
	o.printInputNotes(in)
	o.noteUnstableRows(p, in)
	o.notePlannedBatches(p, in)
	o.instances.noteCrowded(o.env, p)
	o.printSummary(changes)
	if err := o.print(p, in.Profile, changes, steadyArrivals); err != nil {
		return err
	}
	if len(p.Unplaced) > 0 {
		return cli.Exit(cli.ExitNo)
	}
	return nil
}

// print writes the plan in the chosen format. steadyArrivals is a sentence that follows the summary
// (see steadyArrivalsNote). In the format csv, print prints unplaced demand to standard error.
func (o *planOptions) print(p plan.Plan, rows []profile.Row, changes []diff.Change, steadyArrivals string) error {
	if o.env.Output == "csv" {
		for _, u := range p.Unplaced {
			o.env.Notef("unplaced: %s requests/s of %s: %s", csvfile.Format(u.RPS), u.Function, u.Reason)
		}
	}
	return o.env.Emit(func(w io.Writer) error {
		switch o.env.Output {
		case "json":
			return p.WriteJSON(w)
		case "csv":
			return csv.NewWriter(w).WriteAll(records(p))
		case "svg":
			_, err := w.Write(picture.SVG(p))
			return err
		case "html":
			return writePage(w, p, o.tables(p, rows, changes), summary(p)+steadyArrivals, o.printedNotes)
		}
		if err := printTable(w, p, rows, steadyArrivals); err != nil || o.current.path == "" {
			return err
		}
		return printChanges(w, changes)
	})
}

func (o *planOptions) check(cmd *cobra.Command) error {
	f := cmd.Flags()
	switch {
	case o.files.profile == "":
		return cli.Fail(cli.ExitUsage, "measure a profile with gfaas-profile run FUNCTION.yaml", errors.New("--profile is missing: expected a file"))
	case o.files.demand == "":
		return cli.Usagef("--demand is missing: expected a file or a list like resnet=250,bert=40")
	case cli.Conflict(f, "inventory", "gpus"):
		return cli.Usagef("--inventory and --gpus both list the GPUs: they cannot be used together")
	case f.Changed("gpus") && (o.gpus < 1 || o.gpus > maxGPUs):
		return cli.Usagef("--gpus %d: expected a number from 1 to %d", o.gpus, maxGPUs)
	case f.Changed("gpu-mem") && o.mem <= 0:
		return cli.Usagef("--gpu-mem %s: expected more than 0, like 16GiB", o.mem)
	}
	if err := cmp.Or(o.files.checkSLO(cmd), o.current.check(cmd), o.arrivals.Check(cmd), o.instances.check(cmd)); err != nil {
		return err
	}
	return cli.CheckStdin(o.files.profile, o.files.demand, o.files.inventory, o.files.functions, o.current.path)
}

// input checks the flags and reads their files.
func (o *planOptions) input(cmd *cobra.Command) (in policy.Input, err error) {
	if err := o.check(cmd); err != nil {
		return in, err
	}
	if in, err = o.files.load(o.env); err != nil {
		return in, err
	}
	if err := o.checkMultiGPUFunctions(in); err != nil {
		return in, err
	}
	if o.current.path != "" && o.sweep == "" {
		if o.current.plan, err = cli.Load(o.env, o.current.path, plan.Read); err != nil {
			return in, err
		}
	}
	prepare.Objectives(in.Demand, in.Functions, o.files.slo)
	prepare.Weights(in.Profile, in.Functions)
	if raised := prepare.Limits(in.Profile, in.Functions, o.options.ShareModels); len(raised) > 0 && (o.files.inventory != "" || o.mem > 0) {
		o.env.Notef("note: gpu_mem of %s is more than the measured memory; the plan uses gpu_mem, because gfaas up sets it as the limit of the instances", planning.List(raised))
	}
	o.noteBatches(in)
	o.arrivals.Apply(&in)
	for _, note := range o.arrivals.Notes(in) {
		o.env.Notef("note: %s", note)
	}
	for i := range in.Profile {
		in.Profile[i].GPUMemMiB += o.instances.contextMem.MiB()
	}
	in.MemMiB = o.mem.MiB()
	for i := range o.gpus {
		in.Devices = append(in.Devices, plan.Device{Node: plan.DefaultNode, Index: i, MemMiB: in.MemMiB})
	}
	if o.files.inventory != "" && in.MemMiB > 0 && !prepare.MemoryLimit(in.Devices, in.MemMiB) {
		o.env.Notef("note: --gpu-mem %s has no effect: it is more than the memory of any GPU in %s", o.mem, o.files.inventory)
	}
	if models := prepare.Models(&in, o.current.plan.GPUs, o.files.model); models != nil {
		return in, gpumodel.Unknown(o.files.profile, models, gpumodel.OrInventory)
	}
	return in, nil
}
