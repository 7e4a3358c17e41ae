package place

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
	"github.com/gfaas/gfaas/pkg/profile"
)

// shrink stops what functions have too many of (section 3.4.1, scaling down).
// Of instances alike those on the least used GPUs go first, so that these
// become free, and the youngest of them. Nothing stops of a
// function that asks for no less than it did.
func (s *site) shrink(current plan.Plan) {
	was := map[string]float64{}
	for _, d := range current.Demand {
		was[d.Function] = d.RPS
	}
	for i := range s.wanted {
		w := &s.wanted[i]
		name := w.demand.Function
		if before, known := was[name]; known && w.demand.RPS >= before || w.served <= w.demand.RPS {
			continue
		}
		byID := map[string]*tenant{}
		var queue []Running
		for _, t := range s.running[name] {
			row := t.row
			row.ThroughputRPS = t.RPS
			byID[t.ID] = t
			queue = append(queue, Running{t.ID, row})
		}
		slices.Reverse(queue)
		slices.SortStableFunc(queue, func(a, b Running) int {
			return cmp.Compare(byID[a.ID].neighbours(), byID[b.ID].neighbours())
		})
		// What rounding leaves of the demand must not keep an instance.
		for _, r := range ScaleDown(queue, w.served-w.demand.RPS+served*w.demand.RPS) {
			s.stop(w, byID[r.ID], fmt.Sprintf("%s asks for %s requests a second, less than is served", name, num(w.demand.RPS)))
		}
	}
}

// neighbours is the area in use on the instance's GPUs.
func (t *tenant) neighbours() int64 {
	sum := int64(0)
	for _, p := range t.spots {
		for _, o := range p.on.tenants {
			sum += o.w() * (o.h() / 1000) // in units that do not overflow
		}
	}
	return sum
}

// stop takes an instance away.
func (s *site) stop(w *want, t *tenant, why string) {
	s.leave(t)
	s.running[t.Function] = slices.DeleteFunc(s.running[t.Function], func(o *tenant) bool { return o == t })
	w.served -= t.RPS
	s.why[t.ID] = why
	if !t.old {
		delete(s.why, t.ID)
	}
}

// raise counts on all that running instances sustain where a function needs it.
func (s *site) raise() {
	for i := range s.wanted {
		w := &s.wanted[i]
		for _, t := range s.running[w.demand.Function] {
			if w.missing() > 0 && t.RPS < t.row.ThroughputRPS {
				w.served += t.row.ThroughputRPS - t.RPS
				t.RPS = t.row.ThroughputRPS
			}
		}
	}
}

// grow starts what functions lack: as heuristic scaling chooses it, largest
// first, and where there is no room for that, whatever configurations fit.
func (s *site) grow() {
	for _, c := range s.chosen() {
		for n := 0; n < c.group.Count && c.want.missing() > 0 && s.start(c.want, c.group.Row, false, c.want.lack()); n++ {
		}
	}
	s.fallBack(false)
}

// growBy starts what functions lack on the GPUs in use as long as there is room,
// and has the planner plan the rest on the others.
func (s *site) growBy(planner Planner) error {
	for _, c := range s.chosen() {
		for n := 0; n < c.group.Count && c.want.missing() > 0 && s.start(c.want, c.group.Row, true, c.want.lack()); n++ {
		}
	}
	s.fallBack(true)
	rest := Input{Profile: s.in.Profile, MemMiB: s.in.MemMiB, Functions: s.in.Functions}
	for i := range s.wanted {
		if w := &s.wanted[i]; len(w.rows) > 0 && w.missing() > 0 {
			d := w.demand
			d.RPS = w.missing()
			rest.Demand = append(rest.Demand, d)
		}
	}
	if len(rest.Demand) == 0 {
		return nil
	}
	if !s.elastic() {
		rest.Devices = []plan.Device{}
		for _, b := range s.berths {
			if unused(b) {
				rest.Devices = append(rest.Devices, b.device)
			}
		}
	}
	p, err := planner(rest)
	if err != nil {
		return err
	}
	s.adopt(p)
	return nil
}

