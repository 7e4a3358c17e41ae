package token

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

const (
	smEps      = 1e-6                  // percent of SMs lost to rounding
	negligible = 20 * time.Microsecond // less budget than this is none
)

// reservation is what is kept for the head.
type reservation struct {
	head  *client
	at    time.Duration // T: when planned ends let the head start
	extra float64       // percent of SMs that the head leaves over at T
}

// schedule decides, in order, about all that wait with budget and all whose
// lease has reached its planned end.
func (s *multiToken) schedule() {
	s.tally()
	s.endTurns()
	queue, occupied := s.candidates()
	var reserved *reservation
	for at, c := range queue {
		switch {
		case c.state == Running:
			s.review(c, reserved)
		case reserved == nil && !s.fits(occupied, c):
			reserved = s.reserve(c, queue[at+1:])
			c.why = reasonf("first in order; its %v%% fit from %v", c.inst.slice.SMPct, reserved.at)
		case s.admit(c, reserved, occupied):
			occupied += c.inst.slice.SMPct
		case reserved != nil && c.inst.claimant == c:
			reserved.extra -= c.inst.slice.SMPct // those after it leave it its turn
		}
	}
}

// tally counts, for each instance, its clients and the leases that are out.
func (s *multiToken) tally() {
	s.running = s.running[:0]
	s.contends, s.requests, s.known, s.drains = 0, 0, 0, 0
	for _, i := range s.instances {
		i.live, i.holding, i.known, i.active, i.drain, i.claimant = 0, 0, 0, 0, 0, nil
	}
	for _, c := range s.clients {
		c.inst.known++
		s.known += c.inst.slice.SMPct
		if c.state.active() {
			if c.inst.active++; c.inst.active == 1 {
				s.contends++
				s.requests += c.inst.request
			}
			c.inst.drain = max(c.inst.drain, c.drain)
			s.drains += c.drain
		}
		if c.holds() {
			c.inst.live += s.held(c)
		}
		if c.state == Running {
			c.inst.holding++
			s.running = append(s.running, c)
		}
	}
}

// candidates asks back the leases at their planned ends that have no budget left,
// and returns in order the clients to decide about, and the percent of SMs held.
func (s *multiToken) candidates() (queue []*client, occupied float64) {
	for _, c := range s.clients {
		if s.occupies(c) {
			occupied += c.inst.slice.SMPct
		}
		left := c.inst.budgetLeft()
		if c.inst.guaranteed() <= 0 {
			c.owing = s.now
		}
		switch {
		case c.state == Running && c.end <= s.now && s.exhausted(c, left):
			s.revoke(c, "the window's budget is used up")
		case c.state == Running && c.end <= s.now,
			c.state == Waiting && left >= s.enough(c):
			queue = append(queue, c)
		case c.state == Waiting:
			c.broke, c.why = s.now, func() string { return fmt.Sprintf("the window's budget is used up: %v left", left) }
		}
	}
	if len(queue) == 0 && occupied < smEps && s.contends > 1 {
		queue = s.withLittle(queue)
	}
	slices.SortFunc(queue, s.order)
	if len(s.timetable) > 0 {
		queue = s.byTurns(queue, occupied)
	}
	return queue, occupied
}

// exhausted says whether a holder's budget is used up when it has drained. One that
// lasts until the window's end is not.
func (s *multiToken) exhausted(c *client, left time.Duration) bool {
	return left <= max(c.drain, negligible) && s.now+left < s.start+s.window-negligible
}

// worthwhile is the least time that is worth a switch. What is left below it
// is not lost: it becomes credit.
func (s *multiToken) worthwhile(i *instance) time.Duration {
	return max(min(s.window/100, i.request/2), negligible)
}

// enough is the least budget with which a client that waits is granted. One that
// takes long to drain runs over by that, and waits until it has half as much,
// but not in its turn.
func (s *multiToken) enough(c *client) time.Duration {
	if c.inst.hasTurn(s.now - s.start) {
		return s.worthwhile(c.inst)
	}
	return max(s.worthwhile(c.inst), min(c.drain, c.inst.request)/2)
}

