package profile

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/demand"
	"github.com/gfaas/gfaas/pkg/command/planning"
	"github.com/gfaas/gfaas/pkg/command/profile/report"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/measure/outlook"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place"
	"github.com/gfaas/gfaas/pkg/policy/place/arrivals"
)

// maxRates limits the number of rates in --rps.
const maxRates = 10

// outlookOptions holds the flags about the demand to plan for.
type outlookOptions struct {
	env  *cli.Env
	path string // profile

	rps       []float64
	demand    string
	functions string
	mem       gpu.Bytes
	model     string
	limit     time.Duration
	arrivals  planning.Arrivals

	demands []plan.Demand       // parsed --demand
	loaded  []function.Function // parsed --functions
	mixed   bool                // the profile covers several GPU models, including those that the page omits
}

func (o *outlookOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Var(floats(&o.rps), "rps", "rates to plan for, in requests/s of each function (default 1, 10 and 100 times the throughput of the chosen configuration)")
	f.StringVar(&o.demand, "demand", "", "demand to plan for, instead of --rps: a file (CSV: function,rps,slo_ms) or a list like resnet=250,bert=40")
	f.StringVar(&o.functions, "functions", "", "function file (YAML) with the objectives of functions, the GPUs of an instance (gpus) and its limit on calls in progress (inflight)")
	cli.Memory(f, &o.mem, "gpu-mem", "memory of each GPU, as a `size` like 16GiB (default no limit)")
	cli.Choice(cmd, &o.model, "model", "rule by which the instances of a plan share a GPU", plan.ModelRect, plan.ModelTokens)
	o.arrivals.Flags(cmd)
	f.DurationVar(&o.limit, "time-limit", 20*time.Second, "time limit of the planning: after this time, no further plan is started, and a note counts the functions without plans")
}

// check validates the flags and reads the demand and the functions. The parameter otherInput is the path of
// another input file, which may be standard input.
func (o *outlookOptions) check(cmd *cobra.Command, otherInput string) (err error) {
	f := cmd.Flags()
	if f.Changed("rps") {
		if err := checkList("rps", o.rps, number.Plain, func(v float64) bool { return v >= csvfile.Smallest && v <= csvfile.Largest }, "rates above 0"); err != nil {
			return err
		}
	}
	switch {
	case len(o.rps) > maxRates:
		return cli.Usagef("--rps: %d rates, expected at most %d", len(o.rps), maxRates)
	case len(o.rps) > 0 && o.demand != "":
		return cli.Usagef("--rps and --demand both give the demand: they cannot be used together")
	case f.Changed("gpu-mem") && o.mem <= 0:
		return cli.Usagef("--gpu-mem %s: expected more than 0, like 16GiB", o.mem)
	case o.limit < 0:
		return cli.Usagef("--time-limit %s: expected 0 or more, like 2s", o.limit)
	}
	if err := cmp.Or(cli.CheckStdin(o.path, o.demand, o.functions, otherInput), o.arrivals.Check(cmd)); err != nil {
		return err
	}
	if o.demand != "" {
		if o.demands, err = demand.Load(o.env, o.demand); err != nil {
			return err
		}
	}
	if o.functions != "" {
		o.loaded, err = cli.LoadFunctions(o.env, o.functions)
	}
	return err
}

// objective returns a function's objective in ms: from the demand, from the function, or slo, in this
// order.
func (o *outlookOptions) objective(function string, slo time.Duration) float64 {
	return outlook.Objective(function, o.demands, o.loaded, slo)
}

