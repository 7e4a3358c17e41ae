package token

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// parameters are the numbers that introspective goes by.
type parameters struct {
	// Of Algorithm 2. The paper names them; the values are those of Dilu's
	// published code, which compares them with T/Tmin, the stretch: one more
	// than the paper's ΔT.
	period    time.Duration // between two issues of tokens (3.4.1)
	violation float64       // η_violation: a stretch above it is an emergency; 1.3 for LLM decoding
	outlier   float64       // a stretch above it counts from the second in a row
	recovery  float64       // a stretch below it is as good as none
	increase  float64       // η_increase: growth a period

	// Not given in print.
	rateWindow int     // periods in a rate window (public code: 100, looked at after 10 to 120)
	floor      float64 // part of its request that an emergency leaves a best-effort instance (public code: 0.01)
}

// published are the values that Dilu was evaluated with, and ours for what it
// leaves open: a rate window as long as a usual scheduling window, and a floor
// with which training makes visible progress.
var published = parameters{
	period: 5 * time.Millisecond, violation: 1.6, outlier: 4, recovery: 1.2, increase: 1.3,
	rateWindow: 20, floor: 0.1,
}

// introspective shares one GPU by Dilu's fast vertical scaling (section 3.4.1,
// Algorithm 2). A client that asks gets a lease, and all run at once; what each
// may launch is metered: every 5 ms an instance is issued tokens, one for each
// kernel block, between its request and its limit, depending on how far the
// launch cycles of the SLO-sensitive instances stretch. Instances with a latency
// objective are SLO-sensitive, all others best effort.
//
// # Shares
//
// Dilu's <request, limit> are parts of the GPU. Ours are a part of the SMs for
// a part of the time, so the request is sm_pct/100 × quota_request of the GPU,
// and the limit likewise. MaxTokens, the blocks that the whole GPU does for an
// instance in a period, depends on its kernels and is measured
// (introspective_measure.go).
//
// # States
//
// An SLO-sensitive instance is in one phase, and the GPU in a state: EMERGENCY
// if an instance is, else CONTENTION if one is, else RECOVERY, else NONE when
// no client is of an SLO-sensitive instance. So only the instance that raised
// an emergency ends it. What differs from Algorithm 2 as printed, and why:
//
//   - Whether its own window is empty is looked at before T. When nothing runs T
//     is old, and an emergency would outlive its burst.
//   - An emergency ends while the instance runs only if T is back and would be
//     no violation with the request's tokens either. As printed it ends once T
//     is back, which takes away the very tokens that brought it back.
//   - Best effort is divided by the stretch once for each cycle that is measured,
//     down to a floor, and grows back to its request while T is good. As
//     printed it is divided every 5 ms: after ten periods it has nothing.
//   - What is issued is made to fit the GPU (introspective_shares.go). As printed
//     nothing bounds the sum, and it is the driver that decides.
type introspective struct {
	params    parameters
	window    time.Duration
	lease     uint32 // the next
	now       time.Duration
	start     time.Duration      // of the current window
	ticked    time.Duration      // last issue of tokens
	wake      time.Duration      // time of the WakeAt that is out; 0 is none
	woken     bool               // by an event of the Step under way
	trial     *trial             // under way, or nil
	nextTrial time.Duration      // none of a known instance before
	instances []*meteredInstance // by id
	clients   []*meteredClient   // by id
	actions   []Action           // of the Step under way
}

// meteredInstance is what is known of an instance. Shares are of the whole GPU, 0
// to 1.
type meteredInstance struct {
	id             string
	sm             float64 // percent
	request, limit float64
	alone          float64 // the share it has when nobody else runs and no tokens bound it
	sensitive      bool
	gauge          gauge
	cycle          cycle

	phase    phase
	want     float64 // what Algorithm 2 gives it: R_last
	demand   float64 // what it can be expected to use
	reserved float64 // what is reserved for it
	issued   float64 // what it is issued

	level    float64       // blocks that its clients may launch now; negative is debt
	accrued  time.Duration // when the level was last brought up to date
	owed     float64       // seconds of the GPU that trials took from it; negative is what its own gave it
	blocks   float64       // launched since the last issue
	rates    []float64     // rate window: shares used, newest first
	launched time.Duration // when it was last seen to launch
	charged  time.Duration // time of all blocks, alone on the GPU
	clients  []*meteredClient
	busy     int // of them that want the GPU or have it; set by count
}

// meteredClient is what is known of a client.
type meteredClient struct {
	id       ClientID
	inst     *meteredInstance
	state    State
	since    time.Duration // when it began to wait, or was granted
	lease    uint32
	again    bool   // asked while draining
	budget   uint64 // the last that was issued
	launches uint64 // its counters at the last sample
	blocks   uint64
	run      run
	used     time.Duration // in this window, in time alone on the GPU
	last     time.Duration // in the last full window
	why      string
}

