package profile

import (
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/profile/report"
	"github.com/gfaas/gfaas/pkg/policy/search"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/spf13/cobra"
)

const reportLong = `Shows what a profile says: for each function throughput, p95 latency and
efficacy over SM share, quota and batch, and the configuration to run it in, the
best efficacy within --slo. -o html is one page with heat maps and curves that
needs nothing beside it; -o table draws bars on the terminal.`

// reportOptions are the flags of report, as given.
type reportOptions struct {
	function string
	gpu      string
	slo      time.Duration
}

// newReport is gfaas-profile report.
func newReport(env *cli.Env) *cobra.Command {
	o := &reportOptions{}
	cmd := &cobra.Command{
		Use:   "report PROFILE.csv",
		Short: "Show a profile as a page or on the terminal",
		Long:  reportLong,
		Example: `  gfaas-profile report profile.csv --slo 69ms
  gfaas-profile report profile.csv --slo 69ms -o html --out-file profile.html`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(env, args[0], cmd.Flags().Changed("slo"))
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.function, "function", "", "the one function to show (default all)")
	f.StringVar(&o.gpu, "gpu", "", "the one model of GPU to show (default all)")
	f.DurationVar(&o.slo, "slo", 0, "p95 latency to keep, like 69ms (default any)")
	env.Outputs(cmd, "table", "html")
	return cmd
}

func (o *reportOptions) run(env *cli.Env, path string, objective bool) error {
	if objective && o.slo <= 0 {
		return cli.Usagef("--slo %v: expected more than 0", o.slo)
	}
	rows, err := profile.Load(path)
	if err != nil {
		return err
	}
	if o.function != "" {
		if _, rows, err = only("function", path, o.function, rows, func(r profile.Row) string { return r.Function }); err != nil {
			return err
		}
	}
	if o.gpu != "" {
		if _, rows, err = only("gpu", path, o.gpu, rows, func(r profile.Row) string { return r.GPU }); err != nil {
			return err
		}
	}
	if len(rows) == 0 {
		return cli.Usagef("%s has no rows to show", path)
	}
	sections, err := o.sections(rows)
	if err != nil {
		return err
	}
	simulated := slices.ContainsFunc(rows, func(r profile.Row) bool { return r.GPU == "sim" })
	return env.Emit(func(w io.Writer) error {
		text := report.Terminal(sections, simulated)
		if env.Output == "html" {
			text = report.HTML("Profile "+filepath.Base(path), sections, simulated)
		}
		_, err := w.Write(text)
		return err
	})
}

// sections are the rows by function and GPU, in the order of the file, each
// with the best choice there is.
func (o *reportOptions) sections(rows []profile.Row) ([]report.Section, error) {
	type key struct{ function, gpu string }
	var keys []key
	groups := map[key][]profile.Row{}
	for _, r := range rows {
		k := key{r.Function, r.GPU}
		if groups[k] == nil {
			keys = append(keys, k)
		}
		groups[k] = append(groups[k], r)
	}
	var out []report.Section
	for _, k := range keys {
		goal := search.Goal{SLOMS: millis(o.slo)}
		s, err := search.New("grid", allOf(groups[k]), goal)
		if err != nil {
			return nil, err
		}
		table := map[profile.Config]profile.Row{}
		for _, r := range groups[k] {
			table[r.Config] = r
		}
		for c, ok := s.Next(); ok; c, ok = s.Next() {
			s.Tell(c, table[c], true)
		}
		out = append(out, report.Section{Function: k.function, GPU: k.gpu, Rows: groups[k], Goal: goal, Choice: s.Choice()})
	}
	return out, nil
}
