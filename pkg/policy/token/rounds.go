package token

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

const (
	sampleTime = 500 * time.Millisecond // the cost of a hand-over is the mean of those in the last sampleTime,
	minSamples = 4                      // but of this number of hand-overs at least,
	maxSamples = 32                     // and at most this number

	firstLead = gpu.Round / 64
	minLead   = gpu.Round / 320 // about the precision of an announced end

	minIgnored = 16   // leases for which a client's announcements are ignored after a wrong one;
	maxIgnored = 1024 // doubled with each wrong one, up to this number
)

// handover learns the cost of passing the GPU from one client to the next.
type handover struct {
	*ledger
	samples []handoverSample // the latest hand-overs, oldest first
	cost    time.Duration    // usual idle time of the GPU per hand-over
	lead    time.Duration    // how long before the end of its work in flight a client should announce that end
}

// handoverSample is the idle time of the GPU in one hand-over.
type handoverSample struct{ at, idle time.Duration }

// observeHandover updates the usual cost of a hand-over: the mean of those in the last sampleTime. A
// hand-over that was much longer than the median counts as a shorter one, because pauses of the
// host cause such hand-overs, and longer rounds would not avoid them.
func (s *handover) observeHandover(idle time.Duration) {
	first := max(0, len(s.samples)+1-maxSamples)
	for len(s.samples)-first >= minSamples && s.now-s.samples[first].at > sampleTime {
		first++
	}
	s.samples = append(slices.Delete(s.samples, 0, first), handoverSample{s.now, idle})
	n := len(s.samples)
	longest, sum := soon, time.Duration(0)
	if n > 1 {
		byTime := slices.SortedFunc(slices.Values(s.samples), func(a, b handoverSample) int { return cmp.Compare(a.idle, b.idle) })
		longest = max(longest, 4*byTime[n/2-1].idle)
	}
	for _, sample := range s.samples {
		sum += min(sample.idle, longest, gpu.Round)
	}
	s.cost = sum / time.Duration(n)
}

// adjustLead updates the lead time after a lease that was granted before the end of another client's
// work. idle is how long the GPU was idle, or negative if both clients had work in flight. The
// steps are small, because a pause of the host predicts nothing. The lead is at most soon. If the idle
// time exceeds soon minus the lead, no lead would have avoided it: the client had nothing to launch
// yet, and the lead remains as it is.
func (s *handover) adjustLead(idle time.Duration) {
	if idle > soon-s.lead {
		return
	}
	s.lead = min(max(s.lead+min(max(idle, -minLead), minLead)/8, minLead), soon)
}

// recordEnding records the announced end of a draining client's work in flight, if it is near and the
// client's announcements are not ignored.
func (s *handover) recordEnding(c *client, ev Ending) {
	if c.state == Draining && ev.Lease == c.lease && c.announcedEnd == 0 && c.ignoredLeases == 0 && ev.Remaining <= soon {
		c.announcedEnd = s.now + max(ev.Remaining, 0)
	}
}

// checkAnnouncement checks the last announcement of a client whose lease ended. If the work continued
// for more than soon after the announced end, it ran at the same time as the next client's work. The
// client's announcements are then ignored for a number of leases.
func (c *client) checkAnnouncement(now time.Duration) {
	switch {
	case c.announcedEnd == 0:
		c.ignoredLeases = max(c.ignoredLeases-1, 0)
	case now-c.announcedEnd > soon:
		c.penalty = min(max(2*c.penalty, minIgnored), maxIgnored)
		c.ignoredLeases = c.penalty
	default:
		c.penalty /= 2
	}
}

// othersInFlight returns the time until the last announced end of work in flight of other clients, if c
// needs SMs that they hold; otherwise 0.
func (s *handover) othersInFlight(c *client) time.Duration {
	occupied, remaining := 0.0, time.Duration(0)
	for _, o := range s.clients {
		if o != c && o.holdsLease() {
			occupied += o.inst.slice.SMPct
			remaining = max(remaining, o.announcedEnd-s.now)
		}
	}
	if s.fits(occupied, c) {
		return 0
	}
	return remaining
}

// idleTime returns how long the GPU was idle in a lease that is returned. It excludes the time before
// and after the client's work in which other clients had work in flight. A negative result is the
// time in which two clients had work in flight, which both have measured.
func (s *handover) idleTime(c *client, used time.Duration) time.Duration {
	idle := s.now - c.since - used - c.startDelay
	if after := s.now - c.announcedEnd; c.announcedEnd > 0 && after > 0 && after <= soon {
		idle -= after
	}
	return idle
}

// updateAverage updates a moving average. A new value has a weight of a quarter. The upward step is at
// most a sixteenth of the average, because some values on a busy host are much too long.
func updateAverage(usual *time.Duration, value time.Duration) {
	if *usual == 0 {
		*usual = value
	}
	*usual += min(value-*usual, *usual/4) / 4
}

