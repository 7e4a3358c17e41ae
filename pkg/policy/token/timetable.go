package token

import (
	"cmp"
	"slices"
	"time"
)

// timetable holds the times of the current window at which turns begin and end.
type timetable struct {
	*ledger
	moments []moment // in order; empty if no instance has turns
}

// moment is a time in each window at which a turn begins or ends. If a client continues after the
// end of its turn, its SMs are lent to it from then on.
type moment struct {
	at     time.Duration // time from the window's start
	owners []*instance   // instances with a turn that begins or continues at this time, by ID
}

// rebuild computes the timetable of the current window.
func (s *timetable) rebuild() {
	s.moments = nil
	if s.paperOrder {
		for _, i := range s.instances {
			i.turns = nil
		}
		return
	}
	s.shiftTurns()
	for _, i := range s.instances {
		for _, t := range i.turns {
			s.moments = append(s.moments, moment{at: t.from})
			if t.to < s.window {
				s.moments = append(s.moments, moment{at: t.to})
			}
		}
	}
	slices.SortFunc(s.moments, func(a, b moment) int { return cmp.Compare(a.at, b.at) })
	s.moments = slices.CompactFunc(s.moments, func(a, b moment) bool { return a.at == b.at })
	for n, m := range s.moments {
		for _, i := range s.instances {
			if i.hasTurn(m.at) {
				s.moments[n].owners = append(s.moments[n].owners, i)
			}
		}
	}
}

// nextTurn returns the start of the instance's next turn in this window. ok is false if there is
// no further turn.
func (s *timetable) nextTurn(i *instance) (at time.Duration, ok bool) {
	for _, t := range i.turns {
		if at = s.start + t.from; at > s.now {
			return at, true
		}
	}
	return 0, false
}

// nextConflict returns the next moment, up to the window's end, at which a turn needs SMs that the
// client would still hold, and the owner of that turn. The owner is nil if there is no such moment.
func (s *timetable) nextConflict(c *client) (at time.Duration, owner *instance) {
	for _, m := range s.moments {
		if at = s.start + m.at; at > s.now {
			if owner = s.displaced(c, m, at); owner != nil {
				return at, owner
			}
		}
	}
	if len(s.moments) == 0 || s.moments[0].at > 0 {
		return 0, nil
	}
	at = s.start + s.window
	return at, s.displaced(c, s.moments[0], at)
}

// displaced returns an owner of a turn at moment m to which the client would leave too few SMs, or
// nil. Idle owners count, because they may want their turn. But if the client would have to be
// revoked now because of them, only active owners count.
func (s *timetable) displaced(c *client, m moment, at time.Duration) (owner *instance) {
	sum := 0.0
	for _, h := range s.running {
		if h != c && h.end > at {
			h.inst.laterLeases++
			sum += h.inst.slice.SMPct
		}
	}
	ownTurn := false
	revokedNow := at-s.drainTimeBefore(c, at)-s.now < s.minLease(c.inst)
	for _, o := range m.owners {
		switch {
		case o.laterLeases > 0 || o.clientCount == 0 || revokedNow && o.activeClients == 0 || at < s.start+s.window && !s.missesRequest(o, 0):
		case o == c.inst:
			ownTurn = true
		default:
			sum += o.slice.SMPct
			owner = o
		}
	}
	for _, h := range s.running {
		h.inst.laterLeases = 0
	}
	if ownTurn || s.fits(sum, c) {
		return nil
	}
	return owner
}

// drainTimeBefore returns how long before the given time the client's lease is revoked, so that it has
// drained by then. A client that is about to start its turn keeps at least half of the remaining
// time.
func (s *timetable) drainTimeBefore(c *client, at time.Duration) time.Duration {
	if c.inst.claimant == c && c.state == Waiting {
		return min(c.drain, (at-s.now)/2)
	}
	return c.drain
}

// shiftTurns computes this window's turns from the planned ones. If one turn directly follows another, a
// client that drains late takes time from the next turn, and a full GPU has no other time to make
// up for it. So the boundary between the two turns moves towards the instance with less credit, for
// all turns that begin or end then. A boundary never moves past another boundary: turns that were
// apart stay apart.
func (s *timetable) shiftTurns() {
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
			i.turns = append(i.turns, span{last, s.window}) // the next window's first turn, early
		}
	}
}

// bounds returns the times at which planned turns begin or end, in order. It omits the window's
// start and includes its end.
func (s *timetable) bounds() []time.Duration {
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

// imbalance returns a quarter of the difference between the largest credit of the instances whose
// planned turns end at the given time and the largest credit of those whose turns begin.
func (s *timetable) imbalance(at time.Duration) time.Duration {
	var ending, beginning time.Duration // largest credits
	ends, begins := false, false
	for _, i := range s.instances {
		for _, t := range i.planned {
			if t.to == at {
				ends, ending = true, max(ending, i.credit)
			}
			if t.from == at || t.from == 0 && at == s.window {
				begins, beginning = true, max(beginning, i.credit)
			}
		}
	}
	if !ends || !begins {
		return 0
	}
	return (ending - beginning) / 4
}
