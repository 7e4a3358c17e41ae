package place

import (
	"slices"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/reason"
)

// Planner makes a plan for an input without a running plan.
type Planner func(Input) (plan.Plan, error)

// IncrementalOptions limits the changes to a plan.
type IncrementalOptions struct {
	TieBreak TieBreak
	// MaxMoves limits the instances that could stay but are stopped and started elsewhere,
	// because that serves more or frees a GPU.
	MaxMoves    int
	Threshold   int  // number of free rectangles at which they are listed again, see maxrect.New
	ShareModels bool // keep a model's weights once on each GPU; also if the current plan does so

	tokens bool  // the current plan has the model tokens
	order  Order // in which new instances are packed
}

// Replanned is the result of Incremental.
type Replanned struct {
	Plan    plan.Plan
	Reasons map[string]reason.Reason // why each instance starts or stops, by ID
	// Servable is demand that Plan leaves unplaced, but that a plan without regard to running
	// instances would serve. Its reasons are empty.
	Servable []plan.Unplaced
}

// Incremental plans for a demand that has changed while a plan is running:
//
//   - Running instances that are still wanted stay on their GPUs.
//   - Each function scales up or down by the heuristic algorithm (FaST-GShare, section 3.4.1).
//   - New instances are placed where the least free area remains near them (section 3.4.2). In
//     a second attempt, the planner places the instances that do not fit the GPUs in use. The
//     attempt with fewer GPUs counts.
//   - The planner also gives the bound, so it must plan for the current plan's model.
//
// The IDs, GPUs and places of instances that keep running stay the same, and an unchanged demand
// gives the same plan.
func Incremental(current plan.Plan, in Input, o IncrementalOptions, planner Planner) (Replanned, error) {
	o.tokens = current.Model == plan.ModelTokens
	var models []string
	for _, g := range current.GPUs {
		models = append(models, g.Model)
	}
	in = in.splitByModel(models...)
	newPlan, err := planner(in)
	if err != nil {
		return Replanned{}, err
	}
	best := newRevision(current, in, o)
	best.shrink(current)
	best.raise()
	if unmet(best.demands) {
		best.grow(false)
		other := newRevision(current, in, o)
		other.shrink(current)
		other.raise()
		if err := other.growBy(planner); err == nil && other.betterThan(best) {
			best = other
		}
	}
	if o.MaxMoves > 0 {
		best.move(o.MaxMoves)
	}
	p := best.plan(current, newPlan)
	return Replanned{Plan: p, Reasons: best.reasons, Servable: servable(p, newPlan)}, nil
}

// servable returns the demand that p leaves unplaced although newPlan serves it. It returns
// nil unless newPlan serves more in all.
func servable(p, newPlan plan.Plan) (more []plan.Unplaced) {
	if unserved(newPlan) >= unserved(p) {
		return nil
	}
	for _, u := range p.Unplaced {
		for _, f := range newPlan.Unplaced {
			if f.Function == u.Function {
				u.RPS = tidy(u.RPS - f.RPS)
			}
		}
		if u.RPS > 0 {
			more = append(more, plan.Unplaced{Function: u.Function, RPS: u.RPS})
		}
	}
	return more
}

// unmet reports whether any function that has a configuration has missing demand.
func unmet(demands []functionDemand) bool {
	return slices.ContainsFunc(demands, func(w functionDemand) bool { return len(w.rows) > 0 && w.missing() > 0 })
}

// betterThan reports whether a revision serves more than another, or as much with fewer GPUs, or
// has fewer starts and stops.
func (v *revision) betterThan(o *revision) bool {
	a, b := v.unserved(), o.unserved()
	switch {
	case a != b:
		return a < b
	case v.gpus.inUse() != o.gpus.inUse():
		return v.gpus.inUse() < o.gpus.inUse()
	}
	return len(v.reasons) < len(o.reasons)
}

// unserved returns the sum of the missing part of each demand.
func (v *revision) unserved() float64 {
	sum := 0.0
	for _, w := range v.demands {
		sum += w.missing() / w.demand.RPS
	}
	return sum
}

// plan returns the revision as a plan. The bound is that of a plan from nothing: running
// instances do not lower the number of GPUs that are needed.
func (v *revision) plan(current, newPlan plan.Plan) plan.Plan {
	p := v.in.empty(newPlan.Algorithm, current.Model, newPlan.Bound, newPlan.BoundMethod)
	for _, h := range v.gpus.hosts {
		if used(h) {
			p.GPUs = append(p.GPUs, v.gpus.gpu(h))
		}
	}
	p = complete(p, v.demands, func(i int) reason.Reason { return v.reason(&v.demands[i]) })
	sameGap := func(x, y plan.Unplaced) bool { return x.Function == y.Function && x.RPS == y.RPS }
	if len(v.reasons) == 0 && slices.EqualFunc(p.Unplaced, current.Unplaced, sameGap) {
		p.Unplaced = current.Unplaced
	}
	return p
}

