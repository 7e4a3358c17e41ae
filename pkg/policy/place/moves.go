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
func (s *site) move(budget int) {
	s.relist()
	for budget > 0 && s.short() {
		if !s.makeRoom() {
			break
		}
		budget--
	}
	s.free(budget)
}

// relist lists the free rectangles of all GPUs anew.
func (s *site) relist() {
	for _, b := range s.berths {
		if b.space != nil {
			b.space.Restructure()
		}
		b.released = false
	}
}

// makeRoom moves one running instance so that one more can start that a
// function lacks.
func (s *site) makeRoom() bool {
	for i := range s.wanted {
		w := &s.wanted[i]
		if len(w.rows) == 0 || w.missing() == 0 || s.span(w.demand.Function) > 1 {
			continue
		}
		for _, row := range w.efficient(s.o.TieBreak) {
			for _, b := range s.berths {
				if matches(row, b.device) && s.makeRoomOn(b, w, row) {
					return true
				}
			}
		}
	}
	return false
}

// makeRoomOn starts an instance of the row on the GPU in place of one that runs
// there and finds room elsewhere, the smallest first.
func (s *site) makeRoomOn(b *berth, w *want, row profile.Row) bool {
	movable := slices.Clone(b.tenants)
	movable = slices.DeleteFunc(movable, func(t *tenant) bool { return len(t.spots) > 1 })
	slices.SortStableFunc(movable, func(x, y *tenant) int { return cmp.Compare(x.w()*(x.h()/1000), y.w()*(y.h()/1000)) })
	for _, t := range movable {
		s.take(t)
		at, _, ok := s.find(b, row)
		if ok {
			in := &tenant{Instance: t.Instance, row: row, mem: s.private(row), spots: []spot{at}}
			in.Function, in.SMPct, in.QuotaRequest = row.Function, row.SMPct, row.Quota
			s.settle(in)
			spots, found := s.put(t.row, 1, anywhere)
			s.take(in)
			if found {
				s.enter(w, row, []spot{at}, w.lack())
				s.resettle(t, spots)
				return true
			}
		}
		s.settle(t)
	}
	return false
}

// take removes an instance and lists the free rectangles of its GPUs anew.
func (s *site) take(t *tenant) {
	s.leave(t)
	for _, p := range t.spots {
		if p.on.space != nil {
			p.on.space.Restructure()
		}
		p.on.released = false
	}
}

// resettle puts an instance that was taken at other spots; one that ran is
// stopped, and one alike starts there.
func (s *site) resettle(t *tenant, spots []spot) {
	if !t.old {
		t.spots = spots
		s.settle(t)
		return
	}
	w := s.of[t.Function]
	s.running[t.Function] = slices.DeleteFunc(s.running[t.Function], func(o *tenant) bool { return o == t })
	w.served -= t.RPS
	from := t.spots[0].on.device
	in := s.enter(w, t.row, spots, fmt.Sprintf("in place of %s on %s/%d", t.ID, from.Node, from.Index))
	to := spots[0].on.device
	s.why[t.ID] = fmt.Sprintf("makes room: %s on %s/%d takes its place", in.ID, to.Node, to.Index)
}

// free empties GPUs, those that take the fewest moves first, as long as there
// are moves left. One that cannot be emptied cannot be later: what is free
// elsewhere only shrinks.
func (s *site) free(budget int) {
	type candidate struct {
		b     *berth
		moves int
	}
	var all []candidate
	for _, b := range s.berths {
		c := candidate{b: b}
		for _, t := range b.tenants {
			if t.old {
				c.moves++
			}
		}
		if used(b) && !slices.ContainsFunc(b.tenants, func(t *tenant) bool { return len(t.spots) > 1 }) {
			all = append(all, c)
		}
	}
	slices.SortStableFunc(all, func(x, y candidate) int {
		return cmp.Or(cmp.Compare(x.moves, y.moves), cmp.Compare(x.b.load(), y.b.load()))
	})
	for _, c := range all {
		if c.moves <= budget && s.empty(c.b) {
			budget -= c.moves
		}
	}
}

// load is the area in use on the GPU.
func (b *berth) load() int64 {
	sum := int64(0)
	for _, t := range b.tenants {
		sum += t.w() * (t.h() / 1000)
	}
	return sum
}

// empty moves all instances of a GPU to others in use, largest first, or
// changes nothing.
func (s *site) empty(b *berth) bool {
	going := slices.Clone(b.tenants)
	slices.SortStableFunc(going, func(x, y *tenant) int { return cmp.Compare(y.w()*(y.h()/1000), x.w()*(x.h()/1000)) })
	var trial []*tenant
	ok := true
	for _, t := range going {
		spots, found := s.put(t.row, 1, func(o *berth) bool { return o != b && used(o) })
		if ok = found; !ok {
			break
		}
		copied := &tenant{Instance: t.Instance, row: t.row, mem: s.private(t.row), spots: spots}
		s.settle(copied)
		trial = append(trial, copied)
	}
	for _, t := range trial {
		s.take(t)
	}
	if !ok {
		return false
	}
	for i, t := range going {
		s.take(t)
		s.resettle(t, trial[i].spots)
	}
	return true
}
