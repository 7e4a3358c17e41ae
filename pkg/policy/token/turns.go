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

// moment is a time in each window at which a turn begins, or ends, so that who
// had it borrows from then on.
type moment struct {
	at     time.Duration // from the window's start
	owners []*instance   // all that then have a turn, by id
}

// tabulate makes the timetable of the window.
func (s *Scheduler) tabulate() {
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
func (s *Scheduler) nextTurn(i *instance) (at time.Duration, ok bool) {
	for _, t := range i.turns {
		if at = s.start + t.from; at > s.now {
			return at, true
		}
	}
	return 0, false
}

// byTurns puts who claims its turn first, those without patience left before
// it. If a claim needs SMs that are lent, who borrows them is decided about
// too.
func (s *Scheduler) byTurns(queue []*client, occupied float64) []*client {
	s.claim(queue)
	for _, c := range queue {
		if c.state == Waiting && c.inst.owner == c {
			occupied += c.inst.slice.SMPct
		}
	}
	if occupied > s.smLimit+smEps {
		for _, c := range s.running {
			if c.end > s.now && c.inst.owner != c && !c.urgent {
				queue = append(queue, c)
			}
		}
		slices.SortFunc(queue, s.order)
	}
	slices.SortStableFunc(queue, func(a, b *client) int { return cmp.Compare(s.rank(a), s.rank(b)) })
	return queue
}

func (s *Scheduler) rank(c *client) int {
	switch {
	case s.pressing(c):
		return 0
	case c.inst.owner == c:
		return 1
	}
	return 2
}

// claim finds, for each instance in its turn that misses part of its request,
// the one client that has the turn: who runs, else the first in order.
func (s *Scheduler) claim(queue []*client) {
	claim := func(c *client) {
		if c.inst.owner == nil && c.inst.hasTurn(s.now-s.start) && s.misses(c.inst, s.leaving(c)) {
			c.inst.owner = c
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

// leaving is how long the client will go on if it is asked back now.
func (s *Scheduler) leaving(c *client) time.Duration {
	if c.state == Running && c.end <= s.now {
		return c.drain
	}
	return 0
}

// misses says whether the instance misses part of its request, so much more
// used, that is worth a switch.
func (s *Scheduler) misses(i *instance, more time.Duration) bool {
	return i.guaranteed()-more >= s.worthwhile(i)
}

// pressing says whether a client waits with budget for so long that it comes
// before turns.
func (s *Scheduler) pressing(c *client) bool {
	return c.state == Waiting && s.now-max(c.since, c.dry) >= patience*s.window
}

// turnAhead is the first moment ahead, up to the window's end, at which a turn
// needs SMs that the client would then hold, and whose turn that is.
func (s *Scheduler) turnAhead(c *client) (at time.Duration, owner *instance) {
	for _, m := range s.timetable {
		if at = s.start + m.at; at > s.now {
			if owner = s.taker(c, m, at); owner != nil {
				return at, owner
			}
		}
	}
	if len(s.timetable) == 0 || s.timetable[0].at > 0 {
		return 0, nil
	}
	at = s.start + s.window
	return at, s.taker(c, s.timetable[0], at)
}

// taker is an owner whose turn holds from then on and that the client would
// leave too few SMs, if there is one. It counts owners that might come, but
// once the client would have to leave now only those that are there.
func (s *Scheduler) taker(c *client, m moment, at time.Duration) (taker *instance) {
	sum := 0.0
	for _, h := range s.running {
		if h != c && h.end > at {
			h.inst.beyond++
			sum += h.inst.slice.SMPct
		}
	}
	mine := false
	soon := at-s.allowance(c, at)-s.now < s.worthwhile(c.inst)
	for _, o := range m.owners {
		switch {
		case o.beyond > 0 || o.known == 0 || soon && o.active == 0 || at < s.start+s.window && !s.misses(o, 0):
		case o == c.inst:
			mine = true
		default:
			sum += o.slice.SMPct
			taker = o
		}
	}
	for _, h := range s.running {
		h.inst.beyond = 0
	}
	if mine || s.fits(sum, c) {
		return nil
	}
	return taker
}

// allowance is how long before that time the client is asked back, so that it
// has drained by then. Who is about to begin its turn has at least half of what
// is left.
func (s *Scheduler) allowance(c *client, at time.Duration) time.Duration {
	if c.inst.owner == c && c.state == Waiting {
		return min(c.drain, (at-s.now)/2)
	}
	return c.drain
}