// lack is why more of a function starts.
func (w *want) lack() string {
	return fmt.Sprintf("%s asks for %s requests a second, more than is served", w.demand.Function, num(w.demand.RPS))
}

// chosen is what heuristic scaling starts of every function, largest first
// unless they come by their arrival.
func (s *site) chosen() []choice {
	var out []choice
	for i := range s.wanted {
		w := &s.wanted[i]
		if w.missing() == 0 {
			continue
		}
		for _, g := range ScaleUp(w.rows, w.missing(), s.o.TieBreak) {
			out = append(out, choice{w, g})
		}
	}
	if s.o.order != Arrival {
		slices.SortStableFunc(out, func(a, b choice) int { return cmp.Compare(area(b.group.Row), area(a.group.Row)) })
	}
	return out
}

// fallBack fills what room there is with functions' configurations, most
// efficient first, until they are served.
func (s *site) fallBack(onlyUsed bool) {
	for i := range s.wanted {
		w := &s.wanted[i]
		if w.missing() == 0 {
			continue
		}
		for _, row := range w.efficient(s.o.TieBreak) {
			for w.missing() > 0 && s.start(w, row, onlyUsed, w.lack()) {
			}
		}
	}
}

// efficient are the rows, most efficient first.
func (w *want) efficient(tie TieBreak) []profile.Row {
	rows := slices.Clone(w.rows)
	slices.SortStableFunc(rows, func(a, b profile.Row) int {
		if c := cmp.Compare(b.Efficacy(), a.Efficacy()); c != 0 {
			return c
		}
		if tie.prefers(a, b) {
			return -1
		}
		return 1
	})
	return rows
}

// adopt adds the instances of a plan for the GPUs that are not in use.
func (s *site) adopt(p plan.Plan) {
	at := map[[2]any]*berth{}
	for _, b := range s.berths {
		at[[2]any{b.device.Node, b.device.Index}] = b
	}
	var order []plan.Instance
	spots := map[string][]spot{}
	for _, g := range p.GPUs {
		b := at[[2]any{g.Node, g.Index}]
		if s.elastic() {
			b = s.another(g)
		}
		turns := scheduled(g)
		for _, in := range g.Instances {
			if spots[in.ID] == nil {
				order = append(order, in)
			}
			place := spot{on: b, turns: turns[in.ID]}
			if in.X != nil && in.Y != nil {
				place.at = maxrect.Rect{X: share(*in.X), Y: share(*in.Y / 100), W: share(in.QuotaRequest), H: share(in.SMPct / 100)}
			}
			spots[in.ID] = append(spots[in.ID], place)
		}
	}
	for _, in := range order {
		w := s.of[in.Function]
		i := slices.IndexFunc(w.rows, func(r profile.Row) bool {
			return r.SMPct == in.SMPct && r.Quota == in.QuotaRequest && r.Batch == in.Batch && s.hosts(r, spots[in.ID])
		})
		if i >= 0 && len(spots[in.ID]) == s.span(in.Function) {
			s.enter(w, w.rows[i], spots[in.ID], w.lack())
		}
	}
}

// another is a GPU for one of a plan that takes as many as it needs: one that
// is there and not in use, unless its instances must have their GPUs on one
// node.
func (s *site) another(g plan.GPU) *berth {
	alone := !slices.ContainsFunc(g.Instances, func(in plan.Instance) bool { return s.span(in.Function) > 1 })
	if i := slices.IndexFunc(s.berths, func(b *berth) bool { return unused(b) && !b.given }); i >= 0 && alone {
		s.berths[i].given = true
		return s.berths[i]
	}
	b := s.come()
	b.given = true
	return b
}

// hosts says whether GPUs are of the row's model and have the memory for it.
func (s *site) hosts(r profile.Row, spots []spot) bool {
	return !slices.ContainsFunc(spots, func(p spot) bool {
		return !matches(r, p.on.device) || !s.remembers(p.on, r.Function, s.private(r))
	})
}
