package token

import (
	"math"
	"time"
)

// Unlimited is the budget of a client that is not metered.
const Unlimited uint64 = math.MaxUint64

// For how many periods tokens can be used. Counters are read a little late and
// wakes come late, so that of one period's tokens some would always be lost; and
// processes that share tokens alike may not all use their part.
const tokensLast, tokensLastMost = 2, 8

// skip lets periods pass in which everybody was idle and nobody was woken.
func (s *Introspective) skip() {
	for _, p := range s.processes {
		if p.state.active() {
			return
		}
	}
	past := (s.now - s.ticked) / s.params.Period
	if past < 2 {
		return // the wake of the last period is still to come
	}
	for _, a := range s.accounts {
		for range min(past, time.Duration(len(a.rates))) {
			a.shift(0)
		}
		a.blocks = 0
	}
	s.ticked = s.now
}

// shift moves the rate window on by one period.
func (a *account) shift(rate float64) {
	copy(a.rates[1:], a.rates)
	a.rates[0] = rate
}

// sample takes over a process's counters.
func (s *Introspective) sample(p *process, ev Sample) {
	a := p.acct
	if ev.Launches > p.launches || ev.Blocks > p.blocks {
		a.launched = s.now
	}
	if ev.Blocks > p.blocks {
		blocks := float64(ev.Blocks - p.blocks)
		a.blocks += blocks
		if s.metered(a) {
			a.level -= blocks
		}
		p.used += a.gauge.timeOf(blocks)
		a.charged += a.gauge.timeOf(blocks)
		if a.gauge.speed == 0 { // a trial before found nothing to measure
			a.gauge.due = min(a.gauge.due, s.now+trialPatience)
		}
	}
	p.launches, p.blocks = ev.Launches, ev.Blocks
}

// tick ends a period: it looks at what ran, works out the shares and issues
// tokens.
func (s *Introspective) tick() {
	elapsed := s.now - s.ticked
	s.ticked = s.now
	if s.trial != nil {
		return
	}
	s.count()
	for _, a := range s.accounts {
		a.shift(a.gauge.timeOf(a.blocks).Seconds() / elapsed.Seconds() * a.alone)
		a.blocks = 0
		s.accrue(a) // at the rate until now
	}
	for _, p := range s.processes {
		s.look(p)
	}
	s.scale()
	s.fit()
	for _, a := range s.accounts {
		s.allot(a)
	}
}

// metered says whether the instance's launches are held to its tokens. Who may
// have all that it could have alone is not, nor who is not known yet.
func (s *Introspective) metered(a *account) bool {
	return a.gauge.speed > 0 && a.issue < a.alone-shareEps && (s.trial == nil || s.trial.p.acct != a)
}

// accrue adds the tokens that have come since the last time. What is not used
// expires; what was used too much, a kernel being launched as a whole, is debt.
func (s *Introspective) accrue(a *account) {
	since := s.now - a.accrued
	a.accrued = s.now
	periods := time.Duration(max(tokensLast, a.busy))
	if a.busy > 0 {
		periods = max(periods, since/s.params.Period+1) // woken late: it has waited for these
	}
	keep := min(periods, tokensLastMost) * s.params.Period
	share := a.issue + a.settle(since)
	if !s.metered(a) {
		share, a.level, since = a.issue, 0, s.params.Period
	}
	rate := share / a.alone * a.gauge.speed // of what the whole GPU would do
	a.level = min(a.level+rate*since.Seconds(), rate*keep.Seconds()+1)
}

// settle is the share by which a trial is made good now: all that is owed in
// some time, as long as it leaves the instance half of its own.
func (a *account) settle(since time.Duration) (share float64) {
	share = max(a.owed/settleOver.Seconds(), -a.issue/2)
	a.owed -= share * min(since, settleOver).Seconds()
	return share
}

// allot issues an instance's tokens to those of its processes that run: to all
// alike, and what cannot be divided to the ones that have launched least.
func (s *Introspective) allot(a *account) {
	var running []*process
	for _, p := range a.processes {
		if p.state == Running {
			running = append(running, p)
		}
	}
	if len(running) == 0 {
		return
	}
	each, odd, reason := Unlimited, 0, a.unmetered(s.trial)
	if s.metered(a) {
		reason = [...]string{"its tokens in NONE", "its tokens in EMERGENCY", "its tokens in RECOVERY", "its tokens in CONTENTION"}[a.phase]
		tokens := uint64(max(a.level, 0))
		each, odd = tokens/uint64(len(running)), int(tokens%uint64(len(running)))
	}
	for _, p := range running {
		budget := Unlimited
		if each != Unlimited {
			budget = p.blocks + each
			if rank(p, running) < odd {
				budget++
			}
		}
		if budget != p.budget {
			p.budget = budget
			s.actions = append(s.actions, Budget{Client: p.id, Blocks: budget, Reason: reason})
		}
	}
}

// unmetered says why the instance is not held to tokens, if it is not.
func (a *account) unmetered(t *trial) string {
	switch {
	case t != nil && t.p.acct == a:
		return "it is measured alone"
	case a.gauge.speed == 0:
		return "it has not been measured"
	}
	return "it may have all that it could have alone"
}

// rank is how many of them have launched less than that one.
func rank(p *process, all []*process) (n int) {
	for _, o := range all {
		if o.blocks < p.blocks || o.blocks == p.blocks && o.id < p.id {
			n++
		}
	}
	return n
}
