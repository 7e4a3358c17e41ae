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
// got and not what it could do. So now and then an instance has a trial: all
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
// at most 4% of the time, and the instance pays the others back.

const (
	trialShort    = 20 * time.Millisecond  // length of a first trial
	trialLong     = 100 * time.Millisecond // and of the longest
	trialRest     = 25                     // lengths of a trial between it and the next
	trialMost     = 16 * time.Second       // longest pause between two trials of an instance
	trialPatience = 100 * time.Millisecond // how long others may take to drain, and SLO-sensitive ones to pause
	sameSpeed     = 0.1                    // part by which a speed may differ from what was known and still be the same
	repayOver     = 500 * time.Millisecond // in which what trials cost the others comes back
)

// gauge is what is known of how fast the GPU works for an instance.
type gauge struct {
	speed  float64       // blocks a second alone; 0 is not known
	rates  []float64     // what the last trials found
	trials int           // trials that ended
	length time.Duration // of the next trial; 0 is trialShort
	pause  time.Duration // until then
	due    time.Duration // when it is
}

func (g *gauge) untried() bool { return g.speed == 0 && g.trials == 0 }

// timeOf is how long the GPU alone takes for so many blocks, 0 if not known.
func (g *gauge) timeOf(blocks float64) time.Duration {
	if g.speed == 0 {
		return 0
	}
	return time.Duration(blocks / g.speed * float64(time.Second))
}

// trial is one that is under way.
type trial struct {
	client *meteredClient
	began  time.Duration
	ran    bool          // its lease is out
	end    time.Duration // when that is asked back
	blocks uint64        // launched before
	starts uint64        // kernels launched before
}

// stepTrial begins a trial, goes on with it or gives it up.
func (s *introspective) stepTrial() {
	t := s.trial
	if t == nil {
		if t = s.choose(); t == nil {
			return
		}
		s.trial = t
		for _, c := range s.clients {
			if c.state == Running {
				s.revoke(c, "client "+t.client.id.String()+" is measured alone")
			}
		}
	}
	switch {
	case !slices.Contains(s.clients, t.client) || !t.client.state.active(): // it wants nothing any more
		t.client.inst.gauge.due = s.now + trialPatience
		s.endTrial()
	case s.now-t.began > trialPatience+trialLong: // somebody's work does not end
		t.client.inst.gauge.failed(s.now)
		s.endTrial()
		s.allot(t.client.inst)
	case t.client.inst.gauge.speed > 0 && s.disturbed(t.client.inst):
		t.client.inst.gauge.due = s.now + trialPatience
		s.endTrial()
		s.allot(t.client.inst)
	case t.ran && s.now >= t.end && t.client.state == Running:
		s.revoke(t.client, "it has been measured")
	case !t.ran && !slices.ContainsFunc(s.clients, (*meteredClient).holds):
		t.ran, t.end = true, s.now+t.client.inst.gauge.length
		t.blocks, t.starts = t.client.blocks, t.client.launches
		s.grant(t.client, "it is measured alone")
	}
}

// choose finds who is to have a trial now: first an instance that never had one,
// then the one that has been due for longest.
func (s *introspective) choose() *trial {
	var best *meteredClient
	for _, c := range s.clients {
		if s.mayTry(c) && (best == nil || c.inst.gauge.before(&best.inst.gauge)) {
			best = c
		}
	}
	if best == nil {
		return nil
	}
	best.inst.gauge.length = max(best.inst.gauge.length, trialShort)
	return &trial{client: best, began: s.now}
}

// mayTry says whether a client can have a trial now. If its instance's speed is
// known it has none unless it is held to tokens, and not while an SLO-sensitive
// instance runs; if it is not, it waits for that only so long.
func (s *introspective) mayTry(c *meteredClient) bool {
	i := c.inst
	switch {
	case c.state != Waiting && c.state != Running, s.now < i.gauge.due:
		return false
	case i.sensitive && i.gauge.speed > 0 && c.state == Running:
		return false // in the middle of an iteration
	case i.gauge.speed > 0:
		return s.limited(i) && s.now >= s.nextTrial && !s.disturbed(i)
	}
	return s.now-c.since >= trialPatience || !s.disturbed(i)
}

func (g *gauge) before(o *gauge) bool {
	if g.untried() != o.untried() {
		return g.untried()
	}
	return g.due < o.due
}

// disturbed says whether a trial of the instance would keep an SLO-sensitive
// one waiting.
func (s *introspective) disturbed(i *meteredInstance) bool {
	return slices.ContainsFunc(s.instances, func(o *meteredInstance) bool { return o != i && o.sensitive && !s.empty(o) })
}

// endTrial ends a trial: everybody goes on as before.
func (s *introspective) endTrial() {
	i := s.trial.client.inst
	s.nextTrial = s.now + trialRest*i.gauge.length
	s.creditTrial()
	s.trial = nil
	i.blocks = 0
	s.ticked = s.now
	s.accrue(i)
}

