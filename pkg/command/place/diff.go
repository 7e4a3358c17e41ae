package place

import (
	"encoding/csv"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/diff"
)

func newDiff(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diff OLD.json NEW.json",
		Short: "Say what stops, starts and is kept between two plans",
		Long: `Compares two plans instance by instance. An instance is kept when the same id
has the same slice at the same place of the same GPUs; all others stop or start.
What is kept is only counted, unless -v or another form than the table asks.`,
		Example: `  gfaas-place diff running.json plan.json
  gfaas-place diff running.json plan.json -o csv | grep ^stop,`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: cli.FileArgs("json"),
	}
	env.Outputs(cmd, "table", "json", "jsonl", "csv")
	cmd.RunE = func(_ *cobra.Command, args []string) error { return runDiff(env, args[0], args[1]) }
	return cmd
}

func runDiff(env *cli.Env, before, after string) error {
	if err := checkStdin(before, after); err != nil {
		return err
	}
	was, err := cli.Load(env, before, plan.Read)
	if err != nil {
		return err
	}
	is, err := cli.Load(env, after, plan.Read)
	if err != nil {
		return err
	}
	changes := diff.Plans(was, is)
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
		if _, err := fmt.Fprintf(w, "%s used before, %d after; %s.\n", cli.Count(was.GPUsUsed, "GPU"), is.GPUsUsed, totals(changes)); err != nil {
			return err
		}
		var shown []diff.Change
		for _, c := range changes {
			if c.Do != diff.Keep || env.Verbose {
				shown = append(shown, c)
			}
		}
		if len(shown) == 0 {
			return nil
		}
		return cli.Table(w, changeTable(shown))
	})
}

// changeRecords are the changes as CSV, one an instance and GPU.
func changeRecords(changes []diff.Change) [][]string {
	rows := [][]string{{"change", "id", "function", "gpu", "sm_pct", "quota_request", "rps"}}
	for _, c := range changes {
		for _, g := range c.GPUs {
			rows = append(rows, []string{c.Do, c.ID, c.Function, g, csvfile.Format(c.SMPct), csvfile.Format(c.Quota), csvfile.Format(c.RPS)})
		}
	}
	return rows
}
