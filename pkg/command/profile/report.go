package profile

import (
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/profile/report"
	"github.com/gfaas/gfaas/pkg/measure/recorded"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place"
	"github.com/gfaas/gfaas/pkg/policy/search"
	"github.com/gfaas/gfaas/pkg/profile"
)

const reportLong = `Shows what a profile says: for each function throughput, p95 latency and
efficacy over SM share, quota and batch, and the configuration to run it in, the
best efficacy within its objective (the demand's slo_ms, else the slo of --functions, else --slo).
-o html is one page with heat maps and curves that
needs nothing beside it; -o table draws bars on the terminal. In the page of a
large profile the part of each function is packed, and a script in it draws that
part when it is opened.

Where the goodput was measured, the page shows how p95 latency grows with the load:
the latency at rest, the objective, the goodput where they meet and, with --trials,
each trial that found it.

It also says what the planner makes of the profile: how many GPUs the functions
take for some demands, each alone and all together, how many any plan takes at
least, the configurations and, in the page, what a GPU hosts. The demands are 1,
10 and 100 times what the chosen configuration sustains, or those of --rps or
--demand. The plans are those of gfaas-place plan for the same demand; the page has
the command that makes them. So requests to functions with an objective are taken to
come at random (--arrivals poisson), and an instance is counted on for what it then
answers within the objective, which is less than its throughput.`

// reportOptions are the flags of report, as given.
type reportOptions struct {
	function string
	gpu      string
	trials   string // file
	slo      time.Duration
	outlook  outlookOptions
}

// newReport returns the command gfaas-profile report.
func newReport(env *cli.Env) *cobra.Command {
	o := &reportOptions{outlook: outlookOptions{env: env}}
	cmd := &cobra.Command{
		Use:   "report PROFILE.csv",
		Short: "Show a profile as a page or on the terminal",
		Long:  reportLong,
		Example: `  gfaas-profile report profile.csv --slo 69ms
  gfaas-profile report profile.csv --slo 69ms -o html --out-file profile.html
  gfaas-profile report profile.csv --demand resnet=250,bert=40 --gpu-mem 16GiB`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.FileArgs("csv"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.outlook.path = args[0]
			return o.run(env, cmd)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.function, "function", "", "the one function to show (default all)")
	f.StringVar(&o.gpu, "gpu", "", "the one model of GPU to show (default all)")
	f.StringVar(&o.trials, "trials", "", "the trials for the goodput (CSV), as gfaas-profile run --trials-out keeps them, to draw them too")
	f.DurationVar(&o.slo, "slo", 0, "p95 latency to keep, like 69ms (default any)")
	o.outlook.flags(cmd)
	cli.Files(cmd, "csv", "demand", "trials")
	cli.Files(cmd, "yaml yml", "functions")
	env.Outputs(cmd, "table", "html")
	return cmd
}

func (o *reportOptions) run(env *cli.Env, cmd *cobra.Command) error {
	path := o.outlook.path
	if cmd.Flags().Changed("slo") && o.slo <= 0 {
		return cli.Usagef("--slo %v: expected more than 0", o.slo)
	}
	if err := o.outlook.check(cmd, o.trials); err != nil {
		return err
	}
	rows, err := cli.Load(env, path, profile.Read)
	if err != nil {
		return err
	}
	o.outlook.mixed = slices.ContainsFunc(rows, func(r profile.Row) bool { return r.GPU != rows[0].GPU })
	if o.function != "" {
		if _, rows, err = only("function", path, o.function, rows, func(r profile.Row) string { return r.Function }); err != nil {
			return err
		}
	}
	if o.gpu = modelAsked(cmd, o.gpu, rows); o.gpu != "" {
		if _, rows, err = only("gpu", path, o.gpu, rows, func(r profile.Row) string { return r.GPU }); err != nil {
			return err
		}
	}
	if len(rows) == 0 {
		return noRows(path)
	}
	page := report.Page{Title: "Profile " + filepath.Base(path), Notes: o.notes(rows),
		Simulated: slices.ContainsFunc(rows, func(r profile.Row) bool { return r.GPU == "sim" })}
	if page.Sections, err = o.sections(rows); err != nil {
		return err
	}
	if err := o.loadTrials(env, page.Sections); err != nil {
		return err
	}
	if err := o.outlook.outlook(&page); err != nil {
		return err
	}
	return env.Emit(func(w io.Writer) error {
		text := page.Terminal()
		if env.Output == "html" {
			text = page.HTML()
		}
		_, err := w.Write(text)
		return err
	})
}

// loadTrials reads the file of --trials, if there is one, into the sections.
func (o *reportOptions) loadTrials(env *cli.Env, sections []report.Section) error {
	if o.trials == "" {
		return nil
	}
	all, err := cli.Load(env, o.trials, profile.ReadTrials)
	if err != nil {
		return err
	}
	for i := range sections {
		s := &sections[i]
		for _, t := range all {
			if t.Function == s.Function && t.GPU == s.GPU {
				s.Trials = append(s.Trials, t)
			}
		}
	}
	return nil
}

// notes returns notes about the plans, in sentences.
func (o *reportOptions) notes(rows []profile.Row) (out []string) {
	needs := slices.ContainsFunc(rows, func(r profile.Row) bool { return r.GPUMemMiB > 0 })
	switch {
	case o.outlook.mem == 0 && needs:
		out = append(out, "GPUs are planned without a limit of memory: --gpu-mem gives one.")
	case o.outlook.mem > 0 && !needs:
		out = append(out, "The profile does not say how much memory instances need: the planner counts none.")
	}
	var absent []string
	for _, d := range o.outlook.wanted {
		if !slices.ContainsFunc(rows, func(r profile.Row) bool { return r.Function == d.Function }) {
			absent = append(absent, d.Function)
		}
	}
	if len(absent) > 0 {
		out = append(out, "Nothing is planned for "+strings.Join(absent, ", ")+": it is in the demand but not in what is shown of the profile.")
	}
	return out
}

// sections returns a section for each function and model of GPU, with its best
// configuration.
func (o *reportOptions) sections(rows []profile.Row) ([]report.Section, error) {
	var out []report.Section
	for _, g := range recorded.Groups(rows) {
		goal := search.Goal{SLOMS: o.outlook.objective(g.Function, o.slo)}
		choice, err := recorded.Best(g.Rows, goal)
		if err != nil {
			return nil, err
		}
		one := report.Section{Function: g.Function, GPU: g.GPU, Rows: g.Rows, Goal: goal, Choice: choice, MemMiB: o.outlook.mem.MiB()}
		in := place.Input{Functions: o.outlook.loaded}
		if o.outlook.arrivals.Apply(&in); in.Poisson && goal.SLOMS > 0 {
			one.AtRandom, one.Worth = true, in.Worth(one.Choice.Row, plan.Demand{Function: g.Function, SLOMS: goal.SLOMS})
		}
		out = append(out, one)
	}
	return out, nil
}
