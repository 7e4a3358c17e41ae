package place

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/demand"
	"github.com/gfaas/gfaas/pkg/command/gpumodel"
	"github.com/gfaas/gfaas/pkg/command/planning"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/plan"
	policy "github.com/gfaas/gfaas/pkg/policy/place"
	"github.com/gfaas/gfaas/pkg/policy/place/prepare"
	"github.com/gfaas/gfaas/pkg/profile"
)

// maxGPUs is the most GPUs that --gpus takes.
const maxGPUs = 1_000_000

// inputs are the files a plan is made from or checked against.
type inputs struct {
	profile, demand, inventory, functions string

	model string        // of GPU: the profile's rows that count, all if empty
	slo   time.Duration // the objective of functions that have none; 0 is none
}

func (i *inputs) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&i.profile, "profile", "", "what instances sustain (CSV)")
	f.StringVar(&i.demand, "demand", "", "what is wanted: a file (CSV: function,rps,slo_ms) or a list like resnet=250,bert=40")
	f.StringVar(&i.inventory, "inventory", "", "the GPUs there are (CSV: node,gpu,mem_mib)")
	f.DurationVar(&i.slo, "slo", 0, "the p95 latency that functions must keep which neither the demand nor --functions gives an objective, like `100ms`")
	f.StringVar(&i.model, gpumodel.Flag, "", "model of the GPUs that --inventory names none for; only the profile's rows of it count (default the only one of the profile)")
	cli.Files(cmd, "csv", "profile", "demand", "inventory")
}

// functionsFlag is --functions, for the commands that need more of a function
// than its name.
func (i *inputs) functionsFlag(cmd *cobra.Command, what string) {
	cmd.Flags().StringVar(&i.functions, "functions", "", "the functions (YAML): "+what)
	cli.Files(cmd, "yaml yml", "functions")
}

// loadFunctions reads the functions, nil when none were given.
func (i *inputs) loadFunctions(env *cli.Env) ([]function.Function, error) {
	if i.functions == "" {
		return nil, nil
	}
	return cli.LoadFunctions(env, i.functions)
}

// checkStdin refuses to read standard input as two things.
func checkStdin(paths ...string) error {
	if len(slices.DeleteFunc(paths, func(p string) bool { return p != "-" })) > 1 {
		return cli.Usagef("standard input (-) can be only one of the files")
	}
	return nil
}

// loadProfile reads the profile, its rows of one model of GPU if one is chosen;
// nil when none was given.
func (i *inputs) loadProfile(env *cli.Env) ([]profile.Row, error) {
	switch {
	case i.profile == "" && i.model != "":
		return nil, cli.Usagef("--gpu-model is of a profile: expected --profile with it")
	case i.profile == "":
		return nil, nil
	}
	rows, err := cli.Load(env, i.profile, profile.Read)
	if err != nil {
		return nil, err
	}
	return gpumodel.Rows(rows, i.profile, i.model)
}

// loadDemand reads the demand, nil when none was given.
func (i *inputs) loadDemand(env *cli.Env) ([]plan.Demand, error) {
	if i.demand == "" {
		return nil, nil
	}
	return demand.Load(env, i.demand)
}

// checkSLO refuses an objective that none can have.
func (i *inputs) checkSLO(cmd *cobra.Command) error {
	if cmd.Flags().Changed("slo") && i.slo <= 0 {
		return cli.Usagef("--slo %s: expected more than 0, like 100ms", i.slo)
	}
	return nil
}

// loadInventory reads the inventory, nil when none was given.
func (i *inputs) loadInventory(env *cli.Env) ([]plan.Device, error) {
	if i.inventory == "" {
		return nil, nil
	}
	return cli.Load(env, i.inventory, plan.ReadInventory)
}