// reason returns why the rest of a function's demand is not placed.
func (v *revision) reason(w *functionDemand) reason.Reason {
	code := gpusFull
	for _, h := range v.gpus.hosts {
		if slices.ContainsFunc(h.residents, func(t *resident) bool { return t.running }) {
			code = gpusFullBeside
		}
	}
	return w.full(code, len(v.gpus.hosts), v.in)
}

// revision is a plan under change: the demand, and GPUs with their instances.
type revision struct {
	in      Input
	o       IncrementalOptions
	gpus    *gpuSet
	demands []functionDemand
	of      map[string]*functionDemand
	running map[string][]*resident // by function, including new instances, oldest first
	ids     ids
	reasons map[string]reason.Reason // of starts and stops, by id
}

// newRevision returns a revision with the instances of the current plan that can stay. It
// records why the others stop.
func newRevision(current plan.Plan, in Input, o IncrementalOptions) *revision {
	w := &sharedWeights{shared: o.ShareModels, demands: in.functionDemands(), model: map[string]plan.Model{}, keepers: map[plan.Model]gpu.Bytes{}, currentSizes: map[weightsKey]gpu.Bytes{}}
	v := &revision{
		in: in, o: o, demands: w.demands, of: map[string]*functionDemand{}, running: map[string][]*resident{}, reasons: map[string]reason.Reason{},
		gpus: &gpuSet{in: in, tokens: o.tokens, threshold: o.Threshold, limited: in.limitsMemory(), weights: w},
		ids:  ids{map[string]bool{}, map[string]int{}},
	}
	for i := range v.demands {
		name := v.demands[i].demand.Function
		v.of[name] = &v.demands[i]
		fn, _ := in.function(name)
		w.model[name] = plan.WeightsOf(fn)
	}
	for _, g := range current.GPUs {
		w.shared = w.shared || len(g.Models) > 0
		for _, in := range g.Instances {
			v.ids.used[in.ID] = true
		}
	}
	w.share(in, current)
	v.gpus.openGPUs(current)
	for _, t := range v.gpus.residents(current) {
		v.retain(t)
	}
	return v
}

// retain leaves an instance of the current plan where it is, or records why it must stop.
func (v *revision) retain(t *resident) {
	if why := v.obstacle(t); !why.IsZero() {
		v.reasons[t.ID] = why
		return
	}
	t.RPS = min(t.RPS, t.row.ThroughputRPS)
	v.gpus.occupy(t)
	v.running[t.Function] = append(v.running[t.Function], t)
	v.of[t.Function].served += t.RPS
}

// obstacle returns why an instance cannot stay as it is. If it can, obstacle sets its row and
// memory.
func (v *revision) obstacle(t *resident) reason.Reason {
	w := v.of[t.Function]
	switch {
	case w == nil:
		return reason.New(notInDemand)
	case slices.ContainsFunc(t.locations, func(p location) bool { return p.host == nil }):
		return reason.New(notInInventory)
	case !w.reason.IsZero():
		return w.reason
	}
	if fn, known := v.in.function(t.Function); known && fn.GPUs != len(t.locations) {
		return reason.New(otherSpan, reason.Number("gpus", len(t.locations)), reason.Number("wanted", fn.GPUs))
	}
	found := slices.IndexFunc(w.rows, func(r profile.Row) bool { return t.runs(r) })
	if found < 0 {
		return v.mismatch(t, w)
	}
	t.row = w.rows[found]
	t.mem = 0
	if v.gpus.limited {
		t.mem = max(v.gpus.weights.private(t.row), gpu.FromMiB(t.MemMiB))
	}
	if t.mem != gpu.FromMiB(t.MemMiB) {
		t.MemMiB = t.mem.MiB()
	}
	for _, p := range t.locations {
		if !v.gpus.hasMemory(p.host, t.Function, t.mem) {
			return reason.New(memoryTaken)
		}
		if !v.gpus.vacant(t, p) {
			return reason.New(placeTaken)
		}
	}
	return reason.Reason{}
}

// mismatch returns why the instance has no admissible row.
func (v *revision) mismatch(t *resident, w *functionDemand) reason.Reason {
	own := profile.Row{Config: t.Config()}
	if len(v.in.Reachable(t.Function, []profile.Row{own})) == 0 {
		return about(own, noBatches)
	}
	for _, r := range v.in.Profile {
		if r.Function == t.Function && t.runs(r) && w.demand.SLOMS > 0 && r.P95MS > w.demand.SLOMS && !(v.in.Poisson && measured(r, w.demand.SLOMS)) {
			return about(own, sloMissed, reason.Number("p95_ms", r.P95MS), reason.Number("slo_ms", w.demand.SLOMS))
		}
	}
	return about(own, notMeasured)
}

// runs reports whether the instance runs with the configuration of the row, on its GPUs.
func (t *resident) runs(r profile.Row) bool {
	if share(r.SMPct/100) != t.height() || share(r.Quota) != t.width() || r.Batch != t.Batch || t.QuotaLimit < t.QuotaRequest || t.QuotaLimit > 1 {
		return false
	}
	return !slices.ContainsFunc(t.locations, func(p location) bool { return !matches(r, p.host.device) })
}