// withLittle adds the clients whose budget is less than enough to be granted beside
// others, and more than nothing: rather than idle, the GPU has a kernel of theirs that
// runs over, which they owe.
func (s *multiToken) withLittle(queue []*client) []*client {
	for _, c := range s.clients {
		if c.state == Waiting && c.inst.budgetLeft() >= s.worthwhile(c.inst) {
			queue = append(queue, c)
		}
	}
	return queue
}

// order ranks candidates: those that have aged before all others, oldest first; then by
// what the instance has had of its request or, without rounds, by what it misses of it;
// by how long they wait, and by id. A holder at its planned end ranks as one that begins
// to wait just after now.
func (s *multiToken) order(a, b *client) int {
	sinceA, sinceB := s.waitingSince(a), s.waitingSince(b)
	agedA, agedB := s.aged(a), s.aged(b)
	switch {
	case agedA && !agedB:
		return -1
	case agedB && !agedA:
		return 1
	case agedA:
		return cmp.Or(cmp.Compare(sinceA, sinceB), cmp.Compare(a.id, b.id))
	}
	missing := cmp.Compare(b.inst.guaranteed(), a.inst.guaranteed())
	if s.rounds() {
		missing = cmp.Compare(a.inst.ahead, b.inst.ahead)
	}
	return cmp.Or(missing, cmp.Compare(sinceA, sinceB), cmp.Compare(a.id, b.id))
}

func (s *multiToken) waitingSince(c *client) time.Duration {
	if c.state == Running {
		return s.now + 1
	}
	return c.since
}

// aged reports whether a client has waited for two windows, and for as long as all the
// others take to drain, while its instance owed nothing to others.
func (s *multiToken) aged(c *client) bool {
	return c.state == Waiting && s.now-max(c.since, c.owing) >= 2*s.window+s.drains
}

// fits says whether the client may hold its SMs beside so many occupied ones.
// One whose share alone exceeds the limit fits only on an empty GPU.
func (s *multiToken) fits(occupied float64, c *client) bool {
	return occupied < smEps || occupied+c.inst.slice.SMPct <= s.smLimit+smEps
}

// leaseEnd plans when a lease that starts or goes on now should end, with so
// many more running clients of the instance than tally counted. Running
// clients of one instance share its budget.
func (s *multiToken) leaseEnd(c *client, more int) time.Duration {
	i := c.inst
	slice := s.window / 10
	length := i.guaranteed()
	if length < s.worthwhile(i) {
		length = i.budgetLeft()
		if length > slice+s.worthwhile(i) {
			length = slice
		}
	}
	length /= time.Duration(max(1, i.holding+more))
	length = s.inTurns(c, length)
	if s.now+length < s.start+s.window-negligible {
		length = s.early(c, length)
	}
	return min(s.now+max(length, negligible), s.start+s.window)
}

// early is how much of so long a lease passes until the client is asked back.
func (s *multiToken) early(c *client, length time.Duration) time.Duration {
	return length - min(c.drain, length/2)
}

// standing says in words how the instance stands in this window.
func (s *multiToken) standing(c *client) string {
	if missing := c.inst.guaranteed(); missing > 0 {
		return fmt.Sprintf("misses %v of its request", missing)
	}
	if owed := -c.inst.credit; owed > 0 {
		return fmt.Sprintf("owes %v to others, %v left to its limit", owed, c.inst.budgetLeft())
	}
	return fmt.Sprintf("has its request, %v left to its limit", c.inst.budgetLeft())
}

// reserve works out when the head can start: those still undecided after it
// and those draining are taken to be gone by then.
func (s *multiToken) reserve(head *client, undecided []*client) *reservation {
	var holders []*client
	occupied := 0.0
	for _, c := range s.clients {
		if c.state == Running && !slices.Contains(undecided, c) {
			holders = append(holders, c)
			occupied += c.inst.slice.SMPct
		}
	}
	slices.SortStableFunc(holders, func(a, b *client) int { return cmp.Compare(a.end, b.end) })
	r := &reservation{head: head, at: s.now}
	for _, c := range holders {
		if s.fits(occupied, head) {
			break
		}
		occupied -= c.inst.slice.SMPct
		r.at = c.end
	}
	r.extra = s.smLimit - occupied - head.inst.slice.SMPct
	return r
}

