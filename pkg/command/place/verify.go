package place

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/gpumodel"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/prepare"
	"github.com/gfaas/gfaas/pkg/policy/place/verify"
	"github.com/gfaas/gfaas/pkg/profile"
)

// verdict is the output of verify with -o json.
type verdict struct {
	OK         bool               `json:"ok"`
	Violations []verify.Violation `json:"violations"`
}

func newVerify(env *cli.Env) *cobra.Command {
	var files inputs
	cmd := &cobra.Command{
		Use:   "verify PLAN.json",
		Short: "Check a plan and list all violations",
		Long: `Check that a plan is valid (docs/placement.md lists the rules):

  - the instances on a GPU do not exceed its SMs, its time and its memory
  - the whole demand of each function is served or listed in the plan as unplaced
  - the figures in the plan are consistent

If the plan is valid, the command prints nothing (with -o json, a result with "ok":
true, and with -o csv, only a header). Otherwise, it prints all violations, and the
exit status is 3.

With --profile, --demand, --inventory and --functions, the command also checks the plan
against the files from which it was made. If the plan was made with --gpu-model or
--slo, give these flags as well.

With --profile, the command compares the figures of each instance with the profile row
for its configuration and the model of its GPU. It takes the model from --inventory or,
if that has none for this GPU, from the plan. If neither has the model, and the rows for
this configuration have different figures on different GPU models, the exit status is 2.

The checks share no code with the planner, with one exception: the calculation of an
instance's goodput, which is the rate of requests at which it still meets its objective.`,
		Example:           "  # Check a plan against its inputs\n  gfaas-place verify plan.json --profile profile.csv --demand demand.csv --inventory gpus.csv",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.CompleteFileArgs("json"),
	}
	files.flags(cmd)
	files.functionsFlag(cmd, "the objectives of functions, and the number of GPUs, the memory and the model weights of their instances")
	env.Outputs(cmd, "table", "json", "csv")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := files.checkSLO(cmd); err != nil {
			return err
		}
		return runVerify(env, files, args[0])
	}
	cli.Meaning(cmd, cli.ExitNo, "the plan violates a rule")
	return cmd
}

func runVerify(env *cli.Env, files inputs, path string) error {
	if err := cli.CheckStdin(path, files.profile, files.demand, files.inventory, files.functions); err != nil {
		return err
	}
	p, err := cli.Load(env, path, plan.Read)
	if err != nil {
		return err
	}
	loaded, err := files.load(env)
	if err != nil {
		return err
	}
	prepare.Weights(loaded.Profile, loaded.Functions)
	in := verify.Inputs{
		Profile: loaded.Profile, Demand: loaded.Demand, Inventory: loaded.Devices, Functions: loaded.Functions,
		SLOMS: float64(files.slo) / float64(time.Millisecond),
	}
	if err := knownModels(p, in, path); err != nil {
		return err
	}
	found := verify.Plan(p, in)
	if len(found) == 0 && env.Output == "table" {
		env.Debugf("%s: no violation", path)
		return nil
	}
	rows := violationTable
	if env.Output == "csv" {
		rows = violationRecords
	}
	if err := env.Show(verdict{len(found) == 0, found}, func() [][]string { return rows(found) }); err != nil {
		return err
	}
	if len(found) > 0 {
		return cli.Exit(cli.ExitNo)
	}
	return nil
}

// knownModels returns an error if the model of a GPU is unknown and the profile has rows of several
// models for an instance on it.
func knownModels(p plan.Plan, in verify.Inputs, path string) error {
	rows, listed := profile.NewIndex(in.Profile), gpumodel.Listed(in.Inventory)
	for _, g := range p.GPUs {
		model := cmp.Or(listed[g.Name()], g.Model)
		for _, i := range g.Instances {
			if _, _, err := rows.Find(i.Function, i.Config(), model); err != nil {
				return gpumodel.AddHint(path, fmt.Errorf("%s: %w", i.ID, err))
			}
		}
	}
	return nil
}

func violationTable(found []verify.Violation) [][]string {
	return cli.Rows(found, func(v verify.Violation) []cli.Cell {
		return []cli.Cell{{"RULE", v.Rule}, {"GPU", cmp.Or(v.GPU, "-")},
			{"INSTANCES", cmp.Or(strings.Join(v.Instances, ","), "-")}, {"VIOLATION", v.Message}}
	})
}

// violationRecords returns the rows of -o csv. The names of several instances are separated by spaces.
func violationRecords(found []verify.Violation) [][]string {
	return cli.Rows(found, func(v verify.Violation) []cli.Cell {
		return []cli.Cell{{"rule", v.Rule}, {"gpu", v.GPU},
			{"instances", strings.Join(v.Instances, " ")}, {"message", v.Message}}
	})
}
