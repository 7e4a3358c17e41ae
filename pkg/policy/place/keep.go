package place

import (
	"fmt"
	"slices"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
	"github.com/gfaas/gfaas/pkg/policy/place/timetable"
	"github.com/gfaas/gfaas/pkg/profile"
)

// newSite is the GPUs there are, with those instances of the current plan that
// can stay. Of the others it says why they stop.
func newSite(current plan.Plan, in Input, o IncrementalOptions) *site {
	s := &site{
		in: in, o: o, limited: in.limits(), shared: o.ShareModels, wanted: in.wants(), of: map[string]*want{},
		keepers: map[string]gpu.Bytes{}, model: map[string]string{}, running: map[string][]*tenant{}, why: map[string]string{},
		ids: ids{map[string]bool{}, map[string]int{}},
	}
	for i := range s.wanted {
		name := s.wanted[i].demand.Function
		s.of[name] = &s.wanted[i]
		s.model[name] = in.function(name).Model.Name
	}
	for _, g := range current.GPUs {
		s.shared = s.shared || len(g.Models) > 0
		for _, in := range g.Instances {
			s.ids.taken[in.ID] = true
		}
	}
	s.share(current)
	s.openAll(current)
	for _, t := range s.tenants(current) {
		s.keep(t)
	}
	return s
}

// share finds the size of each model's weights: as the current plan keeps them,
// else the most that sharing saves any configuration. A configuration that
// would need more is none.
func (s *site) share(current plan.Plan) {
	if !s.shared {
		return
	}
	for _, w := range s.wanted {
		for _, r := range undominated(w.rows) { // what planners choose among
			model := s.model[r.Function]
			s.keepers[model] = max(s.keepers[model], gpu.FromMiB(r.ModelMemMiB))
		}
	}
	for _, g := range current.GPUs {
		for _, m := range g.Models {
			if s.keepers[m.Name] > 0 {
				s.keepers[m.Name] = gpu.FromMiB(m.MemMiB)
			}
		}
	}
	for i := range s.wanted {
		w := &s.wanted[i]
		w.rows = filter(w.rows, func(r profile.Row) bool { return gpu.FromMiB(r.ModelMemMiB) <= s.keepers[s.model[r.Function]] })
	}
}

// openAll opens the GPUs of the inventory, or without one those of the current
// plan.
func (s *site) openAll(current plan.Plan) {
	was := map[[2]any]*plan.GPU{}
	for i := range current.GPUs {
		g := &current.GPUs[i]
		if _, twice := was[[2]any{g.Node, g.Index}]; twice {
			continue
		}
		was[[2]any{g.Node, g.Index}] = g
		if s.elastic() {
			s.open(plan.Device{Node: g.Node, Index: g.Index, MemMiB: s.in.MemMiB})
			if g.Node == "node0" {
				s.next = max(s.next, g.Index+1)
			}
		}
	}
	for _, d := range s.in.Devices {
		s.open(d)
	}
	for _, b := range s.berths {
		if b.was = was[[2]any{b.device.Node, b.device.Index}]; b.was == nil {
			continue
		}
		for _, m := range b.was.Models {
			if s.keepers[m.Name] == 0 {
				b.fixed = append(b.fixed, m)
				b.used += gpu.FromMiB(m.MemMiB)
			}
		}
	}
}

// tenants are the instances of the current plan, once each, with the spots they
// have. A spot on a GPU that is gone has no berth.
func (s *site) tenants(current plan.Plan) []*tenant {
	at := map[[2]any]*berth{}
	for _, b := range s.berths {
		at[[2]any{b.device.Node, b.device.Index}] = b
	}
	byID := map[string]*tenant{}
	var out []*tenant
	for i := range current.GPUs {
		g := &current.GPUs[i]
		turns := scheduled(*g)
		for _, in := range g.Instances {
			t, known := byID[in.ID]
			if !known {
				s.came++
				t = &tenant{Instance: in, old: true, place: s.came}
				byID[in.ID] = t
				out = append(out, t)
			}
			p := spot{on: at[[2]any{g.Node, g.Index}], turns: turns[in.ID]}
			if in.X != nil && in.Y != nil {
				p.at = maxrect.Rect{X: share(*in.X), Y: share(*in.Y / 100), W: t.w(), H: t.h()}
			}
			t.spots = append(t.spots, p)
		}
	}
	return out
}

