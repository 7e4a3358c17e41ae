package token

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// patience is how many windows a client waits at most before it comes even
// before turns.
const patience = 10

// span is a part of each window, as time from the window's start.
type span struct{ from, to time.Duration }

// spans are the turns in a window of that length. Turns that meet are one.
func spans(turns []gpu.Turn, window time.Duration) []span {
	at := func(fraction float64) time.Duration {
		return time.Duration(math.Round(min(max(fraction, 0), 1) * float64(window)))
	}
	var out []span
	for _, t := range turns {
		s := span{at(t.From), at(t.To)}
		if n := len(out); n > 0 && s.from <= out[n-1].to {
			out[n-1].to = max(out[n-1].to, s.to)
		} else if s.from < s.to {
			out = append(out, s)
		}
	}
	return out
}

// hasTurn says whether that time of the window is the instance's own.
func (i *instance) hasTurn(offset time.Duration) bool {
	return slices.ContainsFunc(i.turns, func(t span) bool { return t.from <= offset && offset < t.to })
}

// moment is a time in each window at which a turn begins or ends. Who goes on
// after the end of its turn is lent its SMs from then on.
type moment struct {
	at     time.Duration // from the window's start
	owners []*instance   // all that then have a turn, by id
}

// makeTimetable makes the timetable of the window.
func (s *multiToken) makeTimetable() {
	s.timetable = nil
	s.shift()
	for _, i := range s.instances {
		for _, t := range i.turns {
			s.timetable = append(s.timetable, moment{at: t.from})
			if t.to < s.window {
				s.timetable = append(s.timetable, moment{at: t.to})
			}
		}
	}
	slices.SortFunc(s.timetable, func(a, b moment) int { return cmp.Compare(a.at, b.at) })
	s.timetable = slices.CompactFunc(s.timetable, func(a, b moment) bool { return a.at == b.at })
	for n, m := range s.timetable {
		for _, i := range s.instances {
			if i.hasTurn(m.at) {
				s.timetable[n].owners = append(s.timetable[n].owners, i)
			}
		}
	}
}

// nextTurn is when the instance's next turn in this window begins.
func (s *multiToken) nextTurn(i *instance) (at time.Duration, ok bool) {
	for _, t := range i.turns {
		if at = s.start + t.from; at > s.now {
			return at, true
		}
	}
	return 0, false
}

// byTurns puts those that claim their turns first, and before them those that
// have waited beyond patience. If the claims do not fit beside what is held,
// those that hold what is lent are decided about too, before others who wait: they
// make room for claims, and not for who would be lent the same.
func (s *multiToken) byTurns(queue []*client, occupied float64) []*client {
	s.claim(queue)
	claimed := 0.0
	for _, c := range queue {
		if c.state == Waiting && c.inst.claimant == c {
			claimed += c.inst.slice.SMPct
		}
	}
	if claimed > 0 && occupied+claimed > s.smLimit+smEps {
		for _, c := range s.running {
			if c.end > s.now && c.inst.claimant != c && !c.urgent {
				queue = append(queue, c)
			}
		}
		slices.SortFunc(queue, s.order)
	}
	slices.SortStableFunc(queue, func(a, b *client) int { return cmp.Compare(s.rank(a), s.rank(b)) })
	return queue
}

func (s *multiToken) rank(c *client) int {
	switch {
	case s.outOfPatience(c):
		return 0
	case c.inst.claimant == c:
		return 1
	case c.state == Running && c.end > s.now:
		return 2
	}
	return 3
}

// claim finds, for each instance in its turn that misses part of its request,
// the one client that has the turn: who runs, else the first in order.
func (s *multiToken) claim(queue []*client) {
	claim := func(c *client) {
		if c.inst.claimant == nil && c.inst.hasTurn(s.now-s.start) && s.misses(c.inst, s.drainTime(c)) {
			c.inst.claimant = c
		}
	}
	for _, c := range s.running {
		if c.end > s.now {
			claim(c)
		}
	}
	for _, c := range queue {
		claim(c)
	}
}

// drainTime is how long the client will go on if it is asked back now.
func (s *multiToken) drainTime(c *client) time.Duration {
	if c.state == Running && c.end <= s.now {
		return c.drain
	}
	return 0
}

// misses says whether the instance, when it has used so much more, still misses
// part of its request that is worth a switch.
func (s *multiToken) misses(i *instance, more time.Duration) bool {
	return i.guaranteed()-more >= s.worthwhile(i)
}

// outOfPatience says whether a client waits with budget for so long that it comes
// before turns.
func (s *multiToken) outOfPatience(c *client) bool {
	return c.state == Waiting && s.now-max(c.since, c.broke) >= patience*s.window
}

// turnAhead is the first moment ahead, up to the window's end, at which a turn
// needs SMs that the client would then hold, and whose turn that is.
func (s *multiToken) turnAhead(c *client) (at time.Duration, owner *instance) {
	for _, m := range s.timetable {
		if at = s.start + m.at; at > s.now {
			if owner = s.displaced(c, m, at); owner != nil {
				return at, owner
			}
		}
	}
	if len(s.timetable) == 0 || s.timetable[0].at > 0 {
		return 0, nil
	}
	at = s.start + s.window
	return at, s.displaced(c, s.timetable[0], at)
}

// displaced is an owner whose turn holds from that moment on and to which the
// client would leave too few SMs, if there is one. Owners that are idle count,
// since they may come; but once the client would have to be asked back now on
// their account, only those that want the GPU do.
func (s *multiToken) displaced(c *client, m moment, at time.Duration) (owner *instance) {
	sum := 0.0
	for _, h := range s.running {
		if h != c && h.end > at {
			h.inst.later++
			sum += h.inst.slice.SMPct
		}
	}
	mine := false
	soon := at-s.allowance(c, at)-s.now < s.worthwhile(c.inst)
	for _, o := range m.owners {
		switch {
		case o.later > 0 || o.known == 0 || soon && o.active == 0 || at < s.start+s.window && !s.misses(o, 0):
		case o == c.inst:
			mine = true
		default:
			sum += o.slice.SMPct
			owner = o
		}
	}
	for _, h := range s.running {
		h.inst.later = 0
	}
	if mine || s.fits(sum, c) {
		return nil
	}
	return owner
}

// allowance is how long before that time the client is asked back, so that it
// has drained by then. Who is about to begin its turn has at least half of what
// is left.
func (s *multiToken) allowance(c *client, at time.Duration) time.Duration {
	if c.inst.claimant == c && c.state == Waiting {
		return min(c.drain, (at-s.now)/2)
	}
	return c.drain
}

// shift makes this window's turns of those that are planned. Where one turn
// follows another, a client that drains late takes time from the next turn, and
// on a full GPU there is none elsewhere to make up for it. So the time at which
// one ends and the next begins is shifted towards the one with less credit, for
// all turns that begin or end then, and never past another such time: turns that
// were apart stay apart.
func (s *multiToken) shift() {
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

// bounds are the times at which planned turns begin or end, in order, without
// the window's start and with its end.
func (s *multiToken) bounds() []time.Duration {
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
func (s *multiToken) imbalance(at time.Duration) time.Duration {
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