// outlook plans for the sections of the page. It adds the plans to the page, with notes about assumptions
// and missing data.
func (o *outlookOptions) outlook(page *report.Page) error {
	request := outlook.Request{RPS: o.rps, Functions: o.loaded, MemMiB: o.mem.MiB(), Model: o.model, Arrivals: o.arrivals.Apply, TimeLimit: o.limit}
	if o.demand != "" {
		request.Demand = append([]plan.Demand{}, o.demands...) // not nil, even for an empty file
	}
	for _, s := range page.Sections {
		request.Sections = append(request.Sections, outlook.Section{Function: s.Function, GPU: s.GPU, Rows: s.Rows, Goal: s.Goal, Choice: s.Choice})
	}
	page.Notes = append(page.Notes, o.arrivalNotes(request.Input())...)
	bar := o.env.Progress(request.Steps(), "planning", "plans")
	request.Planned = func() { _ = bar.Add(1) }
	res, err := outlook.Plan(request)
	if err != nil {
		return err
	}
	_ = bar.Finish()
	for i, made := range res.Sections {
		page.Sections[i].Outlook = report.Outlook{Plans: made.Plans, PlanCommand: o.planCommand(made.Demand, page.Sections[i].GPU)}
	}
	for _, f := range res.Shared {
		page.Shared = append(page.Shared, report.SharedOutlook{GPU: f.GPU, Without: f.Without,
			Outlook: report.Outlook{Plans: f.Plans, UnsharedGPUs: f.UnsharedGPUs, PlanCommand: o.planCommand(f.Demand, f.GPU)}})
	}
	if res.Unplanned > 0 {
		page.Notes = append(page.Notes, fmt.Sprintf("%d of %d functions have no plan for some demands, because the time limit was reached (--time-limit %s).", res.Unplanned, len(page.Sections), o.limit))
	}
	return nil
}

// arrivalNotes returns notes about the assumed arrival process, as sentences.
func (o *outlookOptions) arrivalNotes(in place.Input) (notes []string) {
	for _, note := range o.arrivals.Notes(in) {
		first, remainder := note[:1], note[1:]
		if strings.HasPrefix(note, "requests ") || strings.HasPrefix(note, "the ") {
			first = strings.ToUpper(first)
		}
		notes = append(notes, first+remainder+".")
	}
	objective := func(d plan.Demand) bool { return d.SLOMS > 0 }
	if !in.Poisson && slices.ContainsFunc(in.Demand, objective) {
		notes = append(notes, "Plans assume steady arrivals: each request arrives when another one has been answered (--arrivals steady). If requests arrive at random, more GPUs are needed to meet the objectives.")
	}
	return notes
}

// planCommand returns the shell command that plans for a demand on a GPU model. It returns "" without a demand,
// and also if the rows of a mixed profile do not name their model, because no flag of gfaas-place can
// select such rows.
func (o *outlookOptions) planCommand(demands []plan.Demand, gpu string) string {
	if len(demands) == 0 || o.mixed && gpu == "" {
		return ""
	}
	var file strings.Builder
	w := csv.NewWriter(&file)
	rows := [][]string{{"function", "rps", "slo_ms"}}
	for _, d := range demands {
		slo := ""
		if d.SLOMS > 0 {
			slo = csvfile.Format(d.SLOMS)
		}
		rows = append(rows, []string{d.Function, csvfile.Format(d.RPS), slo})
	}
	_ = w.WriteAll(rows) // a strings.Builder returns no errors
	path := o.path
	if path == "-" {
		path = "PROFILE.csv" // standard input is the demand
	}
	command := "gfaas-place plan --profile " + quote(path)
	if o.mixed {
		command += " --gpu-model " + quote(gpu)
	}
	if o.functions != "" {
		functions := o.functions
		if functions == "-" {
			functions = "FUNCTIONS.yaml" // for the same reason
		}
		command += " --functions " + quote(functions)
	}
	if o.model != plan.ModelRect {
		command += " --model " + o.model
	}
	if o.mem > 0 {
		command += " --gpu-mem " + o.mem.String()
	}
	if o.arrivals.Pattern != plan.ArrivalsPoisson {
		command += " --arrivals " + o.arrivals.Pattern
	}
	if o.arrivals.Headroom > 0 {
		command += " --headroom " + csvfile.Format(o.arrivals.Headroom)
	}
	if o.arrivals.HandOver != arrivals.HandOver {
		command += " --hand-over " + o.arrivals.HandOver.String()
	}
	return fmt.Sprintf("%s --demand - <<'END'\n%sEND\n", command, file.String())
}

// quote quotes a word for a shell if necessary.
func quote(word string) string {
	if strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/+-") == "" && word != "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