func (c *meteredClient) holds() bool { return c.state == Running || c.state == Draining }

// newIntrospective makes the policy; its first window starts at now.
func newIntrospective(c Config, p parameters, now time.Duration) *introspective {
	s := &introspective{
		params: p, now: now, start: now, ticked: now, lease: validLease(c.FirstLease),
	}
	s.set(c.Window)
	return s
}

func (s *introspective) set(window time.Duration) {
	if window <= 0 {
		window = gpu.Window
	}
	s.window, s.start = window, s.now
}

// Step applies what happened at an instant and then decides, once. An earlier
// now counts as the latest one. Before a Wake there should be a Sample of every
// client that holds a lease, before a Return one of the client; what follows
// from samples alone is decided with the next other event.
func (s *introspective) Step(now time.Duration, events []Event, actions []Action) []Action {
	s.now = max(s.now, now)
	s.actions, s.woken = actions, false
	s.roll()
	s.skip()
	sampled := len(events) > 0
	for _, ev := range events {
		s.apply(ev)
		_, ok := ev.(Sample)
		sampled = sampled && ok
	}
	if !sampled {
		if s.woken && s.now >= s.ticked+s.params.period {
			s.tick()
		}
		s.count()
		s.stepTrial()
		s.admit()
		s.arm()
	}
	actions, s.actions = s.actions, nil
	return actions
}

func (s *introspective) apply(ev Event) {
	switch ev := ev.(type) {
	case AddInstance:
		s.addInstance(ev)
		return
	case RemoveInstance:
		s.removeInstance(ev.Instance)
		return
	case AddClient:
		s.addClient(ev)
		return
	case Configure:
		s.set(ev.Window)
		return
	case Wake:
		if s.now >= s.wake {
			s.wake = 0
		}
		s.woken = true
		return
	}
	c := s.find(clientOf(ev))
	if c == nil {
		return
	}
	switch ev := ev.(type) {
	case RemoveClient:
		s.clients = slices.DeleteFunc(s.clients, func(o *meteredClient) bool { return o == c })
		c.inst.clients = slices.DeleteFunc(c.inst.clients, func(o *meteredClient) bool { return o == c })
	case Request:
		s.request(c)
	case Sample:
		s.sample(c, ev)
	case Return:
		s.giveBack(c, ev)
	case Suspend:
		if c.state == Draining {
			c.state, c.why = Suspended, "does not drain: nobody waits for it"
		}
	}
}

// clientOf is the client that an event is about, or 0.
func clientOf(ev Event) ClientID {
	switch ev := ev.(type) {
	case RemoveClient:
		return ev.Client
	case Request:
		return ev.Client
	case Sample:
		return ev.Client
	case Return:
		return ev.Client
	case Suspend:
		return ev.Client
	}
	return 0
}

func (s *introspective) findInstance(id string) (int, bool) {
	return slices.BinarySearchFunc(s.instances, id, func(i *meteredInstance, id string) int { return strings.Compare(i.id, id) })
}

func (s *introspective) findClient(id ClientID) (int, bool) {
	return slices.BinarySearchFunc(s.clients, id, func(c *meteredClient, id ClientID) int { return cmp.Compare(c.id, id) })
}

func (s *introspective) find(id ClientID) *meteredClient {
	if at, ok := s.findClient(id); ok {
		return s.clients[at]
	}
	return nil
}

func (s *introspective) addInstance(ev AddInstance) {
	at, ok := s.findInstance(ev.Instance)
	if !ok {
		idle := -time.Duration(s.params.rateWindow) * s.params.period
		s.instances = slices.Insert(s.instances, at, &meteredInstance{
			id: ev.Instance, rates: make([]float64, s.params.rateWindow), accrued: s.now, launched: s.now + idle,
		})
	}
	i := s.instances[at]
	sm := ev.Slice.SMPct / 100
	alone := sm
	if ev.Loose {
		alone = 1
	}
	if i.alone != alone {
		i.gauge = gauge{}
	}
	i.sm, i.alone, i.sensitive = ev.Slice.SMPct, alone, ev.SLO > 0
	i.request, i.limit = sm*ev.Slice.QuotaRequest, sm*ev.Slice.QuotaLimit
	i.want = min(max(i.want, i.request), i.limit)
	i.issued = i.want
}

func (s *introspective) removeInstance(id string) {
	at, ok := s.findInstance(id)
	if !ok {
		return
	}
	gone := s.instances[at]
	s.instances = slices.Delete(s.instances, at, at+1)
	s.clients = slices.DeleteFunc(s.clients, func(c *meteredClient) bool { return c.inst == gone })
}

