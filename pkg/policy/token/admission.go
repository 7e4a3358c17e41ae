package token

import (
	"cmp"
	"slices"
	"time"
)

// admission decides which clients have a lease, and when each lease ends.
type admission struct {
	*ledger
	*timetable
	*rounds
	*light
	lease   uint32   // number of the next lease
	actions []Action // of the current Step
}

// reservation describes when the head, the first client in order that does not fit, can start.
type reservation struct {
	head     *client
	start    time.Duration // T: the time at which planned ends let the head start
	spareSMs float64       // percent of SMs that remain next to the head at T
}

// schedule decides, in order, about all waiting clients with budget and all clients whose lease
// has reached its planned end.
func (s *admission) schedule() {
	if s.paperOrder {
		s.schedulePaper()
		return
	}
	s.recount()
	s.selectLight()
	s.shortenLeases()
	queue, occupied := s.candidates()
	var reserved *reservation
	for at, c := range queue {
		switch {
		case c.state == Running:
			s.review(c, reserved)
		case reserved == nil && !s.fits(occupied, c):
			reserved = s.reserve(c, queue[at+1:])
			c.why = why{code: waitingForSMs, pct: c.inst.slice.SMPct, in: reserved.start - s.now}
		case s.admit(c, reserved, occupied):
			occupied += c.inst.slice.SMPct
		case reserved != nil && c.inst.claimant == c:
			reserved.spareSMs -= c.inst.slice.SMPct // keeps room for the turn that c claims
		}
		if c.state == Waiting && c.overHandoverLimit {
			c.why = why{code: handoverLimit, in: s.start + s.window - s.now}
		}
	}
}

// candidates revokes the leases that have reached their planned end without remaining budget. It
// returns the clients to decide about, in order, and the percent of SMs held.
func (s *admission) candidates() (queue []*client, occupied float64) {
	for _, c := range s.clients {
		if s.occupies(c) {
			occupied += c.inst.slice.SMPct
		}
		remaining := c.inst.remainingBudget()
		if c.inst.guaranteed() <= 0 {
			c.lastOwing = s.now
		}
		switch {
		case c.state == Running && c.end <= s.now && s.exhausted(c, remaining):
			s.revoke(c, why{code: budgetUsedUp, budget: budget{left: remaining}})
		case c.state == Running && c.end <= s.now:
			if c.end == s.start { // the end of the last window cut its turn short
				c.restOfTurn = max(c.restOfTurn, c.cutOff)
			}
			queue = append(queue, c)
		case c.state == Waiting && remaining >= s.minBudget(c):
			queue = append(queue, c)
		case c.state == Waiting:
			c.lastWithoutBudget, c.why = s.now, why{code: budgetUsedUp, budget: budget{left: remaining}}
		}
	}
	if len(queue) == 0 && occupied < smEps && s.activeInstances > 1 {
		// To keep the GPU from idling, run a kernel of a client whose budget is below the
		// usual minimum (minBudget). The client owes the overrun.
		for _, c := range s.clients {
			if c.state == Waiting && c.inst.remainingBudget() >= s.minLease(c.inst) {
				queue = append(queue, c)
			}
		}
	}
	if s.paperOrder {
		slices.SortFunc(queue, s.comparePaper)
		return queue, occupied
	}
	slices.SortFunc(queue, s.order)
	if len(s.moments) > 0 {
		queue = s.claimsFirst(queue, occupied)
	}
	return queue, occupied
}

// order compares candidates. Aged clients come before all others, longest wait first. Other
// clients are ordered by how far their instance is ahead (rankTurns) or, without rounds, by how
// much it misses of its request; then by waiting time; then by ID. A holder at its planned end
// ranks as a client that starts to wait just after now.
func (s *admission) order(a, b *client) int {
	precedence := 0
	switch agedA, agedB := s.aged(a), s.aged(b); {
	case agedA && agedB:
	case agedA:
		return -1
	case agedB:
		return 1
	case a.precedence() != b.precedence():
		return cmp.Compare(a.precedence(), b.precedence())
	case s.usesRounds():
		precedence = cmp.Compare(a.inst.turnsAhead, b.inst.turnsAhead)
	default:
		precedence = cmp.Compare(b.inst.guaranteed(), a.inst.guaranteed())
	}
	return cmp.Or(precedence, cmp.Compare(s.waitingSince(a), s.waitingSince(b)), cmp.Compare(a.id, b.id))
}

