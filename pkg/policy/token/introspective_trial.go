package token

import (
	"slices"
	"time"
)

// # What a whole GPU does
//
// MaxTokens is a constant in the paper (its section 5.2 shows how much hangs on
// it), but blocks differ by orders of magnitude. Counting launches does not
// tell: an instance that shares the GPU, or is held to its tokens, shows what it
// got and not what it could do. So an instance is tried now and then: all
// others are asked to return their leases, and when their work has ended it
// runs alone and without a budget for a moment, under a lease of its own. What
// comes back is the GPU time from its first launch to the end of its last
// (Return.Used), and its blocks: the speed is one by the other.
//
// How exact that is: for an instance that saturates the GPU with one kind of
// kernel, as the measurement of GPU time (microseconds in a trial of 20 ms). For
// one whose kernels differ, as a sample of a trial's length of its mix of
// kernels: a trial that disagrees with what was known makes the next ones
// longer, up to a scheduling window, and the middle one of three counts. For one
// that waits for its host, idle moments between its launches count as used,
// as under every lease: its share is one of what it would do alone. Trials take
// at most 4% of the time, and who was tried pays the others back.

const (
	trialShort    = 20 * time.Millisecond
	trialLong     = 100 * time.Millisecond
	trialRest     = 25                     // trials' lengths between two of them
	trialMost     = 16 * time.Second       // between two of an instance that does as before
	trialPatience = 100 * time.Millisecond // for others to drain, and for SLO-sensitive ones to pause
	agree         = 0.1                    // speeds that differ by so much are the same
	settleOver    = 500 * time.Millisecond // in which what trials cost the others comes back
)

// gauge is what is known of how fast the GPU works for an instance.
type gauge struct {
	speed  float64       // blocks a second alone; 0 is not known
	rates  []float64     // what the last trials found
	tries  int           // trials that ended
	length time.Duration // of the next trial; 0 is trialShort
	pause  time.Duration // until then
	due    time.Duration // when it is
}

func (g *gauge) untried() bool { return g.speed == 0 && g.tries == 0 }

// timeOf is how long the GPU alone takes for so many blocks, 0 if not known.
func (g *gauge) timeOf(blocks float64) time.Duration {
	if g.speed == 0 {
		return 0
	}
	return time.Duration(blocks / g.speed * float64(time.Second))
}

// trial is one that is under way.
type trial struct {
	p      *process
	began  time.Duration
	ran    bool          // its lease is out
	end    time.Duration // when that is asked back
	blocks uint64        // launched before
	starts uint64        // kernels launched before
}

// stepTrial begins, goes on with or gives up a trial.
func (s *Introspective) stepTrial() {
	t := s.trial
	if t == nil {
		if t = s.choose(); t == nil {
			return
		}
		s.trial = t
		for _, p := range s.processes {
			if p.state == Running {
				s.revoke(p, "client "+t.p.id.String()+" is measured alone")
			}
		}
	}
	switch {
	case !slices.Contains(s.processes, t.p) || !t.p.state.active(): // it wants nothing any more
		t.p.acct.gauge.due = s.now + trialPatience
		s.rest()
	case s.now-t.began > trialPatience+trialLong: // somebody's work does not end
		t.p.acct.gauge.fruitless(s.now)
		s.rest()
		s.allot(t.p.acct)
	case t.p.acct.gauge.speed > 0 && s.disturbed(t.p.acct):
		t.p.acct.gauge.due = s.now + trialPatience
		s.rest()
		s.allot(t.p.acct)
	case t.ran && s.now >= t.end && t.p.state == Running:
		s.revoke(t.p, "it has been measured")
	case !t.ran && !slices.ContainsFunc(s.processes, (*process).holds):
		t.ran, t.end = true, s.now+t.p.acct.gauge.length
		t.blocks, t.starts = t.p.blocks, t.p.launches
		s.grant(t.p, "it is measured alone")
	}
}

// choose finds who is to be tried now: first who is not known at all, then who
// has been due for longest.
func (s *Introspective) choose() *trial {
	var best *process
	for _, p := range s.processes {
		if s.mayTry(p) && (best == nil || p.acct.gauge.before(&best.acct.gauge)) {
			best = p
		}
	}
	if best == nil {
		return nil
	}
	best.acct.gauge.length = max(best.acct.gauge.length, trialShort)
	return &trial{p: best, began: s.now}
}

