package token

import (
	"math"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

const (
	shortest = 8   // a turn is at least this part of a round
	smooth   = 50  // rounds lose at most 2% of the time by hand-overs
	coarse   = 100 // and where that takes more than twice as long as a round should, towards 1%
)

// rounds says whether leases end with turns of a round: a timetable has its own.
func (s *multiToken) rounds() bool { return s.round > 0 && len(s.timetable) == 0 }

// wants has an instance that did not want the GPU rank with the one that was
// served least of those that did, and not before it: what it left to them
// while it was idle it has not missed.
func (s *multiToken) wants(i *instance) {
	if !s.rounds() || s.known <= s.smLimit+smEps {
		return // all fit beside each other
	}
	s.tally()
	least := -1.0
	for _, o := range s.instances {
		if o == i && o.active > 0 {
			return
		}
		if o.active > 0 && (least < 0 || o.served() < least) {
			least = o.served()
		}
	}
	if behind := least - i.served(); behind > 0 {
		i.lift += time.Duration(behind * float64(i.request))
	}
}

// served is what part of its request the instance has had in this window, less what it
// is owed from before.
func (i *instance) served() float64 {
	return float64(i.request-i.guaranteed()+i.lift) / float64(max(i.request, 1))
}

// passedOn learns what passing the GPU on has lost: the mean, since on a busy host
// the few that take long are what is lost.
func (s *multiToken) passedOn(lost time.Duration) {
	s.handovers = min(s.handovers+1, 64)
	s.handover += (min(lost, gpu.Round) - s.handover) / s.handovers
}

// timed learns when to grant, from how long the GPU had nothing to do in a lease that
// came before the end of another's work, or two had work in flight: by small steps,
// since a host that pauses says nothing of the next time, and nothing from what no lead
// would make up for: the client had nothing to launch yet.
func (s *multiToken) timed(idle time.Duration) {
	if idle > soon-s.lead {
		return
	}
	s.lead = min(max(s.lead+min(max(idle, -leastLead), leastLead)/8, leastLead), soon)
}

const (
	firstLead = gpu.Round / 64
	leastLead = gpu.Round / 320 // about as exactly as the end of what is in flight is known

	soon      = gpu.Round / 16 // what is in flight counts as over when it is by then
	mistrust  = 16             // leases that a client's word does not count for once it was wrong,
	mistrusts = 1024           // and at most when it is again and again
)

// ending notes when what a client has in flight is over, if that is soon.
func (s *multiToken) ending(c *client, ev Ending) {
	if c.state == Draining && ev.Lease == c.lease && c.due == 0 && c.doubt == 0 && ev.Left <= soon {
		c.due = s.now + max(ev.Left, 0)
	}
}

// judge has a client's word count for nothing for a while if it was wrong: it goes on
// beside the next one longer than it said.
func (c *client) judge(now time.Duration) {
	switch {
	case c.due == 0:
		c.doubt = max(c.doubt-1, 0)
	case now-c.due > soon:
		c.penalty = min(max(2*c.penalty, mistrust), mistrusts)
		c.doubt = c.penalty
	default:
		c.penalty /= 2
	}
}

// inFlight is how long what is in flight goes on of those whose SMs the client gets.
func (s *multiToken) inFlight(c *client) time.Duration {
	occupied, left := 0.0, time.Duration(0)
	for _, o := range s.clients {
		if o != c && o.holds() {
			occupied += o.inst.slice.SMPct
			left = max(left, o.due-s.now)
		}
	}
	if s.fits(occupied, c) {
		return 0
	}
	return left
}

// idle is for how long the GPU had nothing to do, for all that is known, in a lease
// that is given back: but for what others did in it, before its work and after. Less
// than 0 is for how long two had work in flight, which both have measured.
func (s *multiToken) idle(c *client, used time.Duration) time.Duration {
	idle := s.now - c.since - used - c.behind
	if after := s.now - c.due; c.due > 0 && after > 0 && after <= soon {
		idle -= after
	}
	return idle
}

// turnLength is how long a client of the instance goes on while others wait: its
// part of a round, which its processes share.
func (s *multiToken) turnLength(i *instance) time.Duration {
	if !s.rounds() {
		return s.window
	}
	turn := scale(s.roundLength(), i.request, max(s.window, s.requests))
	return max(turn/time.Duration(max(1, i.active)), s.round/shortest)
}

// roundLength is how long a round takes now, of which a window has a whole number:
// longer where passing the GPU on costs so much that too much of it were lost, but not
// for who seldom asks.
func (s *multiToken) roundLength() time.Duration {
	if s.seldom || s.round == 0 {
		return s.round
	}
	lost := time.Duration(s.contends) * s.handover
	round := max(s.round, smooth*lost)
	if long := 2 * s.round; round > long {
		round = min(coarse*lost, time.Duration(float64(round)*float64(round)/float64(long)))
	}
	return s.window / max(1, s.window/round)
}

// turns is how many turns the instance has had in this window when it has used so much
// more.
func (s *multiToken) turns(i *instance, more time.Duration) float64 {
	served := i.served() + float64(more)/float64(max(i.request, 1))
	return served * float64(s.window) / float64(s.roundLength())
}

// turnNow is how long the instance's next turn is: what it went beyond the one
// before is taken off, as far as half a turn is left.
func (s *multiToken) turnNow(i *instance) time.Duration {
	turn := s.turnLength(i)
	return turn - min(max(i.slip, -turn/2), turn/2)
}

// slipped takes note of what a turn has come to.
func (c *client) slipped(took time.Duration) {
	if c.inst.slip = 0; c.whole > 0 {
		c.inst.slip = took - c.whole
	}
}

// inTurns is the part of a lease so long that the client has while others wait: a
// turn, or all where less than half a turn would be left.
func (s *multiToken) inTurns(c *client, length time.Duration) time.Duration {
	c.whole = 0
	if turn := s.turnNow(c.inst); s.waiting > 0 && length > turn+turn/2 {
		c.whole = s.unlessCut(s.now, turn)
		return turn
	}
	return length
}

// unlessCut is what a turn that begins then should come to, 0 if the window ends in it.
func (s *multiToken) unlessCut(begins, turn time.Duration) time.Duration {
	if begins+turn < s.start+s.window {
		return turn
	}
	return 0
}

// turnBeside is the same if clients are known that do not all fit beside each
// other, else 0.
func (s *multiToken) turnBeside(i *instance) time.Duration {
	if !s.rounds() || s.known <= s.smLimit+smEps {
		return 0
	}
	return s.turnLength(i)
}

// overrun returns half of what the instance's next turn is going to take beyond its length,
// because it takes long to drain, but no more than a window's request. It is ranked as if it
// had used that, so that it runs half before its time and half after it.
func (s *multiToken) overrun(i *instance) time.Duration {
	if !s.rounds() {
		return 0
	}
	return min(max(0, i.drain-s.turnLength(i))/2, i.request)
}

// rankTurns puts those ahead that have had more turns than another that contends by a
// turn and a half: they pass. Who is out of step by less, since it drained late or
// early, makes up for that by the length of its turn.
func (s *multiToken) rankTurns() {
	least := math.Inf(1)
	for _, i := range s.instances {
		if i.active > 0 {
			i.ahead = s.turns(i, s.overrun(i))
			least = min(least, i.ahead)
		}
	}
	for _, i := range s.instances {
		i.ahead = math.Floor((i.ahead - least) / 1.5)
	}
}

// endTurns has the leases that are out end with their turns, if somebody has budget
// and waits for SMs that are taken.
func (s *multiToken) endTurns() {
	s.waiting, s.seldom = 0, false
	if s.known <= s.smLimit+smEps {
		return // nobody waits for another's
	}
	round, occupied := s.roundLength(), 0.0
	for _, c := range s.clients {
		if s.occupies(c) {
			occupied += c.inst.slice.SMPct
		}
	}
	for _, c := range s.clients {
		switch {
		case c.state != Waiting || c.inst.budgetLeft() < s.enough(c):
		case s.fits(occupied, c):
			occupied += c.inst.slice.SMPct
		default:
			s.waiting++
			s.seldom = s.seldom || c.since-c.freed >= round
		}
	}
	if !s.rounds() || s.waiting == 0 {
		return
	}
	s.rankTurns()
	for _, c := range s.running {
		turn := s.turnNow(c.inst)
		switch end := c.turn + s.early(c, turn); {
		case end >= c.end:
		case end <= s.now: // it went on while nobody waited
			c.end = s.now
		default:
			c.end, c.whole = end, s.unlessCut(c.turn, turn)
		}
	}
}
