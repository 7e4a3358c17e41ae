package place

import (
	"encoding/csv"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/diff"
)

func newDiff(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diff OLD.json NEW.json",
		Short: "List the instances that stop, start and stay between two plans",
		Long: `Compare two plans instance by instance. An instance stays if both plans contain its ID
with the same slice at the same place on the same GPUs. All other instances stop or
start. The table contains only the number of instances that stay; with -v, and in other
formats, they are listed.`,
		Example: `  # List the changes between two plans
  gfaas-place diff running.json plan.json
  # List the instances that stop
  gfaas-place diff running.json plan.json -o csv | grep ^stop,`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: cli.CompleteFileArgs("json"),
	}
	env.Outputs(cmd, "table", "json", "jsonl", "csv")
	cmd.RunE = func(_ *cobra.Command, args []string) error { return runDiff(env, args[0], args[1]) }
	return cmd
}

func runDiff(env *cli.Env, oldFile, newFile string) error {
	if err := cli.CheckStdin(oldFile, newFile); err != nil {
		return err
	}
	oldPlan, err := cli.Load(env, oldFile, plan.Read)
	if err != nil {
		return err
	}
	newPlan, err := cli.Load(env, newFile, plan.Read)
	if err != nil {
		return err
	}
	changes := diff.Plans(oldPlan, newPlan)
	switch env.Output {
	case "csv":
		return env.Emit(func(w io.Writer) error { return csv.NewWriter(w).WriteAll(changeRecords(changes)) })
	case "json", "jsonl":
		if changes == nil {
			changes = []diff.Change{}
		}
		return env.Show(changes, nil)
	}
	return env.Emit(func(w io.Writer) error {
		if _, err := fmt.Fprintf(w, "%s used before, %d after; %s.\n", number.Count(oldPlan.GPUsUsed, "GPU"), newPlan.GPUsUsed, totals(changes)); err != nil {
			return err
		}
		shown := lists.Filter(changes, func(c diff.Change) bool { return c.Kind != diff.Keep || env.Verbose })
		if len(shown) == 0 {
			return nil
		}
		return cli.Table(w, changeTable(shown))
	})
}

// changeRecords returns CSV records of the changes, one per instance and GPU.
func changeRecords(changes []diff.Change) [][]string {
	rows := [][]string{{"change", "id", "function", "gpu", "sm_pct", "quota_request", "rps"}}
	for _, c := range changes {
		for _, g := range c.GPUs {
			rows = append(rows, []string{c.Kind, c.ID, c.Function, g, csvfile.Format(c.SMPct), csvfile.Format(c.Quota), csvfile.Format(c.RPS)})
		}
	}
	return rows
}