func (s *admission) waitingSince(c *client) time.Duration {
	if c.state == Running {
		return s.now + 1
	}
	return c.since
}

// claimsFirst moves the clients that claim their turns to the front, and clients that are out of
// patience before those. If the claims do not fit next to the SMs held, it also inserts, after the
// claims, the holders of lent SMs: running clients that do not use a turn. Each is then reviewed like
// a holder at its planned end, and revoked if a claim needs its SMs. They come before the other
// clients, which would only borrow the same SMs.
func (s *admission) claimsFirst(queue []*client, occupied float64) []*client {
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

func (s *admission) rank(c *client) int {
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

// claim selects, for each instance that is in its turn and misses part of its request, one
// client to use the turn: a running client, or else the first in order.
func (s *admission) claim(queue []*client) {
	claim := func(c *client) {
		if c.inst.claimant == nil && c.inst.hasTurn(s.now-s.start) && s.missesRequest(c.inst, s.drainTime(c)) {
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

// drainTime returns how long c would continue to run if its lease were revoked now. It is 0
// unless the lease has reached its planned end.
func (s *admission) drainTime(c *client) time.Duration {
	if c.state == Running && c.end <= s.now {
		return c.drain
	}
	return 0
}

// leaseEnd returns the planned end of a lease that starts or continues now. starting is the number
// of clients of the instance that start to run now and that i.runningClients does not count. The
// running clients of an instance share its budget.
func (s *admission) leaseEnd(c *client, starting int) time.Duration {
	length := s.budgetLength(c.inst) / time.Duration(max(1, c.inst.runningClients+starting))
	if c.light {
		length = s.lightLease(c)
	}
	length = s.leaseLength(c, length)
	if s.now+length < s.start+s.window-negligible {
		length = s.revokeAfter(c, length)
	}
	if c.cutOff = 0; s.usesRounds() && s.waiting > 0 && s.activeRequests < s.window {
		c.cutOff = max(0, s.now+length-s.start-s.window)
	}
	return min(s.now+max(length, negligible), s.start+s.window)
}

// budgetLength returns how long a lease may last by the budget of the instance: until its guaranteed
// part is used up or, without one, for a short time at most. While clients take turns and their
// requests do not fill the GPU, each instance also gets its part of the rest.
func (s *admission) budgetLength(i *instance) time.Duration {
	guaranteed, left := i.guaranteed(), i.remainingBudget()
	longest := s.window / 10 // of a lease without a guaranteed part
	if s.usesRounds() && s.waiting > 0 {
		longest = s.turnLength(i)
	}
	switch {
	case guaranteed < s.minLease(i) && left > longest+s.minLease(i):
		return longest
	case guaranteed < s.minLease(i):
		return left
	case s.usesRounds() && s.waiting > 0 && s.activeRequests < s.window:
		return max(guaranteed, min(left, scale(guaranteed, s.window, s.activeRequests)+max(0, -i.ahead)))
	}
	return guaranteed
}

// nextPlannedEnd returns the earliest planned end of a lease, or the window's end without leases.
func (s *admission) nextPlannedEnd() time.Duration {
	end := s.start + s.window
	for _, c := range s.running {
		end = min(end, c.end)
	}
	return end
}

// reserve computes when the head can start. It assumes that draining clients and the undecided
// clients hold nothing by then.
func (s *admission) reserve(head *client, undecided []*client) *reservation {
	var holders []*client
	occupied := 0.0
	for _, c := range s.clients {
		if c.state == Running && !slices.Contains(undecided, c) {
			holders = append(holders, c)
			occupied += c.inst.slice.SMPct
		}
	}
	slices.SortStableFunc(holders, func(a, b *client) int { return cmp.Compare(a.end, b.end) })
	r := &reservation{head: head, start: s.now}
	for _, c := range holders {
		if s.fits(occupied, head) {
			break
		}
		occupied -= c.inst.slice.SMPct
		r.start = c.end
	}
	r.spareSMs = s.smLimit - occupied - head.inst.slice.SMPct
	return r
}

// leaseBounds describes the lease that a client can have.
type leaseBounds struct {
	latestEnd  time.Duration // latest planned end
	fitsBeside bool          // the client fits next to the head
	refusal    why           // the reason why the client can have no lease; zero if it can
}

// boundsFor returns the longest lease that delays neither the head nor a turn. reserved is nil
// without a head.
func (s *admission) boundsFor(c *client, reserved *reservation) leaseBounds {
	r := leaseBounds{latestEnd: s.start + s.window}
	var turn time.Duration
	var turnOwner *instance // the instance whose turn limits the lease
	if s.outOfPatience(c) {
		r.latestEnd = min(r.latestEnd, s.now+s.window/10)
	} else if at, owner := s.nextConflict(c); owner != nil && at < r.latestEnd+c.drain {
		r.latestEnd = at - s.drainTimeBefore(c, at)
		turn, turnOwner = at, owner
	}
	if reserved != nil {
		r.fitsBeside = c.inst.slice.SMPct <= reserved.spareSMs+smEps
	}
	headFirst := reserved != nil && !r.fitsBeside && reserved.start <= r.latestEnd
	if headFirst {
		r.latestEnd = reserved.start
		if c.inst.guaranteed() <= 0 {
			r.latestEnd -= c.drain // it has had its request, so its drain must not delay the head
		}
	}
	switch {
	case r.latestEnd-s.now >= s.minLease(c.inst):
	case headFirst:
		r.refusal = why{code: smsNeeded, other: reserved.head, budget: budgetStatus(reserved.head).budget}
	case turnOwner != nil:
		r.refusal = why{code: turnOfOther, owner: turnOwner, in: turn - s.now}
	}
	return r
}

// admit grants a waiting client a lease if that delays neither the head nor a turn. It reports
// whether it did.
func (s *admission) admit(c *client, reserved *reservation, occupied float64) bool {
	r := s.boundsFor(c, reserved)
	switch {
	case reserved != nil && (r.refusal.code != "" || !s.fits(occupied, c)):
		c.why = why{code: afterOther, other: reserved.head, pct: occupied}
		return false
	case r.refusal.code != "":
		c.why = r.refusal
		return false
	}
	status := budgetStatus(c)
	switch {
	case r.fitsBeside:
		reserved.spareSMs -= c.inst.slice.SMPct
		status.other, status.beside = reserved.head, true
	case reserved != nil:
		status.other, status.in = reserved.head, reserved.start-s.now
	}
	s.grant(c, min(r.latestEnd, s.leaseEnd(c, 1)), status)
	return true
}

// review extends the lease of a holder at its planned end, or revokes it.
func (s *admission) review(c *client, reserved *reservation) {
	r := s.boundsFor(c, reserved)
	if r.refusal.code != "" {
		s.revoke(c, r.refusal)
		return
	}
	if r.fitsBeside {
		reserved.spareSMs -= c.inst.slice.SMPct
	}
	c.urgent = false
	if s.waiting > 0 {
		c.turnStart = s.now
	}
	c.end = min(r.latestEnd, s.leaseEnd(c, 0))
	c.restOfTurn = 0
	c.why = budgetStatus(c)
}

func (s *admission) grant(c *client, end time.Duration, w why) {
	s.stopWaiting(c)
	c.urgent = s.outOfPatience(c)
	c.state, c.since, c.turnStart, c.chargedInLease, c.end, c.lease, c.why = Running, s.now, s.now, 0, end, s.lease, w
	c.startDelay = s.othersInFlight(c)
	s.lease = validLease(s.lease + 1)
	s.running = append(s.running, c)
	s.actions = append(s.actions, Grant{Client: c.id, Lease: c.lease, Turn: s.contendedTurn(c.inst), Lead: s.lead, Hold: c.leaseHold(), Reason: w.full()})
	c.inst.runningClients++
	c.restOfTurn = 0
	for _, o := range s.clients {
		if o != c && o.inst == c.inst && o.state == Running && o.end > s.now {
			o.end = min(o.end, s.leaseEnd(o, 0))
		}
	}
}

func (s *admission) revoke(c *client, w why) {
	c.state, c.why, c.revokeDue = Draining, w, min(s.now, c.end)
	c.inst.runningClients--
	s.running = slices.DeleteFunc(s.running, func(r *client) bool { return r == c })
	s.actions = append(s.actions, Revoke{Client: c.id, Lease: c.lease, Reason: w.full()})
}
