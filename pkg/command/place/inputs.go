package place

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/demand"
	"github.com/gfaas/gfaas/pkg/command/gpumodel"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/plan"
	policy "github.com/gfaas/gfaas/pkg/policy/place"
	"github.com/gfaas/gfaas/pkg/profile"
)

// inputs holds the files from which a plan is made, or against which it is checked.
type inputs struct {
	profile, demand, inventory, functions string

	model string        // GPU model of the rows to use; empty means all rows
	slo   time.Duration // objective of functions that have none; 0 means none
}

func (i *inputs) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&i.profile, "profile", "", "profile: throughput and latency of instances (CSV)")
	f.StringVar(&i.demand, "demand", "", "demand: a file (CSV: function,rps,slo_ms) or a list like resnet=250,bert=40")
	f.StringVar(&i.inventory, "inventory", "", "inventory of GPUs (CSV: node,gpu,mem_mib, and optionally uuid,model,sms,used_mem_mib)")
	f.DurationVar(&i.slo, "slo", 0, "p95 latency objective, like 100ms, of functions without an objective in --demand or --functions")
	f.StringVar(&i.model, gpumodel.Flag, "", "GPU model of the GPUs whose model is not in --inventory; profile rows for other models are ignored (not needed if the profile has only one model)")
	cli.CompleteFiles(cmd, "csv", "profile", "demand", "inventory")
}

// functionsFlag adds --functions, for commands that need more than a function's name.
func (i *inputs) functionsFlag(cmd *cobra.Command, what string) {
	cmd.Flags().StringVar(&i.functions, "functions", "", "function file (YAML) with "+what)
	cli.CompleteFiles(cmd, "yaml yml", "functions")
}

// load reads the files into the fields of the planner's input. A field is nil if its file was not
// given. The profile has only the rows for --gpu-model.
func (i *inputs) load(env *cli.Env) (in policy.Input, err error) {
	if in.Profile, err = i.loadProfile(env); err != nil {
		return in, err
	}
	if in.Demand, err = unlessEmpty(i.demand, func() ([]plan.Demand, error) { return demand.Load(env, i.demand) }); err != nil {
		return in, err
	}
	if in.Devices, err = i.loadInventory(env); err != nil {
		return in, err
	}
	in.Functions, err = i.loadFunctions(env)
	return in, err
}

// unlessEmpty returns the result of load, or nil if the path is empty.
func unlessEmpty[T any](path string, load func() ([]T, error)) ([]T, error) {
	if path == "" {
		return nil, nil
	}
	return load()
}

func (i *inputs) loadFunctions(env *cli.Env) ([]function.Function, error) {
	return unlessEmpty(i.functions, func() ([]function.Function, error) { return cli.LoadFunctions(env, i.functions) })
}

func (i *inputs) loadInventory(env *cli.Env) ([]plan.Device, error) {
	return unlessEmpty(i.inventory, func() ([]plan.Device, error) { return cli.Load(env, i.inventory, plan.ReadInventory) })
}

func (i *inputs) loadProfile(env *cli.Env) ([]profile.Row, error) {
	switch {
	case i.profile == "" && i.model != "":
		return nil, cli.Usagef("--gpu-model needs --profile, whose rows it selects")
	case i.profile == "":
		return nil, nil
	}
	rows, err := cli.Load(env, i.profile, profile.Read)
	if err != nil {
		return nil, err
	}
	return gpumodel.Rows(rows, i.profile, i.model)
}

// checkSLO returns a usage error if --slo is not above 0.
func (i *inputs) checkSLO(cmd *cobra.Command) error {
	if cmd.Flags().Changed("slo") && i.slo <= 0 {
		return cli.Usagef("--slo %s: expected more than 0, like 100ms", i.slo)
	}
	return nil
}
