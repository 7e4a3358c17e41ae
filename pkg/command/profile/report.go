package profile

import (
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/profile/report"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/measure/figures"
	"github.com/gfaas/gfaas/pkg/measure/recorded"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place"
	"github.com/gfaas/gfaas/pkg/policy/search"
	"github.com/gfaas/gfaas/pkg/profile"
)

const reportLong = `Show the results of gfaas-profile run. A configuration of an instance is an SM share, a
quota of the GPU time and a batch size. For each function, the report shows three figures
of every configuration: throughput, p95 latency and efficacy. The efficacy is the
throughput divided by the share of the GPU: throughput_rps / (sm_pct/100 x quota).

The report also names the configuration to use: of those that meet the objective of the
function, the one with the best efficacy. The objective is the slo_ms of --demand; if that
is missing, the slo in --functions, and otherwise --slo.

-o html writes a page that needs no other files, with heat maps and curves. -o table prints
bars in the terminal. -o csv prints only the configuration to use, with a row for each
function and GPU model. In a page of more than 1 MiB with several functions, the section of
each function is compressed, and a script in the page renders it when you open it.

If the goodput was measured, the page shows how the p95 latency grows with the load. It
contains the latency of single requests to an idle instance, the objective, the goodput
(the rate at which the latency reaches the objective) and, with --trials, each trial of
the search for the goodput.

Plans. Except with -o csv, the report states how many GPUs are needed for some demands, by
each function alone and by all functions together. It shows the configurations, and a
lower bound: no plan for this demand needs fewer GPUs. The page also has pictures of the
GPUs, and the command line of gfaas-place plan that makes the same plan. The demands are 1,
10 and 100 times the throughput of the chosen configuration, unless --rps or --demand gives
others. Requests to functions with an objective are assumed to arrive at random (--arrivals
poisson). The capacity of an instance is then its goodput, which is less than its
throughput. With --arrivals steady, each request is assumed to arrive when another one has been
answered. gfaas-place-plan(1) describes --model.`

// reportOptions holds the flags of report, unparsed.
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
		Short: "Show a profile as a page or in the terminal",
		Long:  reportLong,
		Example: `  # Show a profile in the terminal
  gfaas-profile report profile.csv --slo 69ms
  # Write an HTML page
  gfaas-profile report profile.csv --slo 69ms -o html --out-file profile.html
  # Show plans for a demand
  gfaas-profile report profile.csv --demand resnet=250,bert=40 --gpu-mem 16GiB`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.CompleteFileArgs("csv"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.outlook.path = args[0]
			return o.run(env, cmd)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.function, "function", "", "function to show (default all)")
	f.StringVar(&o.gpu, "gpu", "", "GPU model to show (default all)")
	f.StringVar(&o.trials, "trials", "", "trials of the goodput search to draw (CSV, from gfaas-profile run --trials-out)")
	f.DurationVar(&o.slo, "slo", 0, "p95 latency objective, like 69ms (default none)")
	o.outlook.flags(cmd)
	cli.CompleteFiles(cmd, "csv", "demand", "trials")
	cli.CompleteFiles(cmd, "yaml yml", "functions")
	env.Outputs(cmd, "table", "html", "csv")
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
		_, rows, err = only("function", path, o.function, rows, func(r profile.Row) string { return r.Function })
	}
	if o.gpu = modelAsked(cmd, o.gpu, rows); err == nil && o.gpu != "" {
		_, rows, err = only("gpu", path, o.gpu, rows, func(r profile.Row) string { return r.GPU })
	}
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return noRows(path)
	}
	page := report.Page{Title: "Profile " + filepath.Base(path), Notes: o.notes(rows),
		Simulated: slices.ContainsFunc(rows, func(r profile.Row) bool { return r.GPU == "sim" })}
	if page.Sections, err = o.sections(rows); err != nil {
		return err
	}
	if env.Output == "csv" {
		return env.Show(nil, func() [][]string { return choices(page.Sections) })
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

// choices returns the configuration to use for each section. Its cells are empty if no configuration meets the objective.
func choices(sections []report.Section) [][]string {
	rows := [][]string{{"function", "gpu", "slo_ms", "sm_pct", "quota", "batch", "throughput_rps", "p95_ms", "efficacy", "reason"}}
	n := csvfile.Format
	for _, s := range sections {
		row := []string{s.Function, s.GPU, "", "", "", "", "", "", "", s.Choice.Reason}
		if s.Goal.SLOMS > 0 {
			row[2] = n(s.Goal.SLOMS)
		}
		if r := s.Choice.Row; s.Choice.OK {
			copy(row[3:], []string{n(r.SMPct), n(r.Quota), strconv.Itoa(r.Batch), n(r.ThroughputRPS), n(r.P95MS), n(figures.Round(r.Efficacy(), 6))})
		}
		rows = append(rows, row)
	}
	return rows
}

// loadTrials reads the file of --trials, if given, into the sections.
func (o *reportOptions) loadTrials(env *cli.Env, sections []report.Section) error {
	if o.trials == "" {
		return nil
	}
	trials, err := cli.Load(env, o.trials, profile.ReadTrials)
	if err != nil {
		return err
	}
	for i, s := range sections {
		sections[i].Trials = slices.DeleteFunc(slices.Clone(trials), func(t profile.Trial) bool { return t.Function != s.Function || t.GPU != s.GPU })
	}
	return nil
}

// notes returns notes about the plans, as sentences.
func (o *reportOptions) notes(rows []profile.Row) (notes []string) {
	memoryKnown := slices.ContainsFunc(rows, func(r profile.Row) bool { return r.GPUMemMiB > 0 })
	switch {
	case o.outlook.mem == 0 && memoryKnown:
		notes = append(notes, "Plans assume no limit on GPU memory; set one with --gpu-mem.")
	case o.outlook.mem > 0 && !memoryKnown:
		notes = append(notes, "The profile does not contain the GPU memory of instances, so plans ignore memory.")
	}
	absent := lists.Filter(lists.Map(o.outlook.demands, plan.Demand.Name), func(function string) bool {
		return !slices.ContainsFunc(rows, func(r profile.Row) bool { return r.Function == function })
	})
	if len(absent) > 0 {
		notes = append(notes, "There are no plans for "+strings.Join(absent, ", ")+", because the demand contains them but the displayed part of the profile does not.")
	}
	return notes
}

// sections returns a section with the best configuration for each function and GPU model.
func (o *reportOptions) sections(rows []profile.Row) ([]report.Section, error) {
	var sections []report.Section
	for _, g := range recorded.Groups(rows) {
		goal := search.Goal{SLOMS: o.outlook.objective(g.Function, o.slo)}
		choice, err := recorded.Best(g.Rows, goal)
		if err != nil {
			return nil, err
		}
		section := report.Section{Function: g.Function, GPU: g.GPU, Rows: g.Rows, Goal: goal, Choice: choice, MemMiB: o.outlook.mem.MiB()}
		in := place.Input{Functions: o.outlook.loaded}
		if o.outlook.arrivals.Apply(&in); in.Poisson && goal.SLOMS > 0 {
			section.AtRandom, section.Worth = true, in.Worth(section.Choice.Row, plan.Demand{Function: g.Function, SLOMS: goal.SLOMS})
		}
		sections = append(sections, section)
	}
	return sections, nil
}
