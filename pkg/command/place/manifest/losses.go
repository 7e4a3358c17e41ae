package manifest

import (
	"fmt"
	"slices"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/plan"
)

// loss is a field of a plan that a format cannot represent.
type loss struct {
	field       string
	explanation string               // explanation for the user
	of          func(*workload) bool // reports whether an instance is affected; nil means all are
}

func shared(w *workload) bool      { return w.QuotaRequest < 1 }
func bursts(w *workload) bool      { return w.QuotaLimit > w.QuotaRequest }
func grows(w *workload) bool       { return w.SMLimitPct > w.SMPct }
func batches(w *workload) bool     { return w.Batch > 1 }
func placed(w *workload) bool      { return w.X != nil || w.Y != nil }
func isRectangle(w *workload) bool { return w.QuotaRequest < 1 && w.SMPct < 100 }

// enforcer is the component that enforces the slices of instances.
type enforcer bool

const (
	tokenDaemon enforcer = true  // the node's token daemon, as with gfaas up
	scheduler   enforcer = false // the Kubernetes scheduler and the driver of its devices
)

var (
	kubeLosses = []loss{
		{"sm_pct", "cores are a share of time, so only sm_pct × quota_request is enforced, on average", isRectangle},
		{"quota_request", "cores are a share of time, so only sm_pct × quota_request is enforced, on average", shared},
		{"quota_limit", "there is only one limit, which is the request", bursts},
		{"x, y", "instances run whenever they have work, not at their place on the GPU", placed},
	}
	commonLosses = []loss{
		{"sm_limit_pct", "the container starts with the SM share of its request", grows},
		{"batch", "the program in the container must form batches itself", batches},
		{"rps", "the rate of an instance is not enforced; distribute requests accordingly", nil},
	}
)

// planOnlyFields lists the fields that describe the plan and not its instances.
const planOnlyFields = "version, algorithm, model, gpus_used, bound, bound_method, demand, unplaced"

// lossWarnings returns warnings about fields of the plan that the manifest does not contain, and about
// defaults for missing inputs.
func lossWarnings(by enforcer, p plan.Plan, list []*workload, o Options) []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	losses := commonLosses
	if by == scheduler {
		losses = slices.Concat(kubeLosses, commonLosses)
	}
	for _, l := range losses {
		if n := count(list, l.of); n > 0 {
			add("lost: %s of %s: %s", l.field, number.Count(n, "instance"), l.explanation)
		}
	}
	out = append(out, gpuLosses(by, p, list)...)
	if by == scheduler && o.Inventory == nil && len(list) > 0 {
		add("lost: node, index: without --inventory, the node names may be placeholders, so Kubernetes chooses nodes and GPUs, and may not find room for every instance")
	}
	add("lost: %s: they describe the plan, not instances", planOnlyFields)
	if o.Functions == nil && len(list) > 0 {
		add("the names of functions are used as images, and commands and environments are missing; give them with --functions")
	}
	return append(out, functionLosses(by, list)...)
}

// count returns the number of workloads for which the function of returns true, or of all if it is nil.
func count(list []*workload, of func(*workload) bool) (n int) {
	for _, w := range list {
		if of == nil || of(w) {
			n++
		}
	}
	return n
}

// coreWarnings returns a warning if rounding parts below one percent up makes the cores of a GPU exceed
// 100 percent.
func coreWarnings(p plan.Plan) []string {
	n := 0
	for _, g := range p.GPUs {
		sum := 0
		for _, cores := range corePercents(g) {
			sum += cores
		}
		if sum > 100 {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return []string{fmt.Sprintf("cores are whole percents, at least 1; the cores on %s sum to more than 100, so some instances may not start", number.Count(n, "GPU"))}
}

// memoryWarnings returns warnings for schedulers that count memory in whole MiB: about instances that
// get less memory than planned, and about GPUs whose instances together request more than the GPU has.
func memoryWarnings(p plan.Plan, list []*workload) (out []string) {
	byID := map[string]*workload{}
	for _, w := range list {
		byID[w.ID] = w
	}
	reduced := count(list, func(w *workload) bool { return w.mem < w.roundedUp() })
	if reduced > 0 {
		out = append(out, fmt.Sprintf("lost: a fraction of a MiB of mem_mib of %s: memory is in whole MiB, and the rounded-up sum would be more than the GPU has", number.Count(reduced, "instance")))
	}
	full := 0
	for _, g := range p.GPUs {
		if _, _, excess := hostedBy(g, byID); excess > 0 {
			full++
		}
	}
	if full > 0 {
		out = append(out, fmt.Sprintf("the memory of instances on %s sums to more than the GPU has, so some may not start; plan with more memory for each, or without --share-models", number.Count(full, "GPU")))
	}
	return out
}

func gpuLosses(by enforcer, p plan.Plan, list []*workload) []string {
	var out []string
	schedules, models := 0, 0
	for _, g := range p.GPUs {
		schedules += min(1, len(g.Schedule))
		models += min(1, len(g.Models))
	}
	unlimited := count(list, func(w *workload) bool { return w.mem == 0 })
	if schedules > 0 && by == scheduler {
		out = append(out, fmt.Sprintf("lost: schedule of %s: turns are not enforced, so instances may want more than all SMs at once", number.Count(schedules, "GPU")))
	}
	if models > 0 {
		out = append(out, fmt.Sprintf("lost: models of %s: weights are not shared, so the memory of each instance includes its own copy", number.Count(models, "GPU")))
	}
	if unlimited > 0 {
		effect := "so memory is unlimited"
		if by == scheduler {
			effect = "and a pod without a memory request gets all memory of a GPU, so no other pod starts there"
		}
		out = append(out, fmt.Sprintf("mem_mib is 0 for %s, %s; plan with --gpu-mem or --inventory", number.Count(unlimited, "instance"), effect))
	}
	return out
}

// functionLosses returns warnings about fields of functions that only gfaas up and gfaas serve honour.
func functionLosses(by enforcer, list []*workload) []string {
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
				out = append(out, fmt.Sprintf("lost: %s of function %s: only gfaas supports it", f.field, fn.Name))
			}
		}
	}
	return out
}