// input checks the flags and reads what they name.
func (o *planOptions) input(cmd *cobra.Command) (in policy.Input, err error) {
	if err := o.check(cmd); err != nil {
		return in, err
	}
	if in.Profile, err = o.files.loadProfile(o.env); err != nil {
		return in, err
	}
	if in.Demand, err = o.files.loadDemand(o.env); err != nil {
		return in, err
	}
	if in.Devices, err = o.files.loadInventory(o.env); err != nil {
		return in, err
	}
	if in.Functions, err = o.files.loadFunctions(o.env); err != nil {
		return in, err
	}
	if err := o.checkSpans(in); err != nil {
		return in, err
	}
	if o.current.path != "" && o.sweep == "" {
		if o.current.plan, err = cli.Load(o.env, o.current.path, plan.Read); err != nil {
			return in, err
		}
	}
	prepare.Objectives(in.Demand, in.Functions, o.files.slo)
	prepare.Weights(in.Profile, in.Functions)
	if raised := prepare.Limits(in.Profile, in.Functions, o.share); len(raised) > 0 && (o.files.inventory != "" || o.mem > 0) {
		o.env.Notef("note: gpu_mem of %s is more than was measured: its instances are planned with it, since gfaas up gives it to them", planning.List(raised))
	}
	o.arrivals.Apply(&in)
	for _, note := range o.arrivals.Notes(in) {
		o.env.Notef("note: %s", note)
	}
	for i := range in.Profile {
		in.Profile[i].GPUMemMiB += o.instances.context.MiB()
	}
	in.MemMiB = o.mem.MiB()
	for i := range o.gpus {
		in.Devices = append(in.Devices, plan.Device{Node: plan.DefaultNode, Index: i, MemMiB: in.MemMiB})
	}
	if o.files.inventory != "" && in.MemMiB > 0 {
		if !slices.ContainsFunc(in.Devices, func(d plan.Device) bool { return d.MemMiB >= in.MemMiB }) {
			o.env.Notef("note: --gpu-mem %s is more than any GPU of %s has: it limits nothing", o.mem, o.files.inventory)
		}
		useAtMost(in.Devices, in.MemMiB)
	}
	return in, o.nameModels(&in)
}

// nameModels names the model of GPUs for which the inventory names none: that of the
// current plan, of --gpu-model, or the only one of the profile. It fails if rows of
// several models would hold for a GPU.
func (o *planOptions) nameModels(in *policy.Input) error {
	current := o.current.plan.GPUs
	running := map[gpumodel.Place]string{}
	for _, g := range current {
		running[gpumodel.Place{Node: g.Node, Index: g.Index}] = g.Model
	}
	for i, d := range in.Devices {
		in.Devices[i].Model = cmp.Or(d.Model, running[gpumodel.Place{Node: d.Node, Index: d.Index}])
	}
	demanded := map[string]bool{}
	for _, d := range in.Demand {
		demanded[d.Function] = true
	}
	rows := slices.DeleteFunc(slices.Clone(in.Profile), func(r profile.Row) bool { return !demanded[r.Function] })
	models := profile.Models(rows)
	in.Model = o.files.model
	if in.Model == "" && len(models) == 1 {
		in.Model = models[0]
	}
	unnamed := slices.ContainsFunc(in.Devices, func(d plan.Device) bool { return d.Model == "" })
	if in.Model == "" && in.Devices == nil && len(current) > 0 && !slices.ContainsFunc(current, func(g plan.GPU) bool { return g.Model != current[0].Model }) {
		in.Model = current[0].Model // more GPUs are like those that run
	}
	if in.Model == "" && (unnamed || in.Devices == nil) && profile.Differ(rows) {
		return gpumodel.Unknown(o.files.profile, models, gpumodel.OrInventory)
	}
	for i, d := range in.Devices {
		in.Devices[i].Model = cmp.Or(d.Model, in.Model)
	}
	return nil
}

// useAtMost leaves a plan so much memory of each GPU, besides what others use of it,
// or what is free where that is less.
func useAtMost(devices []plan.Device, mib float64) {
	for i := range devices {
		if d := &devices[i]; d.MemMiB-d.UsedMemMiB > mib {
			d.MemMiB, d.UsedMemMiB = mib, 0
		}
	}
}

func (o *planOptions) check(cmd *cobra.Command) error {
	f := cmd.Flags()
	switch {
	case o.files.profile == "":
		return cli.Fail(cli.ExitUsage, "gfaas-profile run FUNCTION.yaml measures one", errors.New("--profile is missing: expected a file"))
	case o.files.demand == "":
		return cli.Usagef("--demand is missing: expected a file or a list like resnet=250,bert=40")
	case cli.Conflict(f, "inventory", "gpus"):
		return cli.Usagef("--inventory and --gpus both say which GPUs there are: expected one of them")
	case f.Changed("gpus") && (o.gpus < 1 || o.gpus > maxGPUs):
		return cli.Usagef("--gpus %d: expected a number from 1 to %d", o.gpus, maxGPUs)
	case f.Changed("gpu-mem") && o.mem <= 0:
		return cli.Usagef("--gpu-mem %s: expected more than 0, like 16GiB", o.mem)
	}
	if err := cmp.Or(o.files.checkSLO(cmd), o.current.check(cmd), o.arrivals.Check(cmd), o.instances.check(cmd)); err != nil {
		return err
	}
	return checkStdin(o.files.profile, o.files.demand, o.files.inventory, o.files.functions, o.current.path)
}