const (
	maxTurnsPerRound = 8   // a turn is at least 1/maxTurnsPerRound of a round
	smooth           = 50  // rounds become longer until hand-overs take at most about 1/smooth of the time (2%)
	coarse           = 100 // and, beyond twice the configured length, longer still, down to 1/coarse at the least (1%)
)

// rounds divides a window so that every waiting client has a turn soon.
type rounds struct {
	*ledger
	*timetable
	*handover
	round   time.Duration // configured length of a round; 0: no rounds, leases end with budgets
	waiting int           // clients that have budget and for which not enough SMs are free; set by shortenLeases
	seldom  bool          // such a client has not used the GPU for at least a round; set by shortenLeases
}

// usesRounds reports whether leases end with turns of a round. With a timetable they do not, because
// it has turns of its own.
func (s *rounds) usesRounds() bool { return s.round > 0 && len(s.moments) == 0 }

// rejoin gives an instance that becomes active the rank of the least-served active instance: time
// that it left to others while it was idle is forfeited, except while all clients fit side by side.
func (s *rounds) rejoin(i *instance) {
	i.joined = i.joined || i.activeClients == 0
	if !s.usesRounds() || s.allFit() {
		return
	}
	s.recount()
	least := -1.0
	for _, o := range s.instances {
		if o == i && o.activeClients > 0 {
			return
		}
		if o.activeClients > 0 && (least < 0 || o.servedFraction() < least) {
			least = o.servedFraction()
		}
	}
	if gap := least - i.servedFraction(); gap > 0 {
		i.forfeited += time.Duration(gap * float64(i.request))
	}
}

// servedFraction returns the fraction of its request that the instance has received in this window,
// forfeited time included. Credit counts as negative use.
func (i *instance) servedFraction() float64 {
	return float64(i.request-i.guaranteed()+i.forfeited) / float64(max(i.request, 1))
}

// turnLength returns how long a client of the instance runs while others wait: the instance's part
// of a round, divided among its active clients.
func (s *rounds) turnLength(i *instance) time.Duration {
	if !s.usesRounds() {
		return s.window
	}
	turn := scale(s.roundLength(), i.request, max(i.request, s.activeRequests))
	return max(turn/time.Duration(max(1, i.activeClients)), s.round/maxTurnsPerRound)
}

// roundLength returns the current length of a round, of which a window has a whole number. Rounds
// become longer if hand-overs would lose too much of them, unless a client waits that seldom uses
// the GPU.
func (s *rounds) roundLength() time.Duration {
	if s.seldom || s.round == 0 {
		return s.round
	}
	return s.usualRound()
}

// usualRound returns the length of a round while no client waits that seldom uses the GPU.
func (s *rounds) usualRound() time.Duration {
	lost := time.Duration(s.activeInstances) * s.cost
	round := max(s.round, smooth*lost)
	if long := 2 * s.round; round > long {
		round = min(coarse*lost, time.Duration(float64(round)*float64(round)/float64(long)))
	}
	return s.window / max(1, (s.window+round/4)/round)
}

// servedTurns returns how many turns the instance will have had in this window after using more time.
func (s *rounds) servedTurns(i *instance, extra time.Duration) float64 {
	served := i.servedFraction() + float64(extra)/float64(max(i.request, 1))
	return served * float64(s.window) / float64(s.roundLength())
}

// nextTurnLength returns the length of the next turn of one of the instance's clients. The overrun of the
// previous turn is subtracted, down to half a turn; a shorter previous turn likewise adds to it. If a round is
// as long as a window, ahead takes the place of the overrun.
func (s *rounds) nextTurnLength(i *instance) time.Duration {
	turn, overrun := s.turnLength(i), i.turnOverrun
	if s.roundLength() == s.window {
		overrun = i.ahead / time.Duration(max(1, i.activeClients))
	}
	return turn - min(max(overrun, -turn/2), turn/2)
}

// balance updates ahead at the end of a window, if hand-overs are so costly that a round is as long as a window.
// The use of the instances that competed for the whole window is compared: the part of each is proportional to
// its request. Lengths of turns alone do not divide the GPU so, because the window's end and light clients cut
// turns.
func (s *rounds) balance() {
	used, requests, competitors := time.Duration(0), time.Duration(0), 0
	for _, i := range s.instances {
		if s.competed(i) {
			used += i.usedLastWindow
			requests += i.request
			competitors++
		}
	}
	balanced := s.usesRounds() && !s.allFit() && s.usualRound() == s.window && competitors > 1 && requests < s.window-negligible
	for _, i := range s.instances {
		if balanced && s.competed(i) {
			ahead := i.ahead + i.usedLastWindow - scale(used, i.request, requests)
			i.ahead = min(max(ahead, -i.request/4), i.request/4)
		} else {
			i.ahead = 0
		}
	}
	for _, i := range s.instances {
		i.joined = false
	}
}

