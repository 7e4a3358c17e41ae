package profile

import (
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

// maxRates is the largest number of rates of --rps.
const maxRates = 10

// outlookOptions are the flags about what to plan for.
type outlookOptions struct {
	env  *cli.Env
	path string // of the profile

	rps       []float64
	demand    string
	functions string
	mem       gpu.Bytes
	model     string
	limit     time.Duration
	arrivals  planning.Arrivals

	wanted []plan.Demand       // of --demand
	loaded []function.Function // of --functions
	mixed  bool                // the profile is of several models of GPU, shown or not
}

func (o *outlookOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Var(floats(&o.rps), "rps", "plan for these requests a second of each function (default 1, 10 and 100 times what the chosen configuration sustains)")
	f.StringVar(&o.demand, "demand", "", "plan for this instead: a file (CSV: function,rps,slo_ms) or a list like resnet=250,bert=40")
	f.StringVar(&o.functions, "functions", "", "the functions (YAML): their objectives, how many GPUs an instance spans, how many calls it takes at once")
	cli.Memory(f, &o.mem, "gpu-mem", "memory of each GPU that is planned with, like `16GiB` (default no limit)")
	cli.Choice(cmd, &o.model, "model", "what a GPU can host side by side", plan.ModelRect, plan.ModelTokens)
	o.arrivals.Flags(cmd)
	f.DurationVar(&o.limit, "time-limit", 20*time.Second, "how long to plan; when it is over, no other plan is begun, and functions are left out")
}

// check validates the flags and reads the demand and the functions. Beside is the path of
// another input file.
func (o *outlookOptions) check(cmd *cobra.Command, beside string) (err error) {
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
		return cli.Usagef("--rps and --demand both say what is planned for: expected one of them")
	case f.Changed("gpu-mem") && o.mem <= 0:
		return cli.Usagef("--gpu-mem %s: expected more than 0, like 16GiB", o.mem)
	case o.limit < 0:
		return cli.Usagef("--time-limit %s: expected 0 or more, like 2s", o.limit)
	case len(slices.DeleteFunc([]string{o.path, o.demand, o.functions, beside}, func(p string) bool { return p != "-" })) > 1:
		return cli.Usagef("standard input (-) can be only one of the files")
	}
	if err := o.arrivals.Check(cmd); err != nil {
		return err
	}
	if o.demand != "" {
		if o.wanted, err = demand.Load(o.env, o.demand); err != nil {
			return err
		}
	}
	if o.functions != "" {
		o.loaded, err = cli.LoadFunctions(o.env, o.functions)
	}
	return err
}

// objective returns a function's objective in ms: that of the demand, else its own, else
// slo.
func (o *outlookOptions) objective(function string, slo time.Duration) float64 {
	return outlook.Objective(function, o.wanted, o.loaded, slo)
}

// outlook plans for the sections of the page and adds the plans to it, with notes about
// what they assume and lack.
func (o *outlookOptions) outlook(page *report.Page) error {
	request := outlook.Request{RPS: o.rps, Functions: o.loaded, MemMiB: o.mem.MiB(), Model: o.model, Arrivals: &o.arrivals, TimeLimit: o.limit}
	if o.demand != "" {
		request.Demand = append([]plan.Demand{}, o.wanted...) // not nil, even if the file is empty
	}
	for _, s := range page.Sections {
		request.Sections = append(request.Sections, outlook.Section{Function: s.Function, GPU: s.GPU, Rows: s.Rows, Goal: s.Goal, Choice: s.Choice})
	}
	page.Notes = append(page.Notes, o.assumed(request.Input())...)
	bar := o.env.Progress(request.Steps(), "planning", "plans")
	request.Planned = func() { _ = bar.Add(1) }
	res, err := outlook.Plan(request)
	if err != nil {
		return err
	}
	_ = bar.Finish()
	for i, made := range res.Sections {
		page.Sections[i].Outlook = report.Outlook{Plans: made.Plans, Again: o.again(made.Demand, page.Sections[i].GPU)}
	}
	for _, f := range res.Fleets {
		page.Fleets = append(page.Fleets, report.Fleet{GPU: f.GPU, Without: f.Without,
			Outlook: report.Outlook{Plans: f.Plans, Alone: f.Alone, Again: o.again(f.Demand, f.GPU)}})
	}
	if res.Unplanned > 0 {
		page.Notes = append(page.Notes, fmt.Sprintf("%d of %d functions are not planned for all demands: the time was over (--time-limit %s).", res.Unplanned, len(page.Sections), o.limit))
	}
	return nil
}

// assumed returns notes about the assumed arrivals of requests, in sentences.
func (o *outlookOptions) assumed(in place.Input) (out []string) {
	for _, note := range o.arrivals.Notes(in) {
		first, rest := note[:1], note[1:]
		if strings.HasPrefix(note, "requests ") || strings.HasPrefix(note, "the ") {
			first = strings.ToUpper(first)
		}
		out = append(out, first+rest+".")
	}
	objective := func(d plan.Demand) bool { return d.SLOMS > 0 }
	if !in.Poisson && slices.ContainsFunc(in.Demand, objective) {
		out = append(out, "Requests are taken to come steadily, one as another is answered (--arrivals steady): if they come at random, more GPUs are needed to keep the objectives.")
	}
	return out
}

// again returns the shell command that plans for a demand on a model of GPU. It is empty
// without a demand, and if the rows of a mixed profile do not tell their model, since no
// flag of gfaas-place can select them.
func (o *outlookOptions) again(wanted []plan.Demand, gpu string) string {
	if len(wanted) == 0 || o.mixed && gpu == "" {
		return ""
	}
	var file strings.Builder
	w := csv.NewWriter(&file)
	rows := [][]string{{"function", "rps", "slo_ms"}}
	for _, d := range wanted {
		slo := ""
		if d.SLOMS > 0 {
			slo = csvfile.Format(d.SLOMS)
		}
		rows = append(rows, []string{d.Function, csvfile.Format(d.RPS), slo})
	}
	_ = w.WriteAll(rows) // to memory
	path := o.path
	if path == "-" {
		path = "PROFILE.csv" // the command's standard input is the demand
	}
	command := "gfaas-place plan --profile " + quote(path)
	if o.mixed {
		command += " --gpu-model " + quote(gpu)
	}
	if o.functions != "" {
		functions := o.functions
		if functions == "-" {
			functions = "FUNCTIONS.yaml" // as above
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

// quote returns a word quoted for a shell.
func quote(word string) string {
	if strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/+-") == "" && word != "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
