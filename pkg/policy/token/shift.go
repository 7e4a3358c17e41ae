package token

import (
	"slices"
	"time"
)

// shift makes this window's turns of those that are planned. Where one turn
// follows another, whoever drains late takes from the next, and on a full GPU
// the next has nowhere to get it back. So the time between two turns is shifted
// towards the one with less credit, for all turns that begin or end then, and
// never past another such time: turns that were apart stay apart.
func (s *Scheduler) shift() {
	bounds := s.bounds()
	shifted := map[time.Duration]time.Duration{0: 0}
	for n, at := range bounds {
		room := at
		if n > 0 {
			room = at - bounds[n-1]
		}
		if n+1 < len(bounds) {
			room = min(room, bounds[n+1]-at)
		}
		room = min(room/4, s.window/20)
		shifted[at] = at + min(max(s.imbalance(at), -room), room)
	}
	last := min(shifted[s.window], s.window)
	shifted[s.window] = last
	for _, i := range s.instances {
		i.turns = i.turns[:0]
		for _, t := range i.planned {
			i.turns = append(i.turns, span{shifted[t.from], shifted[t.to]})
		}
		switch n := len(i.turns); {
		case n == 0 || i.planned[0].from > 0 || last == s.window:
		case i.turns[n-1].to == last:
			i.turns[n-1].to = s.window
		default:
			i.turns = append(i.turns, span{last, s.window}) // the next window's, early
		}
	}
}

// bounds are the times at which planned turns begin or end, without the
// window's start and with its end.
func (s *Scheduler) bounds() []time.Duration {
	bounds := []time.Duration{s.window}
	for _, i := range s.instances {
		for _, t := range i.planned {
			bounds = append(bounds, t.from, t.to)
		}
	}
	slices.Sort(bounds)
	bounds = slices.Compact(bounds)
	if bounds[0] == 0 {
		return bounds[1:]
	}
	return bounds
}

// imbalance is a quarter of what those whose planned turns end then are owed more
// than those whose begin.
func (s *Scheduler) imbalance(at time.Duration) time.Duration {
	var before, after time.Duration
	ends, begins := false, false
	for _, i := range s.instances {
		for _, t := range i.planned {
			if t.to == at {
				ends, before = true, max(before, i.credit)
			}
			if t.from == at || t.from == 0 && at == s.window {
				begins, after = true, max(after, i.credit)
			}
		}
	}
	if !ends || !begins {
		return 0
	}
	return (before - after) / 4
}
