package manifest

import (
	"fmt"
	"slices"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/plan"
)

// loss is a field of a plan that a format has no place for.
type loss struct {
	field string
	why   string
	of    func(*workload) bool // whether an instance loses it; nil is all
}

func shared(w *workload) bool  { return w.QuotaRequest < 1 }
func bursts(w *workload) bool  { return w.QuotaLimit > w.QuotaRequest }
func batches(w *workload) bool { return w.Batch > 1 }
func placed(w *workload) bool  { return w.X != nil || w.Y != nil }
func both(w *workload) bool    { return w.QuotaRequest < 1 && w.SMPct < 100 }

// keeper is who holds instances to what a plan gives them.
type keeper bool

const (
	tokenDaemon keeper = true  // the node's, as under gfaas up
	scheduler   keeper = false // of Kubernetes, and its devices' driver
)

var (
	kubeLosses = []loss{
		{"sm_pct", "cores are a share of time: only sm_pct × quota_request is held, as a mean", both},
		{"quota_request", "cores are a share of time: only sm_pct × quota_request is held, as a mean", shared},
		{"quota_limit", "there is one limit, that of the request", bursts},
		{"x, y", "instances run when they have work, not at their place on the GPU", placed},
	}
	anyLosses = []loss{
		{"batch", "what runs must make its batches itself", batches},
		{"rps", "what an instance sustains is not enforced: spread requests accordingly", nil},
	}
)

// aboutThePlan are the fields that describe a plan and nothing that runs.
const aboutThePlan = "version, algorithm, model, gpus_used, bound, bound_method, demand, unplaced"

// lost lists what the manifest does not say of the plan, and what was put in
// place of what is not known.
func lost(by keeper, p plan.Plan, list []*workload, o Options) []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	losses := anyLosses
	if by == scheduler {
		losses = slices.Concat(kubeLosses, anyLosses)
	}
	for _, l := range losses {
		if n := count(list, l.of); n > 0 {
			add("lost: %s of %s: %s", l.field, cli.Count(n, "instance"), l.why)
		}
	}
	out = append(out, lostOfGPUs(by, p, list)...)
	if by == scheduler && o.Inventory == nil && len(list) > 0 {
		add("lost: node, index: without --inventory the nodes may be made up, so Kubernetes chooses nodes and GPUs and may find no room where the plan does")
	}
	add("lost: %s: they describe the plan and nothing that runs", aboutThePlan)
	if o.Functions == nil && len(list) > 0 {
		add("images are the functions' names, and commands and environments are left out: --functions gives them")
	}
	return append(out, lostOfFunctions(by, list)...)
}

// count is how many it is true of; nil is true of all.
func count(list []*workload, of func(*workload) bool) (n int) {
	for _, w := range list {
		if of == nil || of(w) {
			n++
		}
	}
	return n
}

// crowded says where parts of less than a percent make a GPU's cores more than
// it has.
func crowded(p plan.Plan) []string {
	n := 0
	for _, g := range p.GPUs {
		sum := 0
		for _, cores := range shares(g) {
			sum += cores
		}
		if sum > 100 {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return []string{fmt.Sprintf("cores are whole percents of at least 1: those of %s sum to more than 100, and not all may start", cli.Count(n, "GPU"))}
}

// wholeMiB says what schedulers that count memory in whole MiB make of a plan's: which
// instances get less of it, and which GPUs' instances together ask for more than
// there is.
func wholeMiB(p plan.Plan, list []*workload) (out []string) {
	byID := map[string]*workload{}
	for _, w := range list {
		byID[w.ID] = w
	}
	less := count(list, func(w *workload) bool { return w.mem < w.roundedUp() })
	if less > 0 {
		out = append(out, fmt.Sprintf("lost: a part of a MiB of mem_mib of %s: memory is whole MiB, and rounded up it would be more than the GPU has", cli.Count(less, "instance")))
	}
	full := 0
	for _, g := range p.GPUs {
		if _, _, over := hostedBy(g, byID); over > 0 {
			full++
		}
	}
	if full > 0 {
		out = append(out, fmt.Sprintf("the memory of instances on %s sums to more than there is, and not all may start: plan with more memory for each, or without --share-models", cli.Count(full, "GPU")))
	}
	return out
}

func lostOfGPUs(by keeper, p plan.Plan, list []*workload) []string {
	var out []string
	schedules, models := 0, 0
	for _, g := range p.GPUs {
		schedules += min(1, len(g.Schedule))
		models += min(1, len(g.Models))
	}
	unlimited := count(list, func(w *workload) bool { return w.mem == 0 })
	if schedules > 0 && by == scheduler {
		out = append(out, fmt.Sprintf("lost: schedule of %s: nothing keeps its turns, and more than all SMs may be wanted at once", cli.Count(schedules, "GPU")))
	}
	if models > 0 {
		out = append(out, fmt.Sprintf("lost: models of %s: nothing shares weights, so each instance's memory includes its own", cli.Count(models, "GPU")))
	}
	if unlimited > 0 {
		what := "so there is no limit on memory"
		if by == scheduler {
			what = "and who asks for no memory gets all of a GPU's, beside which nobody else starts"
		}
		out = append(out, fmt.Sprintf("mem_mib is 0 for %s, %s: plan with --gpu-mem or --inventory", cli.Count(unlimited, "instance"), what))
	}
	return out
}

// lostOfFunctions lists what functions state and only gfaas up and gfaas serve keep.
func lostOfFunctions(by keeper, list []*workload) []string {
	var out []string
	seen := map[string]bool{}
	for _, w := range list {
		fn := w.fn
		if seen[fn.Name] {
			continue
		}
		seen[fn.Name] = true
		for _, f := range []struct {
			field string
			set   bool
		}{
			{"contract", fn.Contract != "" && fn.Contract != function.DefaultContract},
			{"kind", fn.Kind != "" && fn.Kind != function.DefaultKind},
			{"slo", fn.SLO > 0 && by == scheduler},
			{"weight", fn.Weight != 0 && fn.Weight != 1},
			{"tenant", fn.Tenant != "" && fn.Tenant != function.DefaultTenant},
			{"model", fn.Model != nil && fn.Model.File != ""},
			{"restart", fn.Restart != "" && fn.Restart != function.DefaultRestart && by == scheduler},
			{"limits", fn.Limits != function.Limits{} && by == scheduler},
			{"read_only", fn.ReadOnly && by == scheduler},
			{"unmanaged", fn.Unmanaged == function.StopUnmanaged && by == scheduler},
		} {
			if f.set {
				out = append(out, fmt.Sprintf("lost: %s of function %s: only gfaas keeps it", f.field, fn.Name))
			}
		}
	}
	return out
}