// scheduled are the turns of a GPU's instances, by id.
func scheduled(g plan.GPU) map[string][]timetable.Turn {
	out := map[string][]timetable.Turn{}
	at := 0.0
	for _, entry := range g.Schedule {
		from, to := share(at), share(at+entry.Duration)
		at += entry.Duration
		for _, id := range entry.Instances {
			if from < to {
				out[id] = append(out[id], timetable.Turn{From: from, To: to})
			}
		}
	}
	return out
}

// keep leaves an instance of the current plan where it is, or says why it must
// stop.
func (s *site) keep(t *tenant) {
	if s.why[t.ID] = s.obstacle(t); s.why[t.ID] != "" {
		return
	}
	delete(s.why, t.ID)
	t.RPS = min(t.RPS, t.row.ThroughputRPS)
	s.settle(t)
	s.running[t.Function] = append(s.running[t.Function], t)
	s.of[t.Function].served += t.RPS
}

// obstacle says why an instance cannot stay as it is, and finds its row and its
// memory if it can.
func (s *site) obstacle(t *tenant) string {
	w := s.of[t.Function]
	switch {
	case w == nil:
		return "the function is in the demand no more"
	case slices.ContainsFunc(t.spots, func(p spot) bool { return p.on == nil }):
		return "a GPU it is on is in the inventory no more"
	case w.reason != "":
		return w.reason
	}
	if span, known := s.stated(t.Function); known && span != len(t.spots) {
		return fmt.Sprintf("it is on %d GPUs, its function spans %d", len(t.spots), span)
	}
	found := slices.IndexFunc(w.rows, func(r profile.Row) bool { return s.runs(t, r) })
	if found < 0 {
		return s.unfit(t, w)
	}
	t.row = w.rows[found]
	t.mem = 0
	if s.limited {
		t.mem = max(s.private(t.row), gpu.FromMiB(t.MemMiB))
	}
	if t.mem != gpu.FromMiB(t.MemMiB) {
		t.MemMiB = t.mem.MiB()
	}
	for _, p := range t.spots {
		if !s.remembers(p.on, t.Function, t.mem) {
			return "its GPU has not the memory for it"
		}
		if !s.vacant(t, p) {
			return "its place is not free"
		}
	}
	return ""
}

// unfit says why no admissible row is the instance's.
func (s *site) unfit(t *tenant, w *want) string {
	name := fmt.Sprintf("sm_pct %s, quota %s, batch %d", num(t.SMPct), num(t.QuotaRequest), t.Batch)
	for _, r := range s.in.Profile {
		if r.Function == t.Function && s.runs(t, r) && w.demand.SLOMS > 0 && r.P95MS > w.demand.SLOMS {
			return fmt.Sprintf("p95_ms is %s at %s, expected at most %s", num(r.P95MS), name, num(w.demand.SLOMS))
		}
	}
	return name + " is no configuration of the profile that its GPU can host"
}

// runs says whether the instance runs as the row says, on its GPUs.
func (s *site) runs(t *tenant, r profile.Row) bool {
	if share(r.SMPct/100) != t.h() || share(r.Quota) != t.w() || r.Batch != t.Batch || t.QuotaLimit < t.QuotaRequest || t.QuotaLimit > 1 {
		return false
	}
	return !slices.ContainsFunc(t.spots, func(p spot) bool { return !matches(r, p.on.device) })
}

// vacant says whether a spot of the current plan is within its GPU and nobody
// else's.
func (s *site) vacant(t *tenant, p spot) bool {
	if p.on.line != nil {
		time := int64(0)
		for _, turn := range p.turns {
			time += turn.To - turn.From
		}
		// Each turn may have lost a billionth when it was written.
		taken := time >= t.w()-int64(len(p.turns)) && p.on.line.Take(p.turns, t.h())
		if taken {
			p.on.line.Give(p.turns, t.h())
		}
		return taken
	}
	whole := maxrect.Rect{W: one, H: one}
	return whole.Contains(p.at) && p.at.W > 0 && p.at.H > 0 &&
		!slices.ContainsFunc(p.on.space.Used(), p.at.Meets) && !slices.ContainsFunc(t.spots, func(o spot) bool { return o.on == p.on && o.at != p.at })
}
