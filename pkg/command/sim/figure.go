package sim

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/sim/figure"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/number"
)

// figureOptions holds the flags of figure.
type figureOptions struct {
	env      *cli.Env
	expected string
	results  string
}

func newFigure(env *cli.Env) *cobra.Command {
	o := figureOptions{env: env}
	cmd := &cobra.Command{
		Use:   "figure",
		Short: "Compare results with expected and published figures",
		Long: `Compare the results of an experiment with the expected results and with published
figures. If a result differs from the expected one by more than its tolerance, the
command lists it, and the exit status is 3. A difference from a published figure is
no failure.

The file of --expected has these columns:

  id         name of the row
  figure     figure, table or section of the publication
  quantity   the quantity in words
  unit       unit of the values, such as ms, % or × (optional)
  theirs     published figure (optional): 4.4, about 3000, 8 to 20, more than 2, up to 96
  ours       expected result
  tolerance  largest accepted difference from the expected result, such as 5%
  reason     why the expected result differs from the published figure (optional)

The file of --results has a row with the columns id and value for each row of --expected.

-o csv prints the rows of --expected with the results, rounded to four digits, as ours; to
accept the results, replace the file with this output. -o svg draws a bar for each result,
and a mark for the published figure. examples/papers has scripts that use this command.`,
		Example: `  # Compare results with expectations
  gfaas-sim figure --expected expected.csv --results results.csv
  # Draw them
  gfaas-sim figure --expected expected.csv --results results.csv -o svg --out-file figure.svg`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return o.run() },
	}
	f := cmd.Flags()
	f.StringVar(&o.expected, "expected", "", "expected results and published figures (CSV)")
	f.StringVar(&o.results, "results", "", "results (CSV: id,value)")
	cli.CompleteFiles(cmd, "csv", "expected", "results")
	env.Outputs(cmd, "table", "json", "csv", "svg")
	cli.Meaning(cmd, cli.ExitNo, "a result differs from the expected one by more than its tolerance")
	return cmd
}

func (o *figureOptions) run() error {
	switch {
	case o.expected == "":
		return cli.Usagef("--expected is missing: expected a file (CSV)")
	case o.results == "":
		return cli.Usagef("--results is missing: expected a file (CSV: id,value)")
	case o.expected == "-" && o.results == "-":
		return cli.Usagef("standard input (-) can be used for one file only")
	}
	rows, err := cli.Load(o.env, o.expected, figure.Read)
	if err != nil {
		return err
	}
	results, err := cli.Load(o.env, o.results, figure.ReadResults)
	if err != nil {
		return err
	}
	if rows, err = figure.Match(rows, results, o.results); err != nil {
		return err
	}
	if err := o.print(rows); err != nil {
		return err
	}
	return o.check(rows)
}

func (o *figureOptions) print(rows []figure.Row) error {
	switch o.env.Output {
	case "csv":
		return o.env.Emit(func(w io.Writer) error { return figure.Write(w, rows) })
	case "svg":
		title := strings.TrimSuffix(filepath.Base(o.expected), ".csv")
		return o.env.Write([]byte(figure.SVG(title, rows)))
	}
	return o.env.Show(lists.Map(rows, newFigureValue), func() [][]string {
		return cli.Rows(rows, func(r figure.Row) []cli.Cell {
			return []cli.Cell{{"FIGURE", r.Figure}, {"QUANTITY", r.Quantity}, {"PUBLISHED", r.Published()}, {"OURS", r.WithUnit(r.Ours)},
				{"EXPECTED", r.WithUnit(r.Expected)}, {"MOVED", map[bool]string{true: "yes"}[r.Moved()]}}
		})
	})
}

// figureValue is a row of -o json.
type figureValue struct {
	ID        string  `json:"id"`
	Figure    string  `json:"figure"`
	Quantity  string  `json:"quantity"`
	Unit      string  `json:"unit"`
	Theirs    string  `json:"theirs"`
	Ours      float64 `json:"ours"`
	Expected  float64 `json:"expected"`
	Tolerance float64 `json:"tolerance"` // fraction of the expected result
	Moved     bool    `json:"moved"`
	Reason    string  `json:"reason"`
}

func newFigureValue(r figure.Row) figureValue {
	return figureValue{r.ID, r.Figure, r.Quantity, r.Unit, r.Theirs.Text, r.Ours, r.Expected, r.Tolerance, r.Moved(), r.Reason}
}

// check returns an error if results moved, and prints a line for each of them.
func (o *figureOptions) check(rows []figure.Row) error {
	count := 0
	for _, r := range rows {
		if r.Moved() {
			count++
			o.env.AlwaysNotef("%s: %s: %s, expected %s ± %s", r.ID, r.Quantity, r.WithUnit(r.Ours), r.WithUnit(r.Expected), number.Trimmed(100*r.Tolerance, 2)+"%")
		}
	}
	if count == 0 {
		return nil
	}
	return cli.Fail(cli.ExitNo, "if the change is intended, replace the expectations by the output of -o csv",
		fmt.Errorf("%d of %s differ from %s by more than the tolerance", count, number.Count(len(rows), "result"), o.expected))
}
