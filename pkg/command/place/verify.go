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

// verdict is the answer of verify under -o json.
type verdict struct {
	OK         bool               `json:"ok"`
	Violations []verify.Violation `json:"violations"`
}

func newVerify(env *cli.Env) *cobra.Command {
	var files inputs
	cmd := &cobra.Command{
		Use:   "verify PLAN.json",
		Short: "Check a plan and list all that is wrong with it",
		Long: `Checks that a plan holds together: rectangles lie in their GPUs and do not
overlap, memory suffices, demands are served or said to be unplaced, figures
agree. With --profile, --demand, --inventory and --functions it is checked
against what it was made from, too, with --gpu-model and --slo if those were. An instance
is held to the row for its GPU's model; where neither the plan nor --inventory names the
model and rows of several differ, the exit status is 2. It shares no
code with the planner, but for what an instance is worth when requests come at random.

It says nothing when the plan is right. Otherwise it lists every violation, and
the exit status is 3.`,
		Example:           "  gfaas-place verify plan.json --profile profile.csv --demand demand.csv --inventory gpus.csv",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.FileArgs("json"),
	}
	files.flags(cmd)
	files.functionsFlag(cmd, "their objectives, how many GPUs and how much memory an instance takes, what its weights are called")
	env.Outputs(cmd, "table", "json")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := files.checkSLO(cmd); err != nil {
			return err
		}
		return runVerify(env, files, args[0])
	}
	return cmd
}

func runVerify(env *cli.Env, files inputs, path string) error {
	if err := checkStdin(path, files.profile, files.demand, files.inventory, files.functions); err != nil {
		return err
	}
	p, err := cli.Load(env, path, plan.Read)
	if err != nil {
		return err
	}
	var in verify.Inputs
	if in.Profile, err = files.loadProfile(env); err != nil {
		return err
	}
	if in.Demand, err = files.loadDemand(env); err != nil {
		return err
	}
	if in.Inventory, err = files.loadInventory(env); err != nil {
		return err
	}
	if in.Functions, err = files.loadFunctions(env); err != nil {
		return err
	}
	prepare.Weights(in.Profile, in.Functions)
	if err := knownModels(p, in, path); err != nil {
		return err
	}
	in.SLOMS = float64(files.slo) / float64(time.Millisecond)
	found := verify.Plan(p, in)
	if len(found) == 0 && env.Output == "table" {
		env.Debugf("%s: no violation", path)
		return nil
	}
	if err := env.Show(verdict{len(found) == 0, found}, func() [][]string { return violationTable(found) }); err != nil {
		return err
	}
	if len(found) > 0 {
		return cli.Exit(cli.ExitNo)
	}
	return nil
}

// knownModels fails if the model of a GPU is not known and the profile has rows of
// several models for an instance on it.
func knownModels(p plan.Plan, in verify.Inputs, path string) error {
	rows, listed := profile.NewIndex(in.Profile), gpumodel.Listed(in.Inventory)
	for _, g := range p.GPUs {
		model := cmp.Or(listed[gpumodel.Place{Node: g.Node, Index: g.Index}], g.Model)
		for _, i := range g.Instances {
			if _, _, err := rows.Find(i.Function, i.Config(), model); err != nil {
				return gpumodel.Ask(path, fmt.Errorf("%s: %w", i.ID, err))
			}
		}
	}
	return nil
}

func violationTable(found []verify.Violation) [][]string {
	rows := [][]string{{"RULE", "GPU", "INSTANCES", "VIOLATION"}}
	for _, v := range found {
		rows = append(rows, []string{v.Rule, orDash(v.GPU), orDash(strings.Join(v.Instances, ",")), v.Message})
	}
	return rows
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