func (s *introspective) addClient(ev AddClient) {
	at, ok := s.findInstance(ev.Instance)
	place, known := s.findClient(ev.Client)
	if !ok || known {
		return
	}
	c := &meteredClient{id: ev.Client, inst: s.instances[at]}
	s.clients = slices.Insert(s.clients, place, c)
	c.inst.clients = append(c.inst.clients, c)
}

// count counts, for each instance, the clients that are active.
func (s *introspective) count() {
	for _, i := range s.instances {
		i.busy = 0
		for _, c := range i.clients {
			if c.state.active() {
				i.busy++
			}
		}
	}
}

func (s *introspective) request(c *meteredClient) {
	switch c.state {
	case Idle:
		s.accrue(c.inst) // as of one that was idle until now
		c.state, c.since, c.why = Waiting, s.now, "just asked"
	case Draining, Suspended:
		c.again = true
	}
}

// giveBack ends a lease.
func (s *introspective) giveBack(c *meteredClient, ev Return) {
	if !c.holds() && c.state != Suspended || ev.Lease != c.lease {
		return
	}
	used := min(max(ev.Used, 0), s.now-c.since)
	more := ev.WantsMore || c.again
	if !s.takeTrial(c, used, more) {
		s.endLease(c, used, more)
	}
	c.state, c.lease, c.again, c.why = Idle, 0, false, ""
	if more {
		s.request(c)
	}
}

// admit grants a lease to all that wait and have something to launch with.
func (s *introspective) admit() {
	if s.trial != nil {
		return
	}
	for _, c := range s.clients {
		if c.state != Waiting {
			continue
		}
		s.accrue(c.inst)
		switch {
		case c.inst.gauge.untried():
			c.why = "is to be measured alone first"
		case s.limited(c.inst) && c.inst.level < 1:
			c.why = "its tokens are used up"
		default:
			s.grant(c, "runs beside the others, by tokens")
		}
	}
}

// grant gives a client a lease, with its budget.
func (s *introspective) grant(c *meteredClient, reason string) {
	c.state, c.since, c.lease, c.why = Running, s.now, s.lease, reason
	s.lease = validLease(s.lease + 1)
	s.beginLease(c)
	s.allot(c.inst)
	s.actions = append(s.actions, Grant{Client: c.id, Lease: c.lease, Reason: reason})
}

func (s *introspective) revoke(c *meteredClient, reason string) {
	c.state, c.why = Draining, reason
	s.actions = append(s.actions, Revoke{Client: c.id, Lease: c.lease, Reason: reason})
}

// arm asks to be woken at the end of the period, or of the trial, while anybody
// is active.
func (s *introspective) arm() {
	overdue := s.wake != 0 && s.wake <= s.now // it is on its way
	if overdue || !slices.ContainsFunc(s.clients, func(c *meteredClient) bool { return c.state.active() }) {
		return
	}
	at, why := s.ticked+s.params.period, "end of the period"
	if at <= s.now {
		at = s.now + s.params.period
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
func (s *introspective) roll() {
	past := (s.now - s.start) / s.window
	if past == 0 {
		return
	}
	for _, c := range s.clients {
		c.last, c.used = c.used, 0
		if past > 1 {
			c.last = 0
		}
	}
	s.start += past * s.window
}

// Snapshot is how all stand.
func (s *introspective) Snapshot() Snapshot {
	out := Snapshot{Instances: make([]InstanceStatus, len(s.instances)), Clients: make([]ClientStatus, len(s.clients))}
	for n, i := range s.instances {
		out.Instances[n] = InstanceStatus{
			Instance: i.id, Debt: i.gauge.timeOf(max(0, -i.level)), Charged: i.charged, Phase: i.phase.String(),
		}
	}
	for n, c := range s.clients {
		out.Clients[n] = ClientStatus{
			Client: c.id, Instance: c.inst.id, State: c.state, Why: s.why(c),
			Used: min(1, float64(c.last)/float64(s.window)), Budget: c.budget,
		}
		if c.holds() {
			out.SMRunning += c.inst.sm
		}
	}
	return out
}

// why says why a client waits, or what it is issued and on what grounds.
func (s *introspective) why(c *meteredClient) string {
	i := c.inst
	switch t := s.trial; {
	case c.state == Waiting && t != nil && t.client != c:
		return "client " + t.client.id.String() + " is measured alone"
	case c.state == Waiting && t != nil:
		return "is measured alone when the others have drained"
	case c.state != Running || t != nil:
		return c.why
	}
	if !s.limited(i) {
		return c.why + ", none needed"
	}
	text := fmt.Sprintf("%.3f of the GPU in %v, request %.3f, limit %.3f", i.issued, i.phase, i.request, i.limit)
	if i.cycle.stretch > 0 {
		text += fmt.Sprintf(", cycle stretched %.2f times", i.cycle.stretch)
	}
	return text
}
