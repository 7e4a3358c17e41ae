package place

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gfaas/gfaas/pkg/plan"
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
	fresh, err := planner(in)
	if err != nil {
		return plan.Plan{}, nil, err
	}
	best := newSite(current, in, o)
	best.shrink(current)
	best.raise()
	if best.short() {
		best.grow()
		other := newSite(current, in, o)
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
func (s *site) short() bool {
	return slices.ContainsFunc(s.wanted, func(w want) bool { return len(w.rows) > 0 && w.missing() > 0 })
}

// betterThan prefers what serves more, then what takes fewer GPUs, then what
// starts less.
func (s *site) betterThan(o *site) bool {
	a, b := s.unserved(), o.unserved()
	switch {
	case a != b:
		return a < b
	case s.inUse() != o.inUse():
		return s.inUse() < o.inUse()
	}
	return len(s.why) < len(o.why)
}

// unserved is the part of each demand that is missing, summed.
func (s *site) unserved() float64 {
	sum := 0.0
	for _, w := range s.wanted {
		sum += w.missing() / w.demand.RPS
	}
	return sum
}

func (s *site) inUse() int {
	n := 0
	for _, b := range s.berths {
		if used(b) {
			n++
		}
	}
	return n
}

// plan is the site as a plan. The bound is that of a plan from nothing: what
// runs already does not lower what is needed at least.
func (s *site) plan(current, fresh plan.Plan) plan.Plan {
	p := plan.Plan{
		Version: plan.Version, Algorithm: fresh.Algorithm, Model: current.Model, Bound: fresh.Bound, BoundMethod: fresh.BoundMethod,
		GPUs: []plan.GPU{}, Demand: []plan.Served{}, Unplaced: []plan.Unplaced{},
	}
	for _, b := range s.berths {
		if used(b) {
			p.GPUs = append(p.GPUs, s.gpu(b))
		}
	}
	p.GPUsUsed = len(p.GPUs)
	for i := range s.wanted {
		w := &s.wanted[i]
		account(&p, w, func() string { return s.reason(w) })
	}
	sameGap := func(x, y plan.Unplaced) bool { return x.Function == y.Function && x.RPS == y.RPS }
	if len(s.why) == 0 && slices.EqualFunc(p.Unplaced, current.Unplaced, sameGap) {
		p.Unplaced = current.Unplaced
	}
	return p
}

// gpu is one GPU of the plan.
func (s *site) gpu(b *berth) plan.GPU {
	g := plan.GPU{Node: b.device.Node, Index: b.device.Index, MemMiB: b.device.MemMiB}
	slices.SortFunc(b.tenants, func(x, y *tenant) int { return cmp.Compare(b.order(x), b.order(y)) })
	for _, t := range b.tenants {
		in := t.Instance
		in.X, in.Y = nil, nil
		for _, p := range t.spots {
			if p.on == b && b.space != nil {
				x, y := float64(p.at.X)/one, float64(p.at.Y)/(one/100)
				in.X, in.Y = &x, &y
			}
		}
		g.Instances = append(g.Instances, in)
	}
	sameID := func(x, y plan.Instance) bool { return x.ID == y.ID }
	if b.was != nil && slices.EqualFunc(g.Instances, b.was.Instances, sameID) {
		g.Models, g.Schedule = b.was.Models, b.was.Schedule
		return g
	}
	if s.shared && s.limited {
		g.Models = s.models(b)
	}
	if b.line != nil {
		g.Schedule = b.schedule()
	}
	return g
}

// order is where an instance is in the list of its GPU: those that ran before
// as they were, then others as they came.
func (b *berth) order(t *tenant) int {
	if b.was != nil {
		if i := slices.IndexFunc(b.was.Instances, func(in plan.Instance) bool { return in.ID == t.ID }); i >= 0 {
			return i - len(b.was.Instances)
		}
	}
	return t.place
}

// models are the weights kept on a GPU, in the order of what needs them.
func (s *site) models(b *berth) []plan.Model {
	out := slices.Clone(b.fixed)
	for _, t := range b.tenants {
		name := s.model[t.Function]
		named := func(m plan.Model) bool { return m.Name == name }
		if size := s.keepers[name]; size > 0 && !slices.ContainsFunc(out, named) {
			out = append(out, plan.Model{Name: name, MemMiB: size.MiB()})
		}
	}
	return out
}

// schedule is the timetable in which every instance has its turns.
func (b *berth) schedule() []plan.Interval {
	var edges []int64
	for _, t := range b.tenants {
		for _, turn := range t.turnsOn(b) {
			edges = append(edges, turn.From, turn.To)
		}
	}
	slices.Sort(edges)
	edges = slices.Compact(edges)
	var out []plan.Interval
	for i, to := range edges {
		if i == 0 {
			continue
		}
		entry := plan.Interval{Duration: float64(to-edges[i-1]) / one, Instances: []string{}}
		for _, t := range b.tenants {
			for _, turn := range t.turnsOn(b) {
				if turn.From <= edges[i-1] && to <= turn.To {
					entry.Instances = append(entry.Instances, t.ID)
				}
			}
		}
		// A moment without instances keeps the turns after it where they are.
		out = append(out, entry)
	}
	if len(edges) > 0 && edges[0] > 0 {
		out = slices.Insert(out, 0, plan.Interval{Duration: float64(edges[0]) / one, Instances: []string{}})
	}
	return out
}

// reason says what keeps the rest of a function's demand from being placed.
func (s *site) reason(w *want) string {
	if w.reason != "" {
		return w.reason
	}
	gpus := fmt.Sprintf("the %d GPUs are full", len(s.berths))
	if len(s.berths) == 1 {
		gpus = "the GPU is full"
	}
	least := slices.MinFunc(w.rows, func(a, b profile.Row) int {
		if c := cmp.Compare(area(a), area(b)); c != 0 {
			return c
		}
		return byMemory(a, b)
	})
	text := fmt.Sprintf("%s: none has room even for %s", gpus, describe(least))
	for _, b := range s.berths {
		if slices.ContainsFunc(b.tenants, func(t *tenant) bool { return t.old }) {
			return text + " beside what stays where it is"
		}
	}
	return text
}