// room is what a client that fits may have.
type room struct {
	until  time.Duration // the latest planned end
	beside bool          // it fits beside the head
	why    func() string // not nil: nothing, for that reason
}

// roomFor says what a client may have without delaying the head and without
// standing in the way of a turn.
func (s *multiToken) roomFor(c *client, reserved *reservation) room {
	r := room{until: s.start + s.window}
	if s.outOfPatience(c) {
		r.until = min(r.until, s.now+s.window/10)
	} else if at, owner := s.turnAhead(c); owner != nil && at < r.until+c.drain {
		r.until = at - s.allowance(c, at)
		r.why = func() string { return fmt.Sprintf("the turn of instance %s begins at %v", owner.id, at) }
	}
	if reserved != nil {
		r.beside = c.inst.slice.SMPct <= reserved.extra+smEps
	}
	if reserved != nil && !r.beside && reserved.at <= r.until {
		r.until = reserved.at
		if c.inst.guaranteed() <= 0 {
			r.until -= c.drain // it has had its request: what it runs over would be the head's
		}
		r.why = func() string {
			return fmt.Sprintf("client %v needs its SMs and %s", reserved.head.id, s.standing(reserved.head))
		}
	}
	if r.until-s.now >= s.worthwhile(c.inst) {
		r.why = nil
	}
	return r
}

// admit grants a client that waits if that delays neither head nor turn.
func (s *multiToken) admit(c *client, reserved *reservation, occupied float64) bool {
	r := s.roomFor(c, reserved)
	switch {
	case reserved != nil && (r.why != nil || !s.fits(occupied, c)):
		head := reserved.head.id
		c.why = func() string { return fmt.Sprintf("client %v is before it and %v%% are occupied", head, occupied) }
		return false
	case r.why != nil:
		c.why = r.why
		return false
	}
	reason := s.standing(c)
	switch {
	case r.beside:
		reserved.extra -= c.inst.slice.SMPct
		reason += fmt.Sprintf("; fits beside client %v, which is before it", reserved.head.id)
	case reserved != nil:
		reason += fmt.Sprintf("; passes client %v, which fits from %v", reserved.head.id, reserved.at)
	}
	s.grant(c, min(r.until, s.leaseEnd(c, 1)), reason)
	return true
}

// review lets a holder at its planned end go on, or asks it back.
func (s *multiToken) review(c *client, reserved *reservation) {
	r := s.roomFor(c, reserved)
	if r.why != nil {
		s.revoke(c, r.why())
		return
	}
	if r.beside {
		reserved.extra -= c.inst.slice.SMPct
	}
	c.urgent = false
	if s.waiting > 0 {
		c.turn = s.now
	}
	c.end = min(r.until, s.leaseEnd(c, 0))
	c.why = reasonf("%s", s.standing(c))
}

func (s *multiToken) grant(c *client, end time.Duration, reason string) {
	s.stopWaiting(c)
	c.urgent = s.outOfPatience(c)
	c.state, c.since, c.turn, c.settled, c.end, c.lease, c.why = Running, s.now, s.now, 0, end, s.lease, reasonf("%s", reason)
	c.behind = s.inFlight(c)
	s.lease = validLease(s.lease + 1)
	s.running = append(s.running, c)
	s.actions = append(s.actions, Grant{Client: c.id, Lease: c.lease, Turn: s.turnBeside(c.inst), Lead: s.lead, Reason: reason})
	c.inst.holding++
	for _, o := range s.clients {
		if o != c && o.inst == c.inst && o.state == Running && o.end > s.now {
			o.end = min(o.end, s.leaseEnd(o, 0))
		}
	}
}

func (s *multiToken) revoke(c *client, reason string) {
	c.state, c.why, c.revoked = Draining, reasonf("%s", reason), min(s.now, c.end)
	c.inst.holding--
	s.running = slices.DeleteFunc(s.running, func(r *client) bool { return r == c })
	s.actions = append(s.actions, Revoke{Client: c.id, Lease: c.lease, Reason: reason})
}