// mayTry says whether a client can be tried now. One that is known, and metered,
// waits for a moment in which that costs little; one that is not known only for
// a while.
func (s *Introspective) mayTry(p *process) bool {
	a := p.acct
	switch {
	case p.state != Waiting && p.state != Running, s.now < a.gauge.due:
		return false
	case a.sensitive && a.gauge.speed > 0 && p.state == Running:
		return false // in the middle of an iteration
	case a.gauge.speed > 0:
		return s.metered(a) && s.now >= s.nextTrial && !s.disturbed(a)
	}
	return s.now-p.since >= trialPatience || !s.disturbed(a)
}

func (g *gauge) before(o *gauge) bool {
	if g.untried() != o.untried() {
		return g.untried()
	}
	return g.due < o.due
}

// disturbed says whether a trial of the instance would keep an SLO-sensitive
// one waiting.
func (s *Introspective) disturbed(a *account) bool {
	return slices.ContainsFunc(s.accounts, func(o *account) bool { return o != a && o.sensitive && !s.empty(o) })
}

// rest ends a trial: everybody goes on as before.
func (s *Introspective) rest() {
	a := s.trial.p.acct
	s.nextTrial = s.now + trialRest*a.gauge.length
	s.settleTrial()
	s.trial = nil
	a.blocks = 0
	s.ticked = s.now
	s.accrue(a)
}

// settleTrial notes what the others missed meanwhile, and that who was tried
// owes it them.
func (s *Introspective) settleTrial() {
	t := s.trial
	for _, a := range s.accounts {
		if a == t.p.acct || a.busy == 0 || a.gauge.speed == 0 {
			continue
		}
		missed := a.issue * (s.now - t.began).Seconds()
		a.owed += missed
		a.accrued = s.now
	}
	if a := t.p.acct; t.ran && a.gauge.speed > 0 {
		a.owed -= a.gauge.timeOf(float64(t.p.blocks-t.blocks)).Seconds()*a.alone - a.issue*(s.now-t.began).Seconds()
		a.accrued = s.now
	}
}

// endTrial takes the measurement, if the lease was a trial's.
func (s *Introspective) endTrial(p *process, used time.Duration, more bool) bool {
	t := s.trial
	if t == nil || t.p != p || !t.ran {
		return false
	}
	g := &p.acct.gauge
	blocks, starts := p.blocks-t.blocks, p.launches-t.starts
	if blocks > 0 && used >= shortestRun {
		g.measure(float64(blocks), used.Seconds(), s.now)
		if c := &p.acct.cycle; starts > 0 && (!more || c.best == 0) {
			// The best it can have is its limit, and that takes longer.
			c.best = float64(used) / float64(starts) * p.acct.alone / p.acct.limit
		}
	} else {
		g.fruitless(s.now)
	}
	p.run.on = false
	s.rest()
	return true
}

// fruitless notes that a trial brought nothing.
func (g *gauge) fruitless(now time.Duration) {
	g.tries++
	g.wait(2*g.pause, now)
}

func (g *gauge) wait(pause, now time.Duration) {
	g.pause = min(max(pause, trialRest*g.length), trialMost)
	g.due = now + g.pause
}

// measure takes what a trial found. The speed is the middle one of the last
// three, of two the higher: a host that stalls in a trial makes it too low.
func (g *gauge) measure(blocks, seconds float64, now time.Duration) {
	rate, known := blocks/seconds, g.speed
	g.rates = append(g.rates, rate)
	if len(g.rates) > 3 {
		g.rates = g.rates[1:]
	}
	sorted := slices.Sorted(slices.Values(g.rates))
	g.speed = sorted[len(sorted)/2]
	g.tries++
	if known > 0 && rate > known*(1-agree) && rate < known*(1+agree) {
		g.wait(2*g.pause, now)
		return
	}
	if known > 0 {
		g.length = min(2*g.length, trialLong)
	}
	g.wait(0, now)
}
