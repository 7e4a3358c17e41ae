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
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place"
	"github.com/gfaas/gfaas/pkg/policy/place/arrivals"
	"github.com/gfaas/gfaas/pkg/policy/place/prepare"
	"github.com/gfaas/gfaas/pkg/profile"
)

// steps are how often the throughput of the chosen configuration is asked for
// when nobody says what is.
var steps = []float64{1, 10, 100}

// maxRates is how many rates --rps may name.
const maxRates = 10

// outlookOptions are the flags that say what is planned, as given.
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

// check says what is wrong with the flags, and reads the demand and the functions. Beside
// is another file that is read.
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

// objective is a function's objective in ms: that of the demand, else its own, else slo.
func (o *outlookOptions) objective(function string, slo time.Duration) float64 {
	one := []plan.Demand{{Function: function}}
	for _, d := range o.wanted {
		if d.Function == function {
			one[0] = d
		}
	}
	prepare.Objectives(one, o.loaded, slo)
	return one[0].SLOMS
}

// rates are what of a section is planned for; none when there is no telling.
func (o *outlookOptions) rates(s report.Section) (out []float64) {
	switch {
	case o.demand != "":
		for _, d := range o.wanted {
			if d.Function == s.Function {
				out = append(out, d.RPS)
			}
		}
	case len(o.rps) > 0:
		return o.rps
	case s.Choice.OK:
		for _, k := range steps {
			out = append(out, k*s.Choice.Row.ThroughputRPS)
		}
	}
	return out
}

// outlook plans for the sections of each model of GPU together, then for each
// section alone. When the time is over, what is left is not planned, and named.
func (o *outlookOptions) outlook(page *report.Page) error {
	p := planner{outlookOptions: o, until: time.Now().Add(o.limit)}
	page.Notes = append(page.Notes, p.assumed(page.Sections)...)
	var models []string
	fleets := map[string][]*report.Section{}
	for i := range page.Sections {
		s := &page.Sections[i]
		if fleets[s.GPU] == nil {
			models = append(models, s.GPU)
		}
		fleets[s.GPU] = append(fleets[s.GPU], s)
	}
	bar := o.env.Progress(len(page.Sections)+len(models), "planning", "plans")
	for _, model := range models {
		f, err := p.together(model, fleets[model])
		if err != nil {
			return err
		}
		_ = bar.Add(1)
		for _, s := range fleets[model] {
			if s.Outlook, err = p.alone(s); err != nil {
				return err
			}
			_ = bar.Add(1)
		}
		if len(f.Plans) > 0 {
			f.Alone = p.apart(fleets[model], len(f.Plans))
			page.Fleets = append(page.Fleets, f)
		}
	}
	_ = bar.Finish()
	late := 0
	for _, s := range page.Sections {
		if len(s.Plans) < len(o.rates(s)) {
			late++
		}
	}
	if late > 0 {
		page.Notes = append(page.Notes, fmt.Sprintf("%d of %d functions are not planned for all demands: the time was over (--time-limit %s).", late, len(page.Sections), o.limit))
	}
	return nil
}

