package place

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gfaas/gfaas/pkg/profile"
)

// move spends up to that many moves of running instances: first on serving what
// has no room, then on freeing GPUs, fewest moves first. A move stops an
// instance and starts one alike elsewhere; what was only about to start goes
// elsewhere for nothing.
func (v *revision) move(budget int) {
	v.relist()
	for budget > 0 && v.short() {
		if !v.makeRoom() {
			break
		}
		budget--
	}
	v.freeGPUs(budget)
}

// relist lists the free rectangles of all GPUs anew.
func (v *revision) relist() {
	for _, h := range v.hosts {
		if h.space != nil {
			h.space.Restructure()
		}
		h.released = false
	}
}

// makeRoom moves one running instance so that one more can start that a
// function lacks.
func (v *revision) makeRoom() bool {
	for i := range v.wanted {
		w := &v.wanted[i]
		if len(w.rows) == 0 || w.missing() == 0 || v.span(w.demand.Function) > 1 {
			continue
		}
		for _, row := range efficient(w.rows, v.o.TieBreak) {
			for _, h := range v.hosts {
				if matches(row, h.device) && v.makeRoomOn(h, w, row) {
					return true
				}
			}
		}
	}
	return false
}

// makeRoomOn starts an instance of the row on the GPU in place of one that runs
// there and finds room elsewhere, the smallest first.
func (v *revision) makeRoomOn(h *host, w *want, row profile.Row) bool {
	movable := slices.Clone(h.residents)
	movable = slices.DeleteFunc(movable, func(t *resident) bool { return len(t.parts) > 1 })
	slices.SortStableFunc(movable, func(x, y *resident) int { return cmp.Compare(x.area(), y.area()) })
	for _, t := range movable {
		v.remove(t)
		at, _, ok := v.fit(h, row)
		if ok {
			in := &resident{Instance: t.Instance, row: row, mem: v.private(row), parts: []part{at}}
			in.Function, in.SMPct, in.QuotaRequest = row.Function, row.SMPct, row.Quota
			v.occupy(in)
			parts, found := v.bestFit(t.row, 1, anywhere)
			v.remove(in)
			if found {
				v.add(w, row, []part{at}, w.lacks())
				v.relocate(t, parts)
				return true
			}
		}
		v.occupy(t)
	}
	return false
}

// remove removes an instance and lists the free rectangles of its GPUs anew.
func (v *revision) remove(t *resident) {
	v.vacate(t)
	for _, p := range t.parts {
		if p.on.space != nil {
			p.on.space.Restructure()
		}
		p.on.released = false
	}
}

// relocate puts an instance that was taken at other parts; one that ran is
// stopped, and one alike starts there.
func (v *revision) relocate(t *resident, parts []part) {
	if !t.old {
		t.parts = parts
		v.occupy(t)
		return
	}
	w := v.of[t.Function]
	v.running[t.Function] = slices.DeleteFunc(v.running[t.Function], func(o *resident) bool { return o == t })
	w.served -= t.RPS
	from := t.parts[0].on.device
	in := v.add(w, t.row, parts, fmt.Sprintf("in place of %s on %s/%d", t.ID, from.Node, from.Index))
	to := parts[0].on.device
	v.why[t.ID] = fmt.Sprintf("makes room: %s on %s/%d takes its place", in.ID, to.Node, to.Index)
}

// freeGPUs empties GPUs, those that take the fewest moves first, as long as there
// are moves left. One that cannot be emptied cannot be later: what is free
// elsewhere only shrinks.
func (v *revision) freeGPUs(budget int) {
	type candidate struct {
		h     *host
		moves int
	}
	var all []candidate
	for _, h := range v.hosts {
		c := candidate{h: h}
		for _, t := range h.residents {
			if t.old {
				c.moves++
			}
		}
		if used(h) && !slices.ContainsFunc(h.residents, func(t *resident) bool { return len(t.parts) > 1 }) {
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

// emptyHost moves all instances of a GPU to others in use, largest first, or
// changes nothing.
func (v *revision) emptyHost(h *host) bool {
	going := slices.Clone(h.residents)
	slices.SortStableFunc(going, func(x, y *resident) int { return cmp.Compare(y.area(), x.area()) })
	var trial []*resident
	ok := true
	for _, t := range going {
		parts, found := v.bestFit(t.row, 1, func(o *host) bool { return o != h && used(o) })
		if ok = found; !ok {
			break
		}
		copied := &resident{Instance: t.Instance, row: t.row, mem: v.private(t.row), parts: parts}
		v.occupy(copied)
		trial = append(trial, copied)
	}
	for _, t := range trial {
		v.remove(t)
	}
	if !ok {
		return false
	}
	for i, t := range going {
		v.remove(t)
		v.relocate(t, trial[i].parts)
	}
	return true
}