// creditTrial notes what the others missed during a trial, and what it brought
// its instance beyond its share.
func (s *introspective) creditTrial() {
	t := s.trial
	for _, i := range s.instances {
		if i == t.client.inst || i.busy == 0 || i.gauge.speed == 0 {
			continue
		}
		missed := i.issued * (s.now - t.began).Seconds()
		i.owed += missed
		i.accrued = s.now
	}
	if i := t.client.inst; t.ran && i.gauge.speed > 0 {
		i.owed -= i.gauge.timeOf(float64(t.client.blocks-t.blocks)).Seconds()*i.alone - i.issued*(s.now-t.began).Seconds()
		i.accrued = s.now
	}
}

// takeTrial takes the measurement, if the lease was a trial's.
func (s *introspective) takeTrial(c *meteredClient, used time.Duration, more bool) bool {
	t := s.trial
	if t == nil || t.client != c || !t.ran {
		return false
	}
	g := &c.inst.gauge
	blocks, starts := c.blocks-t.blocks, c.launches-t.starts
	if blocks > 0 && used >= shortestRun {
		g.measure(float64(blocks), used.Seconds(), s.now)
		if klc := &c.inst.cycle; starts > 0 && (!more || klc.best == 0) {
			// Held to its limit, the most it can have, a cycle takes longer.
			klc.best = float64(used) / float64(starts) * c.inst.alone / c.inst.limit
		}
	} else {
		g.failed(s.now)
	}
	c.run.on = false
	s.endTrial()
	return true
}

// failed notes that a trial brought nothing.
func (g *gauge) failed(now time.Duration) {
	g.trials++
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
	g.trials++
	if known > 0 && rate > known*(1-sameSpeed) && rate < known*(1+sameSpeed) {
		g.wait(2*g.pause, now)
		return
	}
	if known > 0 {
		g.length = min(2*g.length, trialLong)
	}
	g.wait(0, now)
}

// # The launch cycle
//
// The kernel launch cycle (KLC) is how long an iteration takes from its first
// launch to its last. The paper's code counts the 5 ms periods between two
// periods without a launch, and so takes iterations that follow each other for
// a long one. Here it is the time per launch: over a run, which is all that a
// client does between two times at which it is idle, its GPU time measured; and
// where a run goes on, over parts of it. That is the cycle of an
// iteration divided by its number of launches, and their ratio is the same.

const (
	shortestRun = time.Millisecond     // a shorter run is no iteration
	partPeriods = 10                   // periods of a run that give one cycle: launches are up to 12 ms ahead of the GPU
	unseenGap   = 3 * time.Millisecond // pause between iterations that does not end a run
)

// run is what a client does from one idleness to the next.
type run struct {
	on       bool
	began    time.Duration
	launches uint64        // of the client until it began
	seen     time.Duration // when the last cycle of it ended
	at       uint64        // launches of the client until then
}

// cycle is what is known of an instance's launch cycle, in time per launch.
type cycle struct {
	best     float64 // Tmin, in ns; 0 is not known
	iter     float64 // launches of a run
	stretch  float64 // T/Tmin of the last cycle; 0 is none yet
	fresh    bool    // that came since the last issue
	outliers int     // cycles in a row that were outliers
}

func (s *introspective) beginLease(c *meteredClient) {
	if !c.run.on {
		c.run = run{on: true, began: s.now, launches: c.launches, seen: s.now, at: c.launches}
	}
}

// endLease takes a run that is over for a cycle. Until its last lease began the
// time that passed counts; of that lease the time that it used.
func (s *introspective) endLease(c *meteredClient, used time.Duration, more bool) {
	if more || !c.run.on {
		return
	}
	c.run.on = false
	took, launches := c.since-c.run.began+used, c.launches-c.run.launches
	if took < shortestRun || launches == 0 || !c.inst.sensitive {
		return
	}
	if c.run.seen > c.run.began {
		return // its parts have been observed
	}
	klc := &c.inst.cycle
	klc.iter = float64(launches)
	klc.observe(float64(took)/float64(launches), true, s.params)
}

// observePart takes a part of a run that goes on for a cycle.
func (s *introspective) observePart(c *meteredClient) {
	took, launches := s.now-c.run.seen, c.launches-c.run.at
	klc := &c.inst.cycle
	if !c.run.on || !c.inst.sensitive || launches == 0 || took < partPeriods*s.params.period {
		return
	}
	first := c.run.seen == c.run.began
	c.run.seen, c.run.at = s.now, c.launches
	each := float64(took) / float64(launches)
	if klc.iter > 0 {
		each = max(each-float64(unseenGap)/klc.iter, klc.best)
	}
	klc.observe(each, !first, s.params)
}

// observe takes a cycle, in ns per launch. Whole says that it may be the best: it
// is not the first part of a run, of which launches are ahead of the GPU.
func (klc *cycle) observe(each float64, whole bool, params parameters) {
	if klc.best == 0 && !whole {
		return
	}
	if whole && (klc.best == 0 || each < klc.best) {
		klc.best = each
	}
	stretch := max(each/klc.best, 1)
	if stretch > params.outlier && klc.outliers == 0 {
		klc.outliers++
		return
	}
	if stretch <= params.outlier {
		klc.outliers = 0
	}
	klc.stretch, klc.fresh = stretch, true
}
