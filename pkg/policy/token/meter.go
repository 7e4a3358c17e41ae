package token

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/reason"
)

// phase is the phase of an instance or the state of a GPU in Algorithm 2.
type phase int

// The phases, in ascending order. The state of a GPU is the highest phase of its SLO-sensitive instances. The stretch of
// an instance is the ratio of its launch cycle to its shortest one: see cycle.
const (
	none       phase = iota // there is no SLO-sensitive client: the other instances receive their limits
	recovery                // an SLO-sensitive instance is idle or alone: the shares of running instances grow
	contention              // several instances run, none with a large stretch: instances receive their requests
	emergency               // a stretch is too large: the SLO-sensitive instance receives its limit, the others shrink
)

// String returns the name of the phase for status output.
func (p phase) String() string {
	return [...]string{"NONE", "RECOVERY", "CONTENTION", "EMERGENCY"}[p]
}

// meteredInstance is a registered instance. Shares are fractions of the whole GPU, 0 to 1.
type meteredInstance struct {
	id             string
	sm             float64 // SM share of its processes, in percent: that of its limit
	request, limit float64
	alone          float64 // share that it uses if it runs alone and its launches are not limited
	sensitive      bool    // it has a latency objective (SLO)
	training       bool    // its limit is its request while the stretch of an SLO-sensitive instance is large
	capped         bool    // its limit is its request now
	violation      float64 // a larger stretch is an emergency
	gauge          gauge
	cycle          cycle

	phase       phase
	scaledShare float64 // share according to Algorithm 2 (R_last)
	demand      float64 // share that it is expected to use in the next period
	reserved    float64 // share that is reserved for it
	issued      float64 // share that determines its tokens
	raised      float64 // the same with its part of the share that no instance is issued

	level         float64       // blocks that its clients may launch now; negative: debt
	accrued       time.Duration // when level was last updated
	owed          float64       // GPU time, in seconds, that it lost in trials of others; negative if its own trials gained more
	blocks        float64       // blocks launched since the last issue
	rates         []float64     // rate window: share used in each period, newest first
	launched      time.Duration // when it was last seen to launch
	charged       time.Duration // time that all blocks launched so far take on an otherwise idle GPU
	clients       []*meteredClient
	activeClients int // number of active clients; set by count
}

// meteredClient is one process of an instance.
type meteredClient struct {
	id             ClientID
	inst           *meteredInstance
	state          State
	since          time.Duration // when it started to wait, or was granted its lease
	lease          uint32
	requestPending bool   // requested while draining or suspended
	budget         uint64 // the last budget issued
	launches       uint64 // launches and blocks at the last sample
	blocks         uint64
	run            run
	used           time.Duration // time that its blocks of the current window take on an otherwise idle GPU
	usedLastWindow time.Duration // the same for the last full window
	reason         reason.Reason
}

func (c *meteredClient) holdsLease() bool { return c.state == Running || c.state == Draining }

// runs reports whether a client of the instance has a lease that is not revoked.
func (i *meteredInstance) runs() bool {
	return slices.ContainsFunc(i.clients, func(c *meteredClient) bool { return c.state == Running })
}

// pushRate adds the share that was used in a period to the rate window, and removes the oldest one.
func (i *meteredInstance) pushRate(rate float64) {
	copy(i.rates[1:], i.rates)
	i.rates[0] = rate
}

// trial is a measurement of an instance alone on the GPU.
type trial struct {
	client   *meteredClient
	start    time.Duration
	granted  bool          // the client got its lease
	end      time.Duration // when that lease is to be revoked
	blocks   uint64        // the client's blocks before the trial
	launches uint64        // the client's kernel launches before the trial
}

// meter holds the instances and clients of a GPU and the counters of their launches.
type meter struct {
	params    IntrospectiveParameters
	now       time.Duration
	ticked    time.Duration      // last issue of tokens
	instances []*meteredInstance // ordered by ID
	clients   []*meteredClient   // ordered by ID
	trial     *trial             // the trial in progress, or nil
}

// findInstance returns the index of an instance in s.instances, or where to insert it.
func (s *meter) findInstance(id string) (int, bool) {
	return slices.BinarySearchFunc(s.instances, id, func(i *meteredInstance, id string) int { return strings.Compare(i.id, id) })
}

// findClient returns the index of a client in s.clients, or where to insert it.
func (s *meter) findClient(id ClientID) (int, bool) {
	return slices.BinarySearchFunc(s.clients, id, func(c *meteredClient, id ClientID) int { return cmp.Compare(c.id, id) })
}

