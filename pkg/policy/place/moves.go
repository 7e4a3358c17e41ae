package place

import (
	"cmp"
	"slices"

	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/reason"
)

// move moves at most budget running instances: first to serve missing demand, then to free GPUs,
// fewest moves first. A move stops an instance and starts an equal one elsewhere. Moving an
// instance that has not started costs nothing.
func (v *revision) move(budget int) {
	v.gpus.relist()
	for budget > 0 && unmet(v.demands) {
		if !v.makeRoom() {
			break
		}
		budget--
	}
	v.freeGPUs(budget)
}

// makeRoom moves one running instance so that an instance with missing demand fits. It reports
// whether it did.
func (v *revision) makeRoom() bool {
	for i := range v.demands {
		w := &v.demands[i]
		if len(w.rows) == 0 || w.missing() == 0 || v.span(w.demand.Function) > 1 {
			continue
		}
		for _, row := range efficient(w.rows, v.o.TieBreak) {
			for _, h := range v.gpus.hosts {
				if matches(row, h.device) && v.makeRoomOn(h, w, row) {
					return true
				}
			}
		}
	}
	return false
}

// makeRoomOn starts an instance of the row on the GPU in place of another that fits elsewhere, the
// smallest first. It reports whether there was such an instance.
func (v *revision) makeRoomOn(h *host, w *functionDemand, row profile.Row) bool {
	movable := slices.Clone(h.residents)
	movable = slices.DeleteFunc(movable, func(t *resident) bool { return len(t.locations) > 1 })
	slices.SortStableFunc(movable, func(x, y *resident) int { return cmp.Compare(x.area(), y.area()) })
	for _, t := range movable {
		v.gpus.remove(t)
		at, _, ok := v.gpus.fit(h, row)
		if ok {
			in := &resident{Instance: t.Instance, row: row, mem: v.gpus.weights.private(row), locations: []location{at}}
			in.Function, in.SMPct, in.QuotaRequest = row.Function, row.SMPct, row.Quota
			v.gpus.occupy(in)
			locations, found := v.gpus.bestFit(t.row, 1, anywhere)
			v.gpus.remove(in)
			if found {
				v.add(w, row, []location{at}, w.startReason())
				v.relocate(t, locations)
				return true
			}
		}
		v.gpus.occupy(t)
	}
	return false
}

// relocate places a removed instance at other locations. If it is running, it stops, and an equal
// instance starts there.
func (v *revision) relocate(t *resident, locations []location) {
	if !t.running {
		t.locations = locations
		v.gpus.occupy(t)
		return
	}
	w := v.of[t.Function]
	v.running[t.Function] = slices.DeleteFunc(v.running[t.Function], func(o *resident) bool { return o == t })
	w.served -= t.RPS
	from := t.locations[0].host.device
	in := v.add(w, t.row, locations, reason.New(movedFrom, reason.Text("instance", t.ID), reason.Text("gpu", from.Name().String())))
	to := locations[0].host.device
	v.reasons[t.ID] = reason.New(movedTo, reason.Text("instance", in.ID), reason.Text("gpu", to.Name().String()))
}

// freeGPUs empties GPUs while budget remains, fewest moves first. It tries each GPU once, because
// free space on other GPUs only shrinks.
func (v *revision) freeGPUs(budget int) {
	type candidate struct {
		h     *host
		moves int
	}
	var all []candidate
	for _, h := range v.gpus.hosts {
		c := candidate{h: h}
		for _, t := range h.residents {
			if t.running {
				c.moves++
			}
		}
		if used(h) && !slices.ContainsFunc(h.residents, func(t *resident) bool { return len(t.locations) > 1 }) {
			all = append(all, c)
		}
	}
	slices.SortStableFunc(all, func(x, y candidate) int {
		return cmp.Or(cmp.Compare(x.moves, y.moves), cmp.Compare(x.h.load(), y.h.load()))
	})
	for _, c := range all {
		if c.moves <= budget && v.emptyHost(c.h) {
			budget -= c.moves
		}
	}
}

// emptyHost moves all instances of a GPU to other GPUs in use, the largest first. It reports
// whether all fit; otherwise, it changes nothing.
func (v *revision) emptyHost(h *host) bool {
	moving := slices.Clone(h.residents)
	slices.SortStableFunc(moving, func(x, y *resident) int { return cmp.Compare(y.area(), x.area()) })
	var trial []*resident
	ok := true
	for _, t := range moving {
		locations, found := v.gpus.bestFit(t.row, 1, func(o *host) bool { return o != h && used(o) })
		if ok = found; !ok {
			break
		}
		copied := &resident{Instance: t.Instance, row: t.row, mem: v.gpus.weights.private(t.row), locations: locations}
		v.gpus.occupy(copied)
		trial = append(trial, copied)
	}
	for _, t := range trial {
		v.gpus.remove(t)
	}
	if !ok {
		return false
	}
	for i, t := range moving {
		v.gpus.remove(t)
		v.relocate(t, trial[i].locations)
	}
	return true
}
