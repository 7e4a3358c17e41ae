package token

import (
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/reason"
)

// trials measures the speed of the GPU for each instance.
type trials struct {
	*meter
	*tokens
	next time.Duration // earliest start of a trial of an instance whose speed is known
}

// stepTrial starts, continues or abandons a trial.
func (s *trials) stepTrial() {
	t := s.trial
	if t == nil {
		if t = s.chooseTrial(); t == nil {
			return
		}
		s.trial = t
		for _, c := range s.clients {
			if c.state == Running {
				s.revoke(c, t.otherReason())
			}
		}
	}
	switch {
	case !slices.Contains(s.clients, t.client) || !t.client.state.active(): // the client no longer wants the GPU
		t.client.inst.gauge.due = s.now + trialPatience
		s.endTrial()
	case s.now-max(t.start, t.end) > trialPatience+maxTrialLength: // work from before the trial, or of the trial, does not end
		t.client.inst.gauge.recordFailure(s.now)
		s.endTrial()
		s.allot(t.client.inst)
	case t.client.inst.gauge.speed > 0 && s.wouldDisturb(t.client.inst):
		t.client.inst.gauge.due = s.now + trialPatience
		s.endTrial()
		s.allot(t.client.inst)
	case t.granted && s.now >= t.end && t.client.state == Running:
		s.revoke(t.client, reason.New(measured))
	case !t.granted && !slices.ContainsFunc(s.clients, (*meteredClient).holdsLease):
		t.granted, t.end = true, s.now+t.client.inst.gauge.length
		t.blocks, t.launches = t.client.blocks, t.client.launches
		s.grant(t.client, measuredAlone)
	}
}

// otherReason returns the reason why others wait during the trial.
func (t *trial) otherReason() reason.Reason {
	return reason.New(otherMeasuredAlone, reason.Number("client", t.client.id), reason.Text("instance", t.client.inst.id))
}

// chooseTrial returns the next trial, or nil. Instances without any trial come first; then the instance
// that has been due for longest.
func (s *trials) chooseTrial() *trial {
	var best *meteredClient
	for _, c := range s.clients {
		if s.mayTry(c) && (best == nil || c.inst.gauge.before(&best.inst.gauge)) {
			best = c
		}
	}
	if best == nil {
		return nil
	}
	best.inst.gauge.length = max(best.inst.gauge.length, minTrialLength)
	return &trial{client: best, start: s.now}
}

// mayTry reports whether a client can have a trial now. An instance of known speed has trials only
// while tokens limit it and no SLO-sensitive instance is active. An instance of unknown speed waits
// for such a pause for at most trialPatience.
func (s *trials) mayTry(c *meteredClient) bool {
	i := c.inst
	switch {
	case c.state != Waiting && c.state != Running, s.now < i.gauge.due:
		return false
	case i.sensitive && i.gauge.speed > 0 && c.state == Running:
		return false // in the middle of an iteration
	case i.gauge.speed > 0:
		return s.limited(i) && s.now >= s.next && !s.wouldDisturb(i)
	}
	return s.now-c.since >= trialPatience || !s.wouldDisturb(i)
}

// endTrial ends a trial, after which all clients continue as before. The run of its client has ended if the trial has a
// result; otherwise, the trial is abandoned.
func (s *trials) endTrial() {
	i := s.trial.client.inst
	if s.trial.granted {
		s.trial.client.abandonTrial(s.now)
	}
	s.next = s.now + trialPauseFactor*i.gauge.length
	s.creditTrial()
	s.trial = nil
	i.blocks = 0
	s.ticked = s.now
	s.accrue(i)
}

// creditTrial records the time that the other instances missed during a trial, and the time that
// the trial gave its instance beyond its share.
func (s *trials) creditTrial() {
	t := s.trial
	for _, i := range s.instances {
		if i == t.client.inst || i.activeClients == 0 || i.gauge.speed == 0 {
			continue
		}
		missed := i.issued * (s.now - t.start).Seconds()
		i.owed += missed
		i.accrued = s.now
	}
	if i := t.client.inst; t.granted && i.gauge.speed > 0 {
		i.owed -= i.gauge.timeOf(float64(t.client.blocks-t.blocks)).Seconds()*i.alone - i.issued*(s.now-t.start).Seconds()
		i.accrued = s.now
	}
}

// evaluateTrial evaluates the measurement if the lease was the trial's. It reports whether it was.
func (s *trials) evaluateTrial(c *meteredClient, used time.Duration, wantsMore bool) bool {
	t := s.trial
	if t == nil || t.client != c || !t.granted {
		return false
	}
	g := &c.inst.gauge
	blocks, starts := c.blocks-t.blocks, c.launches-t.launches
	first := g.speed == 0
	if blocks > 0 && used >= shortestRun {
		g.measure(float64(blocks), used.Seconds(), s.now)
		if klc := &c.inst.cycle; starts > 0 && (!wantsMore || klc.best == 0 || first) {
			// The instance has at most its limit outside trials, so its best cycle is longer. Before the first
			// result, it had no limit.
			klc.best = float64(used) / float64(starts) * c.inst.alone / c.inst.limit
		}
	} else {
		g.recordFailure(s.now)
	}
	c.run.active = false
	s.endTrial()
	return true
}