// find returns a client, or nil.
func (s *meter) find(id ClientID) *meteredClient {
	if at, ok := s.findClient(id); ok {
		return s.clients[at]
	}
	return nil
}

// addInstance adds an instance, or changes its slice.
func (s *meter) addInstance(ev AddInstance) {
	at, ok := s.findInstance(ev.Instance)
	if !ok {
		idle := -time.Duration(s.params.rateWindow) * s.params.period
		s.instances = slices.Insert(s.instances, at, &meteredInstance{
			id: ev.Instance, rates: make([]float64, s.params.rateWindow), accrued: s.now, launched: s.now + idle,
		})
	}
	i := s.instances[at]
	largest := ev.Slice.LargestSMPct()
	alone := largest / 100
	if ev.Unenforced {
		alone = 1
	}
	if i.alone != alone {
		i.gauge = gauge{}
	}
	i.sm, i.alone, i.sensitive = largest, alone, ev.SLO > 0
	if i.violation = s.params.violation; ev.LLM {
		i.violation = s.params.llm
	}
	i.request, i.limit = ev.Slice.SMPct/100*ev.Slice.QuotaRequest, largest/100*ev.Slice.QuotaLimit
	i.scaledShare = min(max(i.scaledShare, i.request), i.limit)
	i.issued = i.scaledShare
	i.training = ev.Training
}

// removeInstance removes an instance and its clients.
func (s *meter) removeInstance(id string) {
	at, ok := s.findInstance(id)
	if !ok {
		return
	}
	removed := s.instances[at]
	s.instances = slices.Delete(s.instances, at, at+1)
	s.clients = slices.DeleteFunc(s.clients, func(c *meteredClient) bool { return c.inst == removed })
}

// addClient adds a client, unless it is known or its instance is not.
func (s *meter) addClient(ev AddClient) {
	at, ok := s.findInstance(ev.Instance)
	place, known := s.findClient(ev.Client)
	if !ok || known {
		return
	}
	c := &meteredClient{id: ev.Client, inst: s.instances[at]}
	s.clients = slices.Insert(s.clients, place, c)
	c.inst.clients = append(c.inst.clients, c)
}

// count counts the active clients of each instance.
func (s *meter) count() {
	for _, i := range s.instances {
		i.activeClients = 0
		for _, c := range i.clients {
			if c.state.active() {
				i.activeClients++
			}
		}
	}
}

// empty reports whether the instance's rate window is empty: no client is active, and none has
// launched for the length of the window.
func (s *meter) empty(i *meteredInstance) bool {
	return i.activeClients == 0 && s.now-i.launched >= time.Duration(s.params.rateWindow)*s.params.period
}

// quiet reports whether the instance has been idle for a quarter of the rate window.
func (s *meter) quiet(i *meteredInstance) bool {
	return i.activeClients == 0 && s.now-i.launched >= time.Duration(s.params.rateWindow)*s.params.period/4
}

// objectivesQuiet reports whether all SLO-sensitive instances are quiet.
func (s *meter) objectivesQuiet() bool {
	return !slices.ContainsFunc(s.instances, func(i *meteredInstance) bool { return i.sensitive && len(i.clients) > 0 && !s.quiet(i) })
}

// wouldDisturb reports whether a trial of the instance would delay an SLO-sensitive instance.
func (s *meter) wouldDisturb(i *meteredInstance) bool {
	return slices.ContainsFunc(s.instances, func(o *meteredInstance) bool { return o != i && o.sensitive && !s.empty(o) })
}

// sample updates a client's counters and charges the new blocks to its instance.
func (s *meter) sample(c *meteredClient, ev Sample) {
	i := c.inst
	if ev.Launches > c.launches || ev.Blocks > c.blocks {
		i.launched = s.now
	}
	if ev.Blocks > c.blocks {
		blocks := float64(ev.Blocks - c.blocks)
		i.blocks += blocks
		if s.limited(i) {
			i.level -= blocks
		}
		c.used += i.gauge.timeOf(blocks)
		i.charged += i.gauge.timeOf(blocks)
		if i.gauge.speed == 0 { // no trial has measured its speed
			i.gauge.due = min(i.gauge.due, s.now+trialPatience)
		}
	}
	c.launches, c.blocks = ev.Launches, ev.Blocks
}

// limited reports whether tokens limit the instance's launches. They do, unless its issued share is as large as the share
// that it uses alone, its speed has not been measured, or its trial is in progress.
func (s *meter) limited(i *meteredInstance) bool {
	return i.gauge.speed > 0 && i.issued < i.alone-shareEps && (s.trial == nil || s.trial.client.inst != i)
}

// shareEps is the allowed rounding error of shares of a GPU.
const shareEps = 1e-9
