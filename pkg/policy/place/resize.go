package place

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/profile"
)

// shrink stops what functions have too many of (section 3.4.1, scaling down).
// Of instances alike those on the least used GPUs go first, so that these become
// free, and the youngest of them. Nothing stops of a function that asks for no
// less than it did.
func (v *revision) shrink(current plan.Plan) {
	was := map[string]float64{}
	for _, d := range current.Demand {
		was[d.Function] = d.RPS
	}
	for i := range v.wanted {
		w := &v.wanted[i]
		name := w.demand.Function
		if before, known := was[name]; known && w.demand.RPS >= before || w.served <= w.demand.RPS {
			continue
		}
		byID := map[string]*resident{}
		var queue []Running
		for _, t := range v.running[name] {
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
			v.stop(w, byID[r.ID], fmt.Sprintf("%s asks for %s requests a second, less than is served", name, num(w.demand.RPS)))
		}
	}
}

// neighbours is the area in use on the instance's GPUs.
func (t *resident) neighbours() int64 {
	sum := int64(0)
	for _, p := range t.parts {
		sum += p.on.load()
	}
	return sum
}

// stop takes an instance away.
func (v *revision) stop(w *want, t *resident, why string) {
	v.vacate(t)
	v.running[t.Function] = slices.DeleteFunc(v.running[t.Function], func(o *resident) bool { return o == t })
	w.served -= t.RPS
	v.why[t.ID] = why
	if !t.old {
		delete(v.why, t.ID)
	}
}

// raise counts on all that running instances sustain where a function needs it.
func (v *revision) raise() {
	for i := range v.wanted {
		w := &v.wanted[i]
		for _, t := range v.running[w.demand.Function] {
			if w.missing() > 0 && t.RPS < t.row.ThroughputRPS {
				w.served += t.row.ThroughputRPS - t.RPS
				t.RPS = t.row.ThroughputRPS
			}
		}
	}
}

// grow starts what functions lack: as heuristic scaling chooses it, largest
// first, and where there is no room for that, whatever configurations fit.
func (v *revision) grow() { v.growOn(false) }

// growOn grows on all GPUs or only on those in use.
func (v *revision) growOn(onlyUsed bool) {
	for _, c := range ordered(choose(v.wanted, v.o.TieBreak), v.o.order) {
		for n := 0; n < c.group.Count && c.want.missing() > 0 && v.start(c.want, c.group.Row, onlyUsed, c.want.lacks()); n++ {
		}
	}
	v.fallBack(onlyUsed)
}

// growBy starts what functions lack on the GPUs in use as long as there is room,
// and has the planner plan the rest on the others.
func (v *revision) growBy(planner Planner) error {
	v.growOn(true)
	rest := v.in
	rest.Demand, rest.Devices = nil, nil
	for i := range v.wanted {
		if w := &v.wanted[i]; len(w.rows) > 0 && w.missing() > 0 {
			d := w.demand
			d.RPS = w.missing()
			rest.Demand = append(rest.Demand, d)
		}
	}
	if len(rest.Demand) == 0 {
		return nil
	}
	if !v.elastic() {
		rest.Devices = []plan.Device{}
		for _, h := range v.hosts {
			if unused(h) {
				rest.Devices = append(rest.Devices, h.device)
			}
		}
	}
	p, err := planner(rest)
	if err != nil {
		return err
	}
	v.adopt(p)
	return nil
}

// lacks says why more of a function starts.
func (w *want) lacks() string {
	return fmt.Sprintf("%s asks for %s requests a second, more than is served", w.demand.Function, num(w.demand.RPS))
}

// fallBack fills what room there is with functions' configurations, most
// efficient first, until they are served.
func (v *revision) fallBack(onlyUsed bool) {
	for i := range v.wanted {
		w := &v.wanted[i]
		if w.missing() == 0 {
			continue
		}
		for _, row := range efficient(w.rows, v.o.TieBreak) {
			for w.missing() > 0 && v.start(w, row, onlyUsed, w.lacks()) {
			}
		}
	}
}

// adopt adds the instances of a plan for the GPUs that are not in use.
func (v *revision) adopt(p plan.Plan) {
	at := map[[2]any]*host{}
	for _, h := range v.hosts {
		at[[2]any{h.device.Node, h.device.Index}] = h
	}
	var order []plan.Instance
	parts := map[string][]part{}
	for _, g := range p.GPUs {
		h := at[[2]any{g.Node, g.Index}]
		if v.elastic() {
			h = v.hostFor(g)
		}
		turns := scheduled(g)
		for _, in := range g.Instances {
			if parts[in.ID] == nil {
				order = append(order, in)
			}
			place := part{on: h, turns: turns[in.ID]}
			if in.X != nil && in.Y != nil {
				place.at = rectOf(in)
			}
			parts[in.ID] = append(parts[in.ID], place)
		}
	}
	for _, in := range order {
		w := v.of[in.Function]
		i := slices.IndexFunc(w.rows, func(r profile.Row) bool {
			return r.SMPct == in.SMPct && r.Quota == in.QuotaRequest && r.Batch == in.Batch && v.canHost(r, parts[in.ID])
		})
		if i >= 0 && len(parts[in.ID]) == v.span(in.Function) {
			v.add(w, w.rows[i], parts[in.ID], w.lacks())
		}
	}
}

// hostFor is a GPU for one of a plan that takes as many as it needs: one that
// is there and not in use, unless its instances must have their GPUs on one
// node.
func (v *revision) hostFor(g plan.GPU) *host {
	alone := !slices.ContainsFunc(g.Instances, func(in plan.Instance) bool { return v.span(in.Function) > 1 })
	if i := slices.IndexFunc(v.hosts, func(h *host) bool { return unused(h) && !h.given }); i >= 0 && alone {
		v.hosts[i].given = true
		return v.hosts[i]
	}
	h := v.addGPU()
	h.given = true
	return h
}

// canHost says whether GPUs are of the row's model and have the memory for it.
func (v *revision) canHost(r profile.Row, parts []part) bool {
	return !slices.ContainsFunc(parts, func(p part) bool {
		return !matches(r, p.on.device) || !v.hasMemory(p.on, r.Function, v.private(r))
	})
}