// competed reports whether the instance was active for the whole last window, could have used more by its limit,
// and needs more than half of the SMs, so that it runs next to no other such instance.
func (s *rounds) competed(i *instance) bool {
	return i.backlog && !i.joined && !i.limited && 2*i.slice.SMPct > s.smLimit
}

// recordTurnOverrun records by how much a turn exceeded its length.
func (c *client) recordTurnOverrun(length time.Duration) {
	if c.inst.turnOverrun = 0; c.expectedTurn > 0 {
		c.inst.turnOverrun = length - c.expectedTurn
	}
}

// leaseLength returns how much of a lease of the given length the client receives while others wait:
// one turn, or the whole lease if the remainder would be less than half a turn and the instance is not ahead. It
// sets c.expectedTurn. An interrupted client receives the rest of its turn, and a light client does not have turns.
func (s *rounds) leaseLength(c *client, length time.Duration) time.Duration {
	c.expectedTurn = 0
	turn := cmp.Or(c.restOfTurn, s.nextTurnLength(c.inst))
	remainder := turn / 2
	if c.inst.ahead > 0 {
		remainder = 0
	}
	if s.waiting > 0 && !c.light && length > turn+remainder {
		c.expectedTurn = s.uncutLength(s.now, turn)
		return turn
	}
	return length
}

// uncutLength returns the expected length of a turn that begins at start, or 0 if the window ends
// before the turn would.
func (s *rounds) uncutLength(start, turn time.Duration) time.Duration {
	if start+turn < s.start+s.window {
		return turn
	}
	return 0
}

// contendedTurn returns the length of a turn, or 0 if all known clients fit side by side.
func (s *rounds) contendedTurn(i *instance) time.Duration {
	if !s.usesRounds() || s.allFit() {
		return 0
	}
	return s.turnLength(i)
}

// drainPenalty returns half of the time by which the instance's drain exceeds its turn, but at most its
// request per window. The instance is ranked as if it had used this time, so that its turn
// comes later. Before it, the instance is behind the others by half of the excess; afterwards it is
// ahead by the other half, instead of by all of it.
func (s *rounds) drainPenalty(i *instance) time.Duration {
	if !s.usesRounds() {
		return 0
	}
	return min(max(0, i.drain-s.turnLength(i))/2, i.request)
}

// rankTurns sets turnsAhead of the active instances: how far each is ahead of the least-served active
// instance, in steps of a turn and a half, rounded down. So only instances that are at least a turn
// and a half ahead come later. For smaller differences, caused by late or early drains, the lengths
// of turns compensate (nextTurnLength).
func (s *rounds) rankTurns() {
	least := math.Inf(1)
	for _, i := range s.instances {
		if i.activeClients > 0 {
			i.turnsAhead = s.servedTurns(i, s.drainPenalty(i)) // for now, the turns served
			least = min(least, i.turnsAhead)
		}
	}
	for _, i := range s.instances {
		i.turnsAhead = math.Floor((i.turnsAhead - least) / 1.5)
	}
}

// shortenLeases makes running leases end with their turns if a client with budget waits for occupied
// SMs. It also sets waiting and seldom.
func (s *rounds) shortenLeases() {
	s.waiting, s.seldom = 0, false
	if s.allFit() {
		return
	}
	occupied := 0.0
	for _, c := range s.clients {
		if s.occupies(c) {
			occupied += c.inst.slice.SMPct
		}
	}
	for _, c := range s.clients {
		switch {
		case c.state != Waiting || c.inst.remainingBudget() < s.minBudget(c):
		case s.fits(occupied, c):
			occupied += c.inst.slice.SMPct
		default:
			s.waiting++
			s.seldom = s.seldom || c.since-c.lastReturn >= s.round
		}
	}
	if !s.usesRounds() || s.waiting == 0 {
		return
	}
	s.rankTurns()
	for _, c := range s.running {
		if c.light {
			continue
		}
		turn := s.nextTurnLength(c.inst)
		switch end := c.turnStart + s.revokeAfter(c, turn); {
		case end >= c.end:
		case end <= s.now: // it continued while no client waited
			c.end = s.now
		default:
			c.end, c.expectedTurn = end, s.uncutLength(c.turnStart, turn)
		}
	}
}

// revokeAfter returns how much of a lease passes until it is revoked, so that the client has drained at
// its end. It is at least half of the lease.
func (s *rounds) revokeAfter(c *client, length time.Duration) time.Duration {
	return length - min(c.drain, length/2)
}
