package place

import (
	"encoding/csv"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/picture"
	"github.com/gfaas/gfaas/pkg/command/planning"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	policy "github.com/gfaas/gfaas/pkg/policy/place"
	"github.com/gfaas/gfaas/pkg/policy/place/diff"
	"github.com/gfaas/gfaas/pkg/policy/place/online"
	"github.com/gfaas/gfaas/pkg/policy/place/prepare"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// planOptions are the flags of plan, as given.
type planOptions struct {
	env       *cli.Env
	files     inputs
	gpus      int
	mem       gpu.Bytes
	algorithm string
	model     string
	tieBreak  string
	order     string
	share     bool
	seed      uint64
	limit     time.Duration
	diluted   online.DiluOptions
	over      func() bool // the time limit
	spend     bool        // all of it, while a plan might be better
	current   currentOptions
	arrivals  planning.Arrivals
	instances instanceOptions
	sweep     string
	told      []string // notes
}

const planLong = `Chooses for each function how many instances of which configurations of its
profile serve its demand within its objective, and places them on GPUs. Under
the model rect every instance has a rectangle of its GPU for itself: a share of
the SMs for a share of the scheduling window. Under tokens it has its SMs at
some moments of the window, as the plan's timetable says.

Without --inventory or --gpus as many GPUs are taken as needed. A row of the profile
holds for GPUs of its model alone. Where the profile has rows of several models and
the inventory does not name the models of all GPUs, --gpu-model chooses one; without
it, the exit status is 2. The plan names the model of each GPU. Memory is limited only
by --inventory or --gpu-mem. With --share-models, the weights of a model (model_mem_mib of
the profile, else the size of the model in --functions) count once for each tenant on each
GPU that hosts a function with this model, in units of 2 MiB, as gfaas-modeld allocates
memory. A function's objective is the demand's slo_ms, else the slo of --functions, else
--slo. --functions also has these effects: an instance of a function with several gpus is
on as many GPUs of one node; functions whose models have the same name share the weights;
the memory of an instance is its gpu_mem, the limit that gfaas up gives it, or what was
measured if that is more. What cannot be placed is listed with the reason, and the exit
status is 3; the rest is planned all the same.

The algorithm joint chooses configurations and packs them together: a linear
program over all that one GPU can host (column generation), rounded, and a
search for fewer GPUs that ends at the proven bound, after a fixed amount of
work, or at the time limit. As long as the limit does not end it, the same input
and seed give the same plan. With --time-limit the search goes on for all of it,
unless it comes to the bound (not with --what-if, --current or --max-instances,
which make several plans). When there are too few GPUs, as many requests a second
as can be are served. -v says why each configuration was chosen.

SM time and memory are packed at once. Of more than 250 functions on GPUs that
are alike, what each takes is chosen by prices of shapes and memory and then
packed, which takes time in proportion to them. Under tokens a plan of rectangles
is made, too, and taken where it needs fewer GPUs.

The algorithm fast is that of FaST-GShare: each function's configurations are
chosen by heuristic scaling (the most efficient one, then the least that covers
the rest) and packed by the maximal rectangles algorithm. It places no instances
that span several GPUs.

The algorithm dilu is that of Dilu: each function's configuration of the best
throughput for its SMs is placed instance by instance, in the order of the
demand, where SM requests sum to at most --omega and limits, twice the requests,
to at most --gamma: first beside what runs beside the function's other
instances, then where least is left over. Of the profile only rows of the
largest quota of a function count, since Dilu divides SMs and not time.

fast and dilu know only rectangles: under tokens their plans are these as a
timetable. They do not search, so a seed or a time limit changes nothing.

--order arrival plans function by function without a look at those to come, as
a cluster must whose functions arrive one by one; without --algorithm it means
fast.

Each plan says how many GPUs are needed at least, whatever the choice of
configurations.

--arrivals says how requests come. Poisson, at random: an instance is counted on
for as many requests a second as it answers within the objective, 95% of them,
when nobody waits for an answer before the next request; the rule is in
docs/placement.md. Steady, one as another is answered, as the papers plan: an
instance is counted on for all its throughput. Without it requests to functions
with an objective come at random, those to others steadily. --headroom keeps a
part of what an instance is worth free besides. An instance that takes one call at
a time, as functions of --functions do without inflight, has nothing to do for
--hand-over between two, as behind gfaas serve; that is counted on, too, where
requests come at random, and gfaas-sim plan knows of it in any case. LOAD in the
table is the part of its time that an instance works then.

Every instance is a process with a context of its own on the GPU. MPS lets 48 of
them have one GPU at a time, 60 with newer drivers: --max-instances bounds them, in
the plan and in its bound; without it a note names the GPUs with more than 48.
--context-mem is what a context takes (100 to 500 MiB by NVML), where the memory in
the profile does not hold it.

With --current the plan starts from one that runs: what is still wanted keeps
its id, GPU and place. A function that asks for less stops its least efficient
instances; one that asks for more starts what heuristic scaling chooses, where
the least room is left beside it, or what the algorithm plans on GPUs not in
use, whichever takes fewer. An instance that cannot stay (its GPU is gone, its
configuration misses the objective) stops whatever --max-moves says. The table
lists what stops, starts and is kept; with other forms gfaas-place diff does.

With --what-if the demand is planned for once with each pair of factors, of its
rates and of its objectives, and each of the arrivals it names; a line a pair says
how many GPUs that takes (CSV unless -o says otherwise), and the exit status is 0
even where some is unplaced.`

const planExample = `  gfaas-place plan --profile profile.csv --demand resnet=250,bert=40
  gfaas-place plan --profile profile.csv --demand demand.csv --gpu-mem 16GiB -o json > plan.json
  gfaas-place plan --profile profile.csv --demand demand.csv --inventory gpus.csv -o svg --out-file plan.svg
  gfaas-place plan --profile profile.csv --demand demand.csv --inventory gpus.csv -o html --out-file plan.html
  gfaas-place plan --profile profile.csv --demand resnet=300 --current plan.json --max-moves 2
  gfaas-place plan --profile profile.csv --demand demand.csv --gpus 8 --what-if 'rps=1,1.5,2 slo=0.8,1'`

func newPlan(env *cli.Env) *cobra.Command {
	o := planOptions{env: env, diluted: online.DiluDefaults()}
	cmd := &cobra.Command{
		Use:     "plan",
		Short:   "Plan instances on GPUs for a demand",
		Long:    planLong,
		Example: planExample,
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	o.files.flags(cmd)
	o.files.functionsFlag(cmd, "their objectives, how many GPUs and how much memory an instance takes, what its weights are called")
	f.IntVar(&o.gpus, "gpus", 0, "how many GPUs there are (default as many as it takes)")
	cli.Memory(f, &o.mem, "gpu-mem", "memory of each GPU, or the most to use of it, like `16GiB` (default no limit)")
	cli.Choice(cmd, &o.algorithm, "algorithm", "how to plan", algorithmNames()...)
	cli.Choice(cmd, &o.model, "model", "what a GPU can host side by side", plan.ModelRect, plan.ModelTokens)
	f.BoolVar(&o.share, "share-models", false, "keep the weights of a tenant's model once on a GPU")
	f.Uint64Var(&o.seed, "seed", 0, "another seed may give another plan as good")
	f.DurationVar(&o.limit, "time-limit", prepare.TimeLimit, "how long to improve the plan")
	cli.Choice(cmd, &o.tieBreak, "tie-break", "which of equally efficient configurations to take",
		string(policy.LargerQuota), string(policy.SmallerQuota))
	cli.Choice(cmd, &o.order, "order", "pack the largest rectangles first, or as they arrive by the demand",
		string(policy.Largest), string(policy.Arrival))
	o.current.flags(cmd)
	o.arrivals.Flags(cmd)
	o.instances.flags(cmd)
	o.diluFlags(f)
	f.StringVar(&o.sweep, "what-if", "", "plan for the demand times factors, like `'rps=1,2,4 slo=0.5,1'`, and print a line for each")
	env.Outputs(cmd, "table", "json", "csv", "svg", "html")
	return cmd
}

// located is an error of planning with the line of the demand that it is about.
func (o *planOptions) located(in policy.Input, err error) error {
	var of *policy.DemandError
	if !errors.As(err, &of) {
		return err
	}
	file := o.files.demand
	if file == "-" {
		file = textfile.Stdin
	}
	for _, d := range in.Demand {
		if d.Function == of.Function && d.Line > 0 {
			return &textfile.Fault{File: file, Line: d.Line, Where: "rps", What: err.Error()}
		}
	}
	return err
}

func (o *planOptions) run(cmd *cobra.Command) error {
	started := time.Now()
	o.env.Noted = func(text string) {
		if text, note := strings.CutPrefix(text, "note: "); note {
			o.told = append(o.told, text)
		}
	}
	if err := o.checkAlgorithm(cmd); err != nil {
		return err
	}
	in, err := o.input(cmd)
	if err != nil {
		return err
	}
	if cmd.Flags().Changed("what-if") {
		return o.whatIf(cmd, in)
	}
	over, done := o.env.Deadline(started, o.limit, "planning")
	o.over = over
	// Where several plans are made, the first leaves time to the others.
	o.spend = cmd.Flags().Changed("time-limit") && o.current.path == "" && o.instances.most == 0
	p, changes, err := o.make(cmd, in)
	even := o.evenly(p, in)
	done()
	if err != nil {
		return o.located(in, err)
	}
	o.notes(in)
	o.unstable(p, in)
	o.instances.crowded(o.env, p)
	o.tell(changes)
	if err := o.print(p, in.Profile, changes, even); err != nil {
		return err
	}
	if len(p.Unplaced) > 0 {
		return cli.Exit(cli.ExitNo)
	}
	return nil
}

// print writes the plan in the chosen form. What a form cannot hold goes to
// standard error.
func (o *planOptions) print(p plan.Plan, rows []profile.Row, changes []diff.Change, even string) error {
	if o.env.Output == "csv" {
		for _, u := range p.Unplaced {
			o.env.Notef("unplaced: %s requests a second of %s: %s", csvfile.Format(u.RPS), u.Function, u.Reason)
		}
	}
	return o.env.Emit(func(w io.Writer) error {
		switch o.env.Output {
		case "json":
			return p.WriteJSON(w)
		case "csv":
			return csv.NewWriter(w).WriteAll(records(p))
		case "svg":
			_, err := w.Write(picture.SVG(p))
			return err
		case "html":
			return writePage(w, p, o.tables(p, rows, changes), summary(p)+even, o.told)
		}
		if err := printTable(w, p, rows, even); err != nil || o.current.path == "" {
			return err
		}
		return printChanges(w, changes)
	})
}

// notes says what the reader of the plan should know about its inputs.
func (o *planOptions) notes(in policy.Input) {
	if o.files.inventory == "" && in.MemMiB == 0 {
		o.env.Notef("note: memory is not limited, since neither --inventory nor --gpu-mem was given")
	}
	without := map[string]bool{}
	shared := map[string]bool{}
	for _, r := range in.Profile {
		shared[r.Function] = shared[r.Function] || r.ModelMemMiB > 0
		without[r.Function] = without[r.Function] || r.GPUMemMiB == o.instances.context.MiB()
	}
	var unknown []string
	for _, d := range in.Demand {
		if without[d.Function] && (o.files.inventory != "" || in.MemMiB > 0) {
			unknown = append(unknown, d.Function)
		}
	}
	if len(unknown) > 0 {
		o.env.Notef("note: the profile does not say how much memory every configuration of %s needs: where it does not, none is counted", strings.Join(unknown, ", "))
	}
	known := func(d plan.Demand) bool { return shared[d.Function] }
	if o.share && !slices.ContainsFunc(in.Demand, known) {
		o.env.Notef("note: --share-models changes nothing: neither the profile (model_mem_mib) nor --functions (size: of a model) says how much memory weights take")
	}
}

// unstable says which instances are planned by figures that should not be relied
// on.
func (o *planOptions) unstable(p plan.Plan, in policy.Input) {
	rows := profile.NewIndex(in.Profile)
	told := map[int]bool{}
	for _, g := range p.GPUs {
		for _, i := range g.Instances {
			for _, r := range rows.On(i.Function, i.Config(), g.Model) {
				if r.Unstable == 0 || told[r.Line] {
					continue
				}
				told[r.Line] = true
				o.env.Notef("note: %s is planned with an unstable row (%s:%d: sm_pct %s, quota %s, batch %d): its figures kept changing, or are known less well than was asked for; measure it for longer",
					i.Function, o.files.profile, r.Line, csvfile.Format(i.SMPct), csvfile.Format(i.QuotaRequest), i.Batch)
			}
		}
	}
}

// evenly says for the table and the page how many GPUs the demand would take if requests came
// steadily; nothing where they do, or where something runs already.
func (o *planOptions) evenly(p plan.Plan, in policy.Input) string {
	if p.Arrivals != plan.ArrivalsPoisson || o.current.path != "" || o.env.Output != "table" && o.env.Output != "html" {
		return ""
	}
	in.Poisson = false
	steady, err := o.quietly().plan(in)
	if err != nil || len(steady.Unplaced) > 0 {
		return ""
	}
	return " If requests came steadily, " + cli.Count(steady.GPUsUsed, "GPU") + " would do."
}
