package place

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
	"github.com/gfaas/gfaas/pkg/policy/place/timetable"
	"github.com/gfaas/gfaas/pkg/profile"
)

// Planner plans from nothing.
type Planner func(Input) (plan.Plan, error)

// IncrementalOptions say how far a plan may change.
type IncrementalOptions struct {
	TieBreak TieBreak
	// MaxMoves is how many instances that could stay may be stopped and started
	// elsewhere, where that serves more or frees a GPU.
	MaxMoves    int
	Threshold   int  // of free rectangles before they are listed anew, as in maxrect.New
	ShareModels bool // a model's weights are kept once on a GPU; so is it when the current plan does

	tokens bool  // the current plan's model
	order  Order // in which what starts is packed
}

// Incremental plans for a demand that has changed while a plan is running. What
// runs and is still wanted stays where it is. Each function scales up and down
// by the heuristic algorithm (FaST-GShare, section 3.4.1); what starts goes
// where the least room is left beside it (section 3.4.2), or where the planner
// puts what the GPUs in use have no room for, whichever takes fewer GPUs. The
// planner also gives the bound, so it must plan for the current plan's model.
//
// The plan's ids, GPUs and places are those of the current plan for all that
// runs on; the same demand gives the same plan. Why says, by id, why an
// instance starts or stops.
func Incremental(current plan.Plan, in Input, o IncrementalOptions, planner Planner) (p plan.Plan, why map[string]string, err error) {
	o.tokens = current.Model == plan.ModelTokens
	var models []string
	for _, g := range current.GPUs {
		models = append(models, g.Model)
	}
	in = in.apart(models...)
	fresh, err := planner(in)
	if err != nil {
		return plan.Plan{}, nil, err
	}
	best := newRevision(current, in, o)
	best.shrink(current)
	best.raise()
	if best.short() {
		best.grow()
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
	return best.plan(current, fresh), best.why, nil
}

// short says whether any function is not served.
func (v *revision) short() bool {
	return slices.ContainsFunc(v.wanted, func(w want) bool { return len(w.rows) > 0 && w.missing() > 0 })
}

// betterThan prefers what serves more, then what takes fewer GPUs, then what
// starts less.
func (v *revision) betterThan(o *revision) bool {
	a, b := v.unserved(), o.unserved()
	switch {
	case a != b:
		return a < b
	case v.inUse() != o.inUse():
		return v.inUse() < o.inUse()
	}
	return len(v.why) < len(o.why)
}

// unserved is the part of each demand that is missing, summed.
func (v *revision) unserved() float64 {
	sum := 0.0
	for _, w := range v.wanted {
		sum += w.missing() / w.demand.RPS
	}
	return sum
}

func (v *revision) inUse() int {
	n := 0
	for _, h := range v.hosts {
		if used(h) {
			n++
		}
	}
	return n
}

// plan is the revision as a plan. The bound is that of a plan from nothing: what
// runs already does not lower what is needed at least.
func (v *revision) plan(current, fresh plan.Plan) plan.Plan {
	p := v.in.empty(fresh.Algorithm, current.Model, fresh.Bound, fresh.BoundMethod)
	for _, h := range v.hosts {
		if used(h) {
			p.GPUs = append(p.GPUs, v.gpu(h))
		}
	}
	p.GPUsUsed = len(p.GPUs)
	for i := range v.wanted {
		w := &v.wanted[i]
		account(&p, w, func() string { return v.reason(w) })
	}
	sameGap := func(x, y plan.Unplaced) bool { return x.Function == y.Function && x.RPS == y.RPS }
	if len(v.why) == 0 && slices.EqualFunc(p.Unplaced, current.Unplaced, sameGap) {
		p.Unplaced = current.Unplaced
	}
	return p
}

// gpu is one GPU of the plan.
func (v *revision) gpu(h *host) plan.GPU {
	g := gpuOf(h.device)
	slices.SortFunc(h.residents, func(x, y *resident) int { return cmp.Compare(h.order(x), h.order(y)) })
	for _, t := range h.residents {
		in := t.Instance
		in.X, in.Y = nil, nil
		for _, p := range t.parts {
			if p.on == h && h.space != nil {
				setCorner(&in, p.at)
			}
		}
		g.Instances = append(g.Instances, in)
	}
	sameID := func(x, y plan.Instance) bool { return x.ID == y.ID }
	if h.was != nil && slices.EqualFunc(g.Instances, h.was.Instances, sameID) {
		g.Models, g.Schedule = h.was.Models, h.was.Schedule
		return g
	}
	if v.shared && v.limited {
		g.Models = v.models(h)
	}
	if h.table != nil {
		turns := make([][]timetable.Turn, len(h.residents))
		for k, t := range h.residents {
			turns[k] = t.turnsOn(h)
		}
		g.Schedule = schedule(g.Instances, turns, true)
	}
	return g
}

// order is where an instance is in the list of its GPU: those that ran before
// as they were, then others as they came.
func (h *host) order(t *resident) int {
	if h.was != nil {
		if i := slices.IndexFunc(h.was.Instances, func(in plan.Instance) bool { return in.ID == t.ID }); i >= 0 {
			return i - len(h.was.Instances)
		}
	}
	return t.place
}

// models are the weights kept on a GPU, in the order of what needs them.
func (v *revision) models(h *host) []plan.Model {
	out := slices.Clone(h.fixed)
	for _, t := range h.residents {
		m := v.model[t.Function]
		if size := v.weightsOn(m, h.device); size > 0 && !slices.ContainsFunc(out, m.Is) {
			m.MemMiB = size.MiB()
			out = append(out, m)
		}
	}
	return out
}

// weightsOn returns what weights take on a device that keeps them: as the current plan has
// it for a GPU of that model, else the most that any configuration shares there.
func (v *revision) weightsOn(model plan.Model, d plan.Device) gpu.Bytes {
	if v.keepers[model] == 0 {
		return 0
	}
	if size, known := v.kept[weights{model, d.Model}]; known {
		return size
	}
	most := 0.0
	for _, w := range v.wanted {
		if v.model[w.demand.Function] == model {
			most = max(most, weightsOn(undominated(w.rows), d))
		}
	}
	return min(plan.Model{MemMiB: most}.Bytes(), v.keepers[model])
}

// reason says what keeps the rest of a function's demand from being placed.
func (v *revision) reason(w *want) string {
	if w.reason != "" {
		return w.reason
	}
	text := fmt.Sprintf("%s: none has room even for %s", full(len(v.hosts)), describe(w.smallest()))
	for _, h := range v.hosts {
		if slices.ContainsFunc(h.residents, func(t *resident) bool { return t.old }) {
			return text + " beside what stays where it is"
		}
	}
	return text
}

// newRevision is the GPUs there are, with those instances of the current plan
// that can stay. Of the others it says why they stop.
func newRevision(current plan.Plan, in Input, o IncrementalOptions) *revision {
	v := &revision{
		in: in, o: o, limited: in.limits(), shared: o.ShareModels, wanted: in.wants(), of: map[string]*want{},
		keepers: map[plan.Model]gpu.Bytes{}, kept: map[weights]gpu.Bytes{}, model: map[string]plan.Model{}, running: map[string][]*resident{}, why: map[string]string{},
		ids: ids{map[string]bool{}, map[string]int{}},
	}
	for i := range v.wanted {
		name := v.wanted[i].demand.Function
		v.of[name] = &v.wanted[i]
		v.model[name] = plan.WeightsOf(in.function(name))
	}
	for _, g := range current.GPUs {
		v.shared = v.shared || len(g.Models) > 0
		for _, in := range g.Instances {
			v.ids.taken[in.ID] = true
		}
	}
	v.share(current)
	v.openGPUs(current)
	for _, t := range v.residents(current) {
		v.keep(t)
	}
	return v
}

// share finds the size of each model's weights: as the current plan keeps them on GPUs of
// that GPU model, else the most that sharing saves any configuration. A configuration that
// would need more than the current plan keeps is none.
func (v *revision) share(current plan.Plan) {
	if !v.shared {
		return
	}
	for _, w := range v.wanted {
		for _, r := range undominated(w.rows) { // what planners choose among
			model := v.model[r.Function]
			v.keepers[model] = max(v.keepers[model], plan.Model{MemMiB: r.ModelMemMiB}.Bytes())
		}
	}
	listed := map[[2]any]string{}
	for _, d := range v.in.Devices {
		listed[[2]any{d.Node, d.Index}] = d.Model
	}
	most := map[plan.Model]gpu.Bytes{}
	var models []string
	for _, g := range current.GPUs {
		model := cmp.Or(listed[[2]any{g.Node, g.Index}], g.Model, v.in.Model)
		models = append(models, model)
		for _, m := range g.Copies(v.weightsOf) {
			size := m.Bytes()
			m.MemMiB = 0
			if v.keepers[m] > 0 {
				v.kept[weights{m, model}] = size
				most[m] = max(most[m], size)
			}
		}
	}
	slices.Sort(models)
	models = slices.Compact(models)
	for i := range v.wanted {
		w := &v.wanted[i]
		fitting := filter(w.rows, func(r profile.Row) bool { return v.keeps(r, models) })
		if len(fitting) == 0 && len(w.rows) > 0 {
			w.reason = fmt.Sprintf("the weights %s that the current plan keeps are smaller than those of every configuration", v.model[w.demand.Function].Name)
		}
		w.rows = fitting
		for _, r := range undominated(w.rows) {
			model := v.model[r.Function]
			most[model] = max(most[model], plan.Model{MemMiB: r.ModelMemMiB}.Bytes())
		}
	}
	for model := range v.keepers {
		v.keepers[model] = most[model]
	}
}

// weightsOf returns the model, without its size, of a function in the demand; of another,
// one that is no model's.
func (v *revision) weightsOf(function string) plan.Model { return v.model[function] }

// keeps reports whether the weights of a configuration are no larger than what the
// current plan keeps for them on the GPUs that it may run on, which are of these models.
func (v *revision) keeps(r profile.Row, models []string) bool {
	for _, model := range models {
		size, known := v.kept[weights{v.model[r.Function], model}]
		here := model == "" || r.GPU == "" || model == r.GPU
		if known && here && gpu.FromMiB(r.ModelMemMiB) > size {
			return false
		}
	}
	return true
}

// openGPUs opens the GPUs of the inventory, or without one those of the current
// plan.
func (v *revision) openGPUs(current plan.Plan) {
	was := map[[2]any]*plan.GPU{}
	for i := range current.GPUs {
		g := &current.GPUs[i]
		if _, twice := was[[2]any{g.Node, g.Index}]; twice {
			continue
		}
		was[[2]any{g.Node, g.Index}] = g
		if v.elastic() {
			v.open(plan.Device{Node: g.Node, Index: g.Index, MemMiB: v.in.MemMiB, Model: cmp.Or(g.Model, v.in.Model)})
			if g.Node == plan.DefaultNode {
				v.next = max(v.next, g.Index+1)
			}
		}
	}
	for _, d := range v.in.Devices {
		v.open(d)
	}
	for _, h := range v.hosts {
		if h.was = was[[2]any{h.device.Node, h.device.Index}]; h.was == nil {
			continue
		}
		for _, m := range h.was.Copies(v.weightsOf) {
			size := m.MemMiB
			m.MemMiB = 0
			if v.keepers[m] == 0 {
				m.MemMiB = size
				h.fixed = append(h.fixed, m)
				h.used += m.Bytes()
			}
		}
	}
}

// residents are the instances of the current plan, once each, with the parts they
// have. A part on a GPU that is gone has no host.
func (v *revision) residents(current plan.Plan) []*resident {
	at := map[[2]any]*host{}
	for _, h := range v.hosts {
		at[[2]any{h.device.Node, h.device.Index}] = h
	}
	byID := map[string]*resident{}
	var out []*resident
	for i := range current.GPUs {
		g := &current.GPUs[i]
		turns := scheduled(*g)
		for _, in := range g.Instances {
			t, known := byID[in.ID]
			if !known {
				v.came++
				t = &resident{Instance: in, old: true, place: v.came}
				byID[in.ID] = t
				out = append(out, t)
			}
			p := part{on: at[[2]any{g.Node, g.Index}], turns: turns[in.ID]}
			if in.X != nil && in.Y != nil {
				p.at = maxrect.Rect{X: share(*in.X), Y: share(*in.Y / 100), W: t.width(), H: t.height()}
			}
			t.parts = append(t.parts, p)
		}
	}
	return out
}

// keep leaves an instance of the current plan where it is, or says why it must
// stop.
func (v *revision) keep(t *resident) {
	if v.why[t.ID] = v.obstacle(t); v.why[t.ID] != "" {
		return
	}
	delete(v.why, t.ID)
	t.RPS = min(t.RPS, t.row.ThroughputRPS)
	v.occupy(t)
	v.running[t.Function] = append(v.running[t.Function], t)
	v.of[t.Function].served += t.RPS
}

// obstacle says why an instance cannot stay as it is, and finds its row and its
// memory if it can.
func (v *revision) obstacle(t *resident) string {
	w := v.of[t.Function]
	switch {
	case w == nil:
		return "the function is in the demand no more"
	case slices.ContainsFunc(t.parts, func(p part) bool { return p.on == nil }):
		return "a GPU it is on is in the inventory no more"
	case w.reason != "":
		return w.reason
	}
	if span, known := v.knownSpan(t.Function); known && span != len(t.parts) {
		return fmt.Sprintf("it is on %d GPUs, its function spans %d", len(t.parts), span)
	}
	found := slices.IndexFunc(w.rows, func(r profile.Row) bool { return v.runs(t, r) })
	if found < 0 {
		return v.mismatch(t, w)
	}
	t.row = w.rows[found]
	t.mem = 0
	if v.limited {
		t.mem = max(v.private(t.row), gpu.FromMiB(t.MemMiB))
	}
	if t.mem != gpu.FromMiB(t.MemMiB) {
		t.MemMiB = t.mem.MiB()
	}
	for _, p := range t.parts {
		if !v.hasMemory(p.on, t.Function, t.mem) {
			return "its GPU has not the memory for it"
		}
		if !v.vacant(t, p) {
			return "its place is not free"
		}
	}
	return ""
}

// mismatch says why no admissible row is the instance's.
func (v *revision) mismatch(t *resident, w *want) string {
	name := fmt.Sprintf("sm_pct %s, quota %s, batch %d", num(t.SMPct), num(t.QuotaRequest), t.Batch)
	for _, r := range v.in.Profile {
		if r.Function == t.Function && v.runs(t, r) && w.demand.SLOMS > 0 && r.P95MS > w.demand.SLOMS && !(v.in.Poisson && measured(r, w.demand.SLOMS)) {
			return fmt.Sprintf("p95_ms is %s at %s, expected at most %s", num(r.P95MS), name, num(w.demand.SLOMS))
		}
	}
	return name + " is no configuration of the profile that its GPU can host"
}

// runs says whether the instance runs as the row says, on its GPUs.
func (v *revision) runs(t *resident, r profile.Row) bool {
	if share(r.SMPct/100) != t.height() || share(r.Quota) != t.width() || r.Batch != t.Batch || t.QuotaLimit < t.QuotaRequest || t.QuotaLimit > 1 {
		return false
	}
	return !slices.ContainsFunc(t.parts, func(p part) bool { return !matches(r, p.on.device) })
}

// vacant says whether a part of the current plan is within its GPU and nobody
// else's.
func (v *revision) vacant(t *resident, p part) bool {
	if p.on.table != nil {
		time := int64(0)
		for _, turn := range p.turns {
			time += turn.To - turn.From
		}
		// Each turn may have lost a billionth when it was written.
		taken := time >= t.width()-int64(len(p.turns)) && p.on.table.Take(p.turns, t.height())
		if taken {
			p.on.table.Give(p.turns, t.height())
		}
		return taken
	}
	whole := maxrect.Rect{W: one, H: one}
	return whole.Contains(p.at) && p.at.W > 0 && p.at.H > 0 &&
		!slices.ContainsFunc(p.on.space.Used(), p.at.Meets) && !slices.ContainsFunc(t.parts, func(o part) bool { return o.on == p.on && o.at != p.at })
}
