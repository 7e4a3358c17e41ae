package token

import (
	"cmp"
	"slices"
	"time"
)

const (
	lightWindows   = 10       // use is averaged over this number of windows
	lightUse       = 0.75     // an instance becomes light below this part of its fair request (see fairRequest)
	lightHandovers = 1. / 10. // hand-overs to light clients and back take at most this part of a window

	maxHold = 3 * time.Millisecond // longest time for which an idle client keeps its lease
)

// usage is what an instance used in this window and in earlier ones, for the decision whether it is
// light.
type usage struct {
	earlier   []time.Duration // GPU time and hand-overs of each of the last lightWindows windows, newest last
	recent    time.Duration   // sum of earlier
	handovers time.Duration   // charged in this window for hand-overs to its light clients and back, and for long idle times
	light     bool            // its use was small at the last decision, so that it remains light for longer
}

// closeWindow moves the GPU time used in this window, and the hand-overs, to the earlier windows.
func (u *usage) closeWindow(used time.Duration) {
	if len(u.earlier) == lightWindows {
		u.recent -= u.earlier[0]
		u.earlier = slices.Delete(u.earlier, 0, 1)
	}
	u.earlier = append(u.earlier, used+u.handovers)
	u.recent += used + u.handovers
	u.handovers = 0
}

// light decides which clients are light, and charges them for what their leases cost others.
type light struct {
	*ledger
	*rounds
	handovers time.Duration // charged in this window for hand-overs to light clients and back, and for idle times
	promised  float64       // sum of the requests of the instances that have used the GPU lately, as parts of the GPU; set by selectLight
}

// selectLight selects the light clients and, if one of them needs SMs that are occupied, ends all leases of others that
// it may end. A client does not become light if it and all other waiting clients fit at once.
func (s *light) selectLight() {
	if s.round == 0 || s.allFit() {
		return
	}
	s.sumRequests()
	occupied, handovers, roundTrip := 0.0, s.handovers, 2*max(s.cost, minLead)
	waiting := 0.0 // percent of SMs that waiting clients with budget need
	for _, c := range s.clients {
		if s.occupies(c) {
			occupied += c.inst.slice.SMPct
		}
		if s.waitsWithBudget(c) {
			waiting += c.inst.slice.SMPct
		}
		if c.state == Running && c.end <= s.now {
			c.light = c.light && s.isLight(c.inst) && s.lightLease(c) >= s.minLease(c.inst)
		}
		if c.light {
			handovers += roundTrip
		}
	}
	displace := false
	for _, c := range s.clients {
		if c.overHandoverLimit = false; c.state != Waiting || c.burst >= s.round {
			continue
		}
		others := waiting
		if s.waitsWithBudget(c) {
			others -= c.inst.slice.SMPct
		}
		if s.fits(occupied, c) && (others < smEps || s.fits(occupied+others, c)) {
			continue
		}
		if !c.light && s.isLight(c.inst) {
			c.light = handovers+roundTrip <= time.Duration(lightHandovers*float64(s.window))
			c.overHandoverLimit = !c.light
			if c.light {
				handovers += roundTrip
			}
		}
		displace = displace || c.light && !s.fits(occupied, c)
	}
	if !displace {
		return
	}
	for _, c := range s.running {
		if !c.light && !c.urgent && c.end > s.now && !c.inst.hasTurn(s.now-s.start) {
			c.restOfTurn = c.end - s.now
			if c.end == s.start+s.window {
				c.restOfTurn += c.cutOff
			}
			c.end, c.cutOff = s.now, 0
		}
	}
}

// waitsWithBudget reports whether the client waits and can be granted a lease in this window.
func (s *light) waitsWithBudget(c *client) bool {
	return c.state == Waiting && c.inst.remainingBudget() >= s.minBudget(c)
}

// isLight reports whether the instance's use over the last windows is small compared with its fair
// request, it misses a part of that request in this window, and it has no debt. An instance is not
// light in its first window. A light instance remains light until its use reaches its fair request.
func (s *light) isLight(i *instance) bool {
	fair, most := s.fairRequest(i), 1.0
	if !i.usage.light {
		most = lightUse
	}
	used := i.used + i.leasedTime
	i.usage.light = i.debt == 0 && i.recent+i.usage.handovers+used < time.Duration(most*float64(len(i.earlier))*float64(fair))
	return i.usage.light && min(fair-used, i.guaranteed()) >= s.minLease(i)
}

// sumRequests sets promised.
func (s *light) sumRequests() {
	s.promised = 0
	for _, i := range s.instances {
		if i.activeClients > 0 || i.used > 0 || i.recent > 0 {
			s.promised += i.slice.QuotaRequest * i.slice.SMPct / s.smLimit
		}
	}
}

// fairRequest returns the instance's request per window, or a proportionally smaller time if the
// requests of all instances that have used the GPU lately exceed the GPU.
func (s *light) fairRequest(i *instance) time.Duration {
	return time.Duration(float64(i.request) / max(1, s.promised))
}

// lightLease returns the length of the lease of a light client: a round, less the time that it has
// used since it was idle, but no more than the unserved part of its instance's fair request.
func (s *light) lightLease(c *client) time.Duration {
	burst := c.burst
	if c.holdsLease() {
		burst += s.now - c.since
	}
	return min(s.round-burst, s.fairRequest(c.inst)-c.inst.used-c.inst.leasedTime)
}

// chargeHandovers charges a light client that returns its lease, in which it used the GPU for the given time:
// two hand-overs, and the idle time that it was allowed beyond DefaultHold. DefaultHold itself counts for the
// limit on all light clients if the client returned the lease because it was idle, and used the GPU for less time
// than the lease cost. Otherwise, very short kernels could take much time from other clients.
func (s *light) chargeHandovers(c *client, used time.Duration) {
	if !c.light {
		return
	}
	lost := 2*s.cost + max(0, c.pauses.hold-DefaultHold)
	c.inst.usage.handovers += lost
	if s.handovers += lost; c.state == Running && used < lost+DefaultHold {
		s.handovers += DefaultHold
	}
}

// pauses describes a client's pauses between launches, as far as its requests after idle times show
// them.
type pauses struct {
	hold     time.Duration // how long the client should keep its lease while it is idle; 0: DefaultHold
	followed float64       // part of its leases that a request followed within maxHold of the last launch, 0 to 1
	usual    time.Duration // usual pause before such a request
}

// learn learns from a request that came after the given idle time without a lease. Under a longer
// hold, pauses that are shorter than it cause no request. A later request then says little about
// them, and has less weight.
func (p *pauses) learn(idle time.Duration) {
	switch pause := idle + cmp.Or(p.hold, DefaultHold); {
	case pause <= maxHold:
		p.followed += (1 - p.followed) / 4
		p.usual = max(pause, p.usual-p.usual/8)
	case p.hold > 0:
		p.followed -= p.followed / 128
	default:
		p.followed -= p.followed / 4
	}
	if p.hold = 0; p.followed > 0.6 {
		p.hold = min(p.usual+p.usual/4, maxHold)
	}
}

// leaseHold returns how long the client may be idle under the lease that it is granted now. Only light
// clients may be idle for longer than the default: they are charged for it.
func (c *client) leaseHold() time.Duration {
	if !c.light {
		return 0
	}
	return c.pauses.hold
}
