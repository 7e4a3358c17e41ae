package token

import "time"

// roll closes the windows that have ended by now.
func (s *multiToken) roll() {
	for s.now >= s.start+s.window {
		if s.quiet() {
			s.start += (s.now - s.start) / s.window * s.window
			s.forget()
			return
		}
		s.closeWindow(s.start + s.window)
	}
}

// quiet says that windows may pass without anything to account for.
func (s *multiToken) quiet() bool {
	for _, c := range s.clients {
		if c.state.active() {
			return false
		}
	}
	for _, i := range s.instances {
		if i.used != 0 || i.debt != 0 || i.credit != 0 {
			return false
		}
	}
	return true
}

// forget clears the last full window, in which nothing ran.
func (s *multiToken) forget() {
	for _, i := range s.instances {
		i.last, i.waited = 0, 0
	}
	for _, c := range s.clients {
		c.last = 0
	}
}

// closeWindow charges what leases have used by the window's end, works out what
// each instance takes into the next, and opens that.
func (s *multiToken) closeWindow(end time.Duration) {
	for _, i := range s.instances {
		i.backlog = false
	}
	for _, c := range s.clients {
		c.inst.backlog = c.inst.backlog || c.state.active()
		part := end - max(c.since, s.start)
		switch {
		case c.holds():
			c.settled += part
			s.charge(c, part)
		case c.state == Waiting:
			c.inst.waited += part
		}
	}
	for _, i := range s.instances {
		i.carry()
	}
	for _, i := range s.instances {
		if i.credit > 0 && i.backlog {
			s.shareCredit(i)
		}
	}
	for _, i := range s.instances {
		if !i.settled {
			i.credit = min(i.credit, max(i.request, negligible))
		}
		if len(i.planned) > 0 && !i.settled && i.credit > 0 {
			i.credit -= i.credit / 8
		}
		i.last, i.used, i.waited, i.over, i.lift = i.used, 0, 0, 0, 0
	}
	for _, c := range s.clients {
		c.last, c.used = c.used, 0
	}
	s.start = end
	if len(s.timetable) > 0 {
		s.makeTimetable()
	}
}

// guaranteed is what is left of the request, with what was carried into this
// window.
func (i *instance) guaranteed() time.Duration {
	return i.request + i.credit - i.debt - i.used - i.live
}

// budgetLeft is what is left of the limit, with what was carried into this
// window. What it owes to others it owes of the guaranteed part only: time that
// they do not want it may have.
func (i *instance) budgetLeft() time.Duration {
	return i.limit + max(i.credit, 0) - i.debt - i.used - i.live
}

// carry works out what the instance takes into the next window: credit for
// what it missed while it waited, or debt for what it used over its limit.
func (i *instance) carry() {
	i.live = 0 // closeWindow has charged what is held
	missed, left, before := i.guaranteed(), i.budgetLeft(), max(i.credit, 0)
	i.credit, i.debt, i.over, i.shared, i.settled = 0, 0, 0, 0, false
	if missed > 0 {
		if !i.backlog {
			before = 0
		}
		i.credit = min(missed, before+i.waited)
		return
	}
	i.debt = max(0, -left)
	i.over = max(0, -missed-i.debt)
}

// shareCredit has a starved instance and those that contend with it for SMs pay
// together for the credit that they have: first who used more than its request,
// as far as that is not debt already, then all that want the GPU and have no turns, in
// proportion to their requests and down to half of one. Afterwards credit less debt
// sums to 0 or less among them, but for what was shared
// before: those that contend with one of them, and not with another, may have paid or
// been paid already. A starved instance that contends with no single other one keeps
// its credit.
func (s *multiToken) shareCredit(starved *instance) {
	group := s.group[:0]
	var owed, over, request time.Duration
	sharing := 0
	for _, i := range s.instances {
		beside := i.slice.SMPct+starved.slice.SMPct <= s.smLimit+smEps
		if i != starved && (beside || !i.backlog && i.over == 0 && i.debt == 0) {
			continue
		}
		group = append(group, i)
		owed += i.credit - i.debt - i.shared
		over += i.over
		if i.sharesLosses() {
			request += i.request
			sharing++
		}
	}
	s.group = group
	if len(group) == 1 {
		return
	}
	if paid := min(owed, over); paid > 0 {
		for _, i := range group {
			part := scale(paid, i.over, over)
			i.credit -= part
			i.over -= part
		}
		owed -= paid
	}
	shares := starved.sharesLosses() && sharing > 1
	starved.settled = shares || owed <= 0
	if owed <= 0 || !shares {
		return
	}
	for _, i := range group {
		if i.sharesLosses() {
			i.credit = max(i.credit-scale(owed, i.request, request), min(i.credit, -i.request/2))
			i.shared = i.credit - i.debt
		}
	}
}

// sharesLosses reports whether the instance pays its part of what nobody had.
func (i *instance) sharesLosses() bool { return i.backlog && len(i.planned) == 0 }

// scale is whole × part / of, without overflow.
func scale(whole, part, of time.Duration) time.Duration {
	return time.Duration(float64(whole) * (float64(part) / float64(of)))
}