// assumed returns notes about how requests are taken to come, in sentences.
func (p *planner) assumed(sections []report.Section) (out []string) {
	var in place.Input
	for i := range sections {
		s := &sections[i]
		in.Profile = append(in.Profile, s.Rows...)
		known := slices.ContainsFunc(in.Demand, func(d plan.Demand) bool { return d.Function == s.Function })
		if !known && len(p.rates(*s)) > 0 {
			in.Demand = append(in.Demand, plan.Demand{Function: s.Function, SLOMS: s.Goal.SLOMS})
		}
	}
	p.arrivals.Apply(&in)
	for _, note := range p.arrivals.Notes(in) {
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

// planner makes plans until its time is over.
type planner struct {
	*outlookOptions
	until time.Time
}

func (p *planner) over() bool { return time.Now().After(p.until) }

// together plans the sections as one fleet; nothing when it is of fewer than
// two.
func (p *planner) together(model string, all []*report.Section) (report.Fleet, error) {
	f := report.Fleet{GPU: model}
	var planned []*report.Section
	for _, s := range all {
		if len(p.rates(*s)) > 0 {
			planned = append(planned, s)
		} else if !s.Choice.OK {
			f.Without = append(f.Without, s.Function)
		}
	}
	if len(planned) < 2 {
		return f, nil
	}
	var err error
	f.Outlook, err = p.plan(planned)
	return f, err
}

// alone plans one section, if there is time.
func (p *planner) alone(s *report.Section) (report.Outlook, error) {
	if p.over() {
		return report.Outlook{}, nil
	}
	return p.plan([]*report.Section{s})
}

// apart sums the GPUs that the sections take alone, for each of n demands; nil
// when they are not all planned.
func (p *planner) apart(all []*report.Section, n int) []int {
	out := make([]int, n)
	for _, s := range all {
		if len(p.rates(*s)) == 0 {
			continue
		}
		if len(s.Plans) < n {
			return nil
		}
		for i := range out {
			out[i] += s.Plans[i].GPUsUsed
		}
	}
	return out
}

// plan plans for the sections' rates, at least the first of them, as gfaas-place plan
// does for the same demand: a plan that is begun is searched for as long, even if
// --time-limit ends meanwhile.
func (p *planner) plan(sections []*report.Section) (out report.Outlook, err error) {
	var rows []profile.Row
	for _, s := range sections {
		rows = append(rows, s.Rows...)
	}
	for i := range p.rates(*sections[0]) {
		var d []plan.Demand
		for _, s := range sections {
			d = append(d, plan.Demand{Function: s.Function, RPS: p.rates(*s)[i], SLOMS: s.Goal.SLOMS})
		}
		prepare.Limits(rows, p.loaded, false)
		in := place.Input{Profile: rows, Demand: d, Functions: p.loaded, MemMiB: p.mem.MiB(), Model: sections[0].GPU}
		p.arrivals.Apply(&in)
		until := time.Now().Add(prepare.TimeLimit)
		made, _, err := place.Joint(in, place.JointOptions{
			Model: p.model, Expired: func() bool { return time.Now().After(until) },
		})
		if err != nil {
			return out, err
		}
		if i == 0 {
			out.Again = p.again(d, sections[0].GPU)
		}
		out.Plans = append(out.Plans, made)
		if p.over() {
			break
		}
	}
	return out, nil
}

// again is the shell command that plans for a demand on a model of GPU; empty
// when the rows of a mixed profile do not say of which they are, which no flag
// of gfaas-place can ask for.
func (p *planner) again(wanted []plan.Demand, gpu string) string {
	if p.mixed && gpu == "" {
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
	path := p.path
	if path == "-" {
		path = "PROFILE.csv" // the command's standard input is the demand
	}
	command := "gfaas-place plan --profile " + quote(path)
	if p.mixed {
		command += " --gpu-model " + quote(gpu)
	}
	if p.functions != "" {
		functions := p.functions
		if functions == "-" {
			functions = "FUNCTIONS.yaml" // as above
		}
		command += " --functions " + quote(functions)
	}
	if p.model != plan.ModelRect {
		command += " --model " + p.model
	}
	if p.mem > 0 {
		command += " --gpu-mem " + p.mem.String()
	}
	if p.arrivals.Pattern != plan.ArrivalsPoisson {
		command += " --arrivals " + p.arrivals.Pattern
	}
	if p.arrivals.Headroom > 0 {
		command += " --headroom " + csvfile.Format(p.arrivals.Headroom)
	}
	if p.arrivals.HandOver != arrivals.HandOver {
		command += " --hand-over " + p.arrivals.HandOver.String()
	}
	return fmt.Sprintf("%s --demand - <<'END'\n%sEND\n", command, file.String())
}

// quote has a shell read a word as it is.
func quote(word string) string {
	if strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/+-") == "" && word != "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
