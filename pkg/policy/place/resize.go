package place

import (
	"cmp"
	"slices"

	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/reason"
)

// shrink stops instances that functions no longer need (section 3.4.1, scaling down). Among
// equally efficient instances, it stops those on the least used GPUs first, so that these become
// free, and then the youngest. It stops no instance of a function whose demand has not decreased.
func (v *revision) shrink(current plan.Plan) {
	was := map[string]float64{}
	for _, d := range current.Demand {
		was[d.Function] = d.RPS
	}
	for i := range v.demands {
		w := &v.demands[i]
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
		// Rounding errors in the demand must not keep an instance.
		for _, r := range ScaleDown(queue, w.served-w.demand.RPS+roundingTolerance*w.demand.RPS) {
			v.stop(w, byID[r.ID], reason.New(lessDemand, reason.Number("rps", w.demand.RPS)))
		}
	}
}

// neighbours returns the area in use on the instance's GPUs.
func (t *resident) neighbours() int64 {
	sum := int64(0)
	for _, p := range t.locations {
		sum += p.host.load()
	}
	return sum
}

// stop removes an instance and records why.
func (v *revision) stop(w *functionDemand, t *resident, why reason.Reason) {
	v.gpus.vacate(t)
	v.running[t.Function] = slices.DeleteFunc(v.running[t.Function], func(o *resident) bool { return o == t })
	w.served -= t.RPS
	v.reasons[t.ID] = why
	if !t.running {
		delete(v.reasons, t.ID)
	}
}

// raise counts the full throughput of running instances if a function needs it.
func (v *revision) raise() {
	for i := range v.demands {
		w := &v.demands[i]
		for _, t := range v.running[w.demand.Function] {
			if w.missing() > 0 && t.RPS < t.row.ThroughputRPS {
				w.served += t.row.ThroughputRPS - t.RPS
				t.RPS = t.row.ThroughputRPS
			}
		}
	}
}

// grow starts missing instances. It starts the configurations that heuristic scaling chooses, in the order
// of packing, and then any that fit. It uses all GPUs, or only those in use.
func (v *revision) grow(onlyUsed bool) {
	for _, c := range ordered(choose(v.demands, v.o.TieBreak), v.o.order) {
		for n := 0; n < c.group.Count && c.demand.missing() > 0 && v.start(c.demand, c.group.Row, onlyUsed, c.demand.startReason()); n++ {
		}
	}
	for i := range v.demands {
		w := &v.demands[i]
		w.fallBack(v.o.TieBreak, func(row profile.Row) bool { return v.start(w, row, onlyUsed, w.startReason()) })
	}
}

// growBy starts missing instances on the GPUs in use while there is room. The planner then plans
// the rest on the other GPUs.
func (v *revision) growBy(planner Planner) error {
	v.grow(true)
	remaining := v.in
	remaining.Demand, remaining.Devices = nil, nil
	for i := range v.demands {
		if w := &v.demands[i]; len(w.rows) > 0 && w.missing() > 0 {
			d := w.demand
			d.RPS = w.missing()
			remaining.Demand = append(remaining.Demand, d)
		}
	}
	if len(remaining.Demand) == 0 {
		return nil
	}
	if !v.gpus.elastic() {
		remaining.Devices = []plan.Device{}
		for _, h := range v.gpus.hosts {
			if unused(h) {
				remaining.Devices = append(remaining.Devices, h.device)
			}
		}
	}
	p, err := planner(remaining)
	if err != nil {
		return err
	}
	v.adopt(p)
	return nil
}

// startReason returns why more instances of a function start.
func (w *functionDemand) startReason() reason.Reason {
	return reason.New(moreDemand, reason.Number("rps", w.demand.RPS))
}

// adopt adds the instances of a plan for the GPUs that are not in use.
func (v *revision) adopt(p plan.Plan) {
	hosts := v.gpus.byName()
	var order []plan.Instance
	locations := map[string][]location{}
	for _, g := range p.GPUs {
		h := hosts[g.Name()]
		if v.gpus.elastic() {
			h = v.gpus.hostFor(!slices.ContainsFunc(g.Instances, func(in plan.Instance) bool { return v.span(in.Function) > 1 }))
		}
		turns := scheduled(g)
		for _, in := range g.Instances {
			if locations[in.ID] == nil {
				order = append(order, in)
			}
			locations[in.ID] = append(locations[in.ID], locationOf(in, h, turns))
		}
	}
	for _, in := range order {
		w := v.of[in.Function]
		i := slices.IndexFunc(w.rows, func(r profile.Row) bool {
			return r.SMPct == in.SMPct && r.Quota == in.QuotaRequest && r.Batch == in.Batch && v.gpus.canHost(r, locations[in.ID])
		})
		if i >= 0 && len(locations[in.ID]) == v.span(in.Function) {
			v.add(w, w.rows[i], locations[in.ID], w.startReason())
		}
	}
}

// start places one more instance of the row and reports whether there was room.
func (v *revision) start(w *functionDemand, row profile.Row, onlyUsed bool, why reason.Reason) bool {
	locations, ok := v.gpus.roomFor(row, v.span(w.demand.Function), onlyUsed)
	if !ok {
		return false
	}
	v.add(w, row, locations, why)
	return true
}

// add adds a new instance at these locations.
func (v *revision) add(w *functionDemand, row profile.Row, locations []location, why reason.Reason) *resident {
	in := newInstance(v.ids.next(row.Function), row, v.gpus.limited)
	if v.gpus.limited && v.gpus.weights.shared {
		in.MemMiB = max(0, in.MemMiB-row.ModelMemMiB)
	}
	v.gpus.count++
	t := &resident{Instance: in, row: row, mem: v.gpus.weights.private(row), locations: locations, arrival: v.gpus.count}
	v.gpus.occupy(t)
	v.running[row.Function] = append(v.running[row.Function], t)
	v.reasons[t.ID] = why
	w.served += row.ThroughputRPS
	return t
}

// span returns the number of GPUs of an instance of the function: as the function has it or, if
// nothing is known of the function, as running instances have it.
func (v *revision) span(function string) int {
	if fn, known := v.in.function(function); known {
		return fn.GPUs
	}
	for _, t := range v.running[function] {
		return len(t.locations)
	}
	return 1
}
