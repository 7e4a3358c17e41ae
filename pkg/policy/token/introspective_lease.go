package token

import "slices"

func (s *Introspective) request(p *process) {
	switch p.state {
	case Idle:
		s.accrue(p.acct) // as of one that was idle until now
		p.state, p.since, p.why = Waiting, s.now, "just asked"
	case Draining, Suspended:
		p.again = true
	}
}

// giveBack ends a lease.
func (s *Introspective) giveBack(p *process, ev Return) {
	if !p.holds() && p.state != Suspended || ev.Lease != p.lease {
		return
	}
	used := min(max(ev.Used, 0), s.now-p.since)
	more := ev.WantsMore || p.again
	if !s.endTrial(p, used, more) {
		s.endLease(p, used, more)
	}
	p.state, p.lease, p.again, p.why = Idle, 0, false, ""
	if more {
		s.request(p)
	}
}

// admit grants a lease to all that wait and have something to launch with.
func (s *Introspective) admit() {
	if s.trial != nil {
		return
	}
	for _, p := range s.processes {
		if p.state != Waiting {
			continue
		}
		s.accrue(p.acct)
		switch {
		case p.acct.gauge.untried():
			p.why = "is to be measured alone first"
		case s.metered(p.acct) && p.acct.level < 1:
			p.why = "its tokens are used up"
		default:
			s.grant(p, "runs beside the others, by tokens")
		}
	}
}

// grant opens a client's gate, with its budget.
func (s *Introspective) grant(p *process, reason string) {
	p.state, p.since, p.lease, p.why = Running, s.now, s.lease, reason
	s.lease = valid(s.lease + 1)
	s.beginLease(p)
	s.allot(p.acct)
	s.actions = append(s.actions, Grant{Client: p.id, Lease: p.lease, Reason: reason})
}

func (s *Introspective) revoke(p *process, reason string) {
	p.state, p.why = Draining, reason
	s.actions = append(s.actions, Revoke{Client: p.id, Lease: p.lease, Reason: reason})
}

// arm asks to be woken at the end of the period, or of the trial, while anybody
// is active.
func (s *Introspective) arm() {
	overdue := s.wake != 0 && s.wake <= s.now // it is on its way
	if overdue || !slices.ContainsFunc(s.processes, func(p *process) bool { return p.state.active() }) {
		return
	}
	at, why := s.ticked+s.params.Period, "end of the period"
	if at <= s.now {
		at = s.now + s.params.Period
	}
	if t := s.trial; t != nil && s.now < t.end && t.end < at {
		at, why = t.end, "end of the trial"
	}
	if at != s.wake {
		s.wake = at
		s.actions = append(s.actions, WakeAt{At: at, Reason: why})
	}
}

// roll closes the windows that have ended by now.
func (s *Introspective) roll() {
	past := (s.now - s.start) / s.window
	if past == 0 {
		return
	}
	for _, p := range s.processes {
		p.last, p.used = p.used, 0
		if past > 1 {
			p.last = 0
		}
	}
	s.start += past * s.window
}
