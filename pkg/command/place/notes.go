package place

import (
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/planning"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/plan"
	policy "github.com/gfaas/gfaas/pkg/policy/place"
	"github.com/gfaas/gfaas/pkg/profile"
)

// printInputNotes prints notes about missing or ineffective inputs of the plan.
func (o *planOptions) printInputNotes(in policy.Input) {
	if o.files.inventory == "" && in.MemMiB == 0 {
		o.env.Notef("note: memory is unlimited; set a limit with --inventory or --gpu-mem")
	}
	unmeasured := map[string]bool{}
	hasModelMem := map[string]bool{}
	for _, r := range in.Profile {
		hasModelMem[r.Function] = hasModelMem[r.Function] || r.ModelMemMiB > 0
		unmeasured[r.Function] = unmeasured[r.Function] || r.GPUMemMiB == o.instances.contextMem.MiB()
	}
	demanded := lists.Filter(lists.Map(in.Demand, plan.Demand.Name), func(function string) bool { return unmeasured[function] })
	if len(demanded) > 0 && (o.files.inventory != "" || in.MemMiB > 0) {
		o.env.Notef("note: the profile has no memory for some configurations of %s; they count as 0 MiB", strings.Join(demanded, ", "))
	}
	sharesWeights := func(d plan.Demand) bool { return hasModelMem[d.Function] }
	if o.options.ShareModels && !slices.ContainsFunc(in.Demand, sharesWeights) {
		o.env.Notef("note: --share-models has no effect: neither the profile (model_mem_mib) nor --functions (size of a model) contains the memory of weights")
	}
}

// noteBatches prints a note about the demanded functions whose batches reach no instance, if the profile has rows with
// batches.
func (o *planOptions) noteBatches(in policy.Input) {
	byFunction := map[string][]profile.Row{}
	for _, r := range in.Profile {
		byFunction[r.Function] = append(byFunction[r.Function], r)
	}
	without := lists.Filter(lists.Map(in.Demand, plan.Demand.Name), func(function string) bool {
		return len(in.Reachable(function, byFunction[function])) < len(byFunction[function])
	})
	if len(without) > 0 {
		o.env.Notef("note: rows of %s with a batch above 1 are not used, because its instances get one request at a time; set batcher or inflight in --functions if batches reach them", planning.List(without))
	}
}

// notePlannedBatches prints a note about the functions of a plan with batches if it is not known whether batches reach
// their instances.
func (o *planOptions) notePlannedBatches(p plan.Plan, in policy.Input) {
	var unknown []string
	for _, g := range p.GPUs {
		for _, i := range g.Instances {
			named := slices.ContainsFunc(in.Functions, func(fn function.Function) bool { return fn.Name == i.Function })
			if i.Batch > 1 && !named && !slices.Contains(unknown, i.Function) {
				unknown = append(unknown, i.Function)
			}
		}
	}
	if len(unknown) > 0 {
		o.env.Notef("note: the plan counts on batches for %s, which need batcher or inflight in function.yaml; with --functions, the plan uses only batches that reach the instances", planning.List(unknown))
	}
}

// noteUnstableRows prints a note for each unstable row of the profile that the plan uses.
func (o *planOptions) noteUnstableRows(p plan.Plan, in policy.Input) {
	rows := profile.NewIndex(in.Profile)
	noted := map[int]bool{}
	for _, g := range p.GPUs {
		for _, i := range g.Instances {
			for _, r := range rows.On(i.Function, i.Config(), g.Model) {
				if r.Unstable == 0 || noted[r.Line] {
					continue
				}
				noted[r.Line] = true
				o.env.Notef("note: the plan for %s uses an unstable row (%s:%d: sm_pct %s, quota %s, batch %d), whose figures kept changing or are imprecise; measure it for longer with gfaas-profile run --duration",
					i.Function, o.files.profile, r.Line, csvfile.Format(i.SMPct), csvfile.Format(i.QuotaRequest), i.Batch)
			}
		}
	}
}

// steadyArrivalsNote returns a sentence, for the table and the page, about the GPUs that the demand
// would need if requests arrived steadily. It returns an empty string for other formats, if
// requests do arrive steadily, or with --current.
func (o *planOptions) steadyArrivalsNote(p plan.Plan, in policy.Input) string {
	if p.Arrivals != plan.ArrivalsPoisson || o.current.path != "" || o.env.Output != "table" && o.env.Output != "html" {
		return ""
	}
	in.Poisson = false
	steady, err := o.withoutReasons().plan(in)
	if err != nil || len(steady.Unplaced) > 0 {
		return ""
	}
	switch {
	case steady.GPUsUsed < p.GPUsUsed:
		return " With steady arrivals, " + number.Count(steady.GPUsUsed, "GPU") + " would suffice."
	case steady.GPUsUsed == p.GPUsUsed:
		return " A plan for steady arrivals would use as many GPUs."
	default: // the planner is not exact
		return ""
	}
}
