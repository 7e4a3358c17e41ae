package token

import (
	"cmp"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/reason"
)

// introspective shares one GPU with Dilu's fast vertical scaling (section 3.4.1, Algorithm 2).
//
// All clients that want the GPU have leases and run at the same time. Their launches are metered:
// every 5 ms, each instance is issued tokens, one per kernel block. The number of tokens lies
// between the instance's request and its limit, and depends on how much the launch cycles of the
// SLO-sensitive instances stretch. Instances with a latency objective are SLO-sensitive, all
// others are best effort.
//
// # Shares
//
// In the paper, request and limit are parts of the GPU. A slice of this project is a part of the
// SMs for a part of the time, so the request is sm_pct/100 × quota_request of the GPU, and the limit is
// sm_limit_pct/100 × quota_limit. The processes start with the SM share of the limit, which cannot change
// while they run; tokens hold the instance below it. MaxTokens, the number of blocks that the whole GPU completes for an instance
// in a period, depends on the instance's kernels and is measured (measure.go).
//
// # States
//
// Each SLO-sensitive instance has a phase. The state of the GPU is EMERGENCY if an instance is in
// that phase, otherwise CONTENTION if one is, otherwise RECOVERY. It is NONE if no client belongs
// to an SLO-sensitive instance. So an emergency ends only through the instance that raised it.
//
// Differences from Algorithm 2 as printed, and their reasons:
//
//   - The rate window of the instance is checked before T. While the instance does not run, T is
//     out of date, and an emergency would outlast its burst.
//   - While the instance runs, an emergency ends only if T has recovered and would not be a
//     violation with the tokens of the request either. As printed, it ends once T has recovered,
//     which removes the tokens that made T recover.
//   - Best-effort instances are divided by the stretch once per measured cycle, down to a floor,
//     and grow back to their request while T is good. As printed, they are divided every 5 ms, and
//     have nothing after ten periods.
//   - The limit of a training instance falls to its request as soon as an SLO-sensitive instance
//     stretches (training.go).
//   - The issued shares are made to fit the GPU (scaling.go). As printed, their sum has no bound,
//     and the driver decides.
type introspective struct {
	*meter
	*scaling
	*tokens
	*trials
	window time.Duration
	start  time.Duration // of the current window
	wake   time.Duration // time of the last WakeAt that has not come yet; 0: none
	woken  bool          // a Wake is among the events of the current Step
}

// newIntrospective returns an introspective whose first window starts at now.
func newIntrospective(c Config, p IntrospectiveParameters, now time.Duration) *introspective {
	m := &meter{params: p, now: now, ticked: now}
	t := &tokens{meter: m, lease: validLease(c.FirstLease)}
	s := &introspective{meter: m, scaling: &scaling{m}, tokens: t, trials: &trials{meter: m, tokens: t}, start: now}
	s.configure(c.Settings)
	return s
}

func (s *introspective) configure(c Settings) {
	s.window, s.start = cmp.Or(c.Window, gpu.Window), s.now
}

// Step applies the events that happened at now and then decides once. A time before the last
// Step's counts as the last Step's. Before a Wake, the caller passes a Sample of every client
// that holds a lease, and before a Return a Sample of its client. A Step with nothing but samples
// decides nothing: their effect follows with the next other event.
func (s *introspective) Step(now time.Duration, events []Event, actions []Action) []Action {
	s.now = max(s.now, now)
	s.actions, s.woken = actions, false
	s.roll()
	s.skipIdlePeriods()
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
		s.scheduleWake()
	}
	actions, s.actions = s.actions, nil
	return actions
}

// tick ends a period: it updates the rates, computes the shares and issues tokens.
func (s *introspective) tick() {
	elapsed := s.now - s.ticked
	s.ticked = s.now
	if s.trial != nil {
		return
	}
	s.count()
	for _, i := range s.instances {
		i.pushRate(i.gauge.timeOf(i.blocks).Seconds() / elapsed.Seconds() * i.alone)
		i.blocks = 0
		s.accrue(i) // at the rate of the period that ends
	}
	for _, c := range s.clients {
		c.observePart(s.now, s.params)
	}
	s.scale()
	s.fit()
	for _, i := range s.instances {
		s.allot(i)
	}
}

// skipIdlePeriods accounts for periods that passed without a wake because all clients were idle.
func (s *introspective) skipIdlePeriods() {
	for _, c := range s.clients {
		if c.state.active() {
			return
		}
	}
	past := (s.now - s.ticked) / s.params.period
	if past < 2 {
		return // the wake of the last period may still come
	}
	for _, i := range s.instances {
		for range min(past, time.Duration(len(i.rates))) {
			i.pushRate(0)
		}
		i.blocks = 0
	}
	s.ticked = s.now
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
		s.configure(ev.Settings)
		return
	case Wake:
		if s.now >= s.wake {
			s.wake = 0
		}
		s.woken = true
		return
	}
	c := s.find(ev.client())
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
		s.returnLease(c, ev)
	case Suspend:
		if c.state == Draining {
			c.state, c.reason = Suspended, reason.New(notDraining)
		}
	}
}

func (s *introspective) request(c *meteredClient) {
	switch c.state {
	case Idle:
		s.accrue(c.inst) // at the rate of an idle instance
		c.state, c.since, c.reason = Waiting, s.now, reason.New(justRequested)
	case Draining, Suspended:
		c.requestPending = true
	}
}

// returnLease ends a lease.
func (s *introspective) returnLease(c *meteredClient, ev Return) {
	if !c.holdsLease() && c.state != Suspended || ev.Lease != c.lease {
		return
	}
	used := min(max(ev.Used, 0), s.now-c.since)
	wantsMore := ev.WantsMore || c.requestPending
	if !s.evaluateTrial(c, used, wantsMore) {
		c.endRun(used, wantsMore, s.params)
	}
	c.state, c.lease, c.requestPending, c.reason = Idle, 0, false, reason.Reason{}
	if wantsMore {
		s.request(c)
	}
}

// scheduleWake requests a wake at the end of the period or of the trial while a client is active.
func (s *introspective) scheduleWake() {
	overdue := s.wake != 0 && s.wake <= s.now // the wake is on its way
	if overdue || !slices.ContainsFunc(s.clients, func(c *meteredClient) bool { return c.state.active() }) {
		return
	}
	at, code := s.ticked+s.params.period, periodEnd
	if at <= s.now {
		at = s.now + s.params.period
	}
	if t := s.trial; t != nil && s.now < t.end && t.end < at {
		at, code = t.end, trialEnd
	}
	if at != s.wake {
		s.wake = at
		s.actions = append(s.actions, WakeAt{At: at, Reason: reason.New(code)})
	}
}

// roll closes the windows that have ended by now.
func (s *introspective) roll() {
	past := (s.now - s.start) / s.window
	if past == 0 {
		return
	}
	for _, c := range s.clients {
		c.usedLastWindow, c.used = c.used, 0
		if past > 1 {
			c.usedLastWindow = 0
		}
	}
	s.start += past * s.window
}

// Snapshot returns the state of all instances and clients.
func (s *introspective) Snapshot() Snapshot {
	out := Snapshot{Instances: make([]InstanceStatus, len(s.instances)), Clients: make([]ClientStatus, len(s.clients))}
	for n, i := range s.instances {
		out.Instances[n] = InstanceStatus{
			Instance: i.id, Debt: i.gauge.timeOf(max(0, -i.level)), Charged: i.charged, Phase: i.phase.String(),
		}
	}
	for n, c := range s.clients {
		out.Clients[n] = ClientStatus{
			Client: c.id, Instance: c.inst.id, State: c.state, Reason: s.reasonFor(c),
			Used: min(1, float64(c.usedLastWindow)/float64(s.window)), Budget: c.budget,
		}
		if c.holdsLease() {
			out.SMRunning += c.inst.sm
		}
	}
	return out
}

// reasonFor returns the reason why a client waits, or its share and the grounds for it.
func (s *introspective) reasonFor(c *meteredClient) reason.Reason {
	i := c.inst
	switch t := s.trial; {
	case c.state == Waiting && t != nil && t.client != c:
		return t.otherReason()
	case c.state == Waiting && t != nil:
		return reason.New(waitingForDrain)
	case c.state != Running || t != nil:
		return c.reason
	}
	if !s.limited(i) {
		return reason.New(i.unmetered(nil))
	}
	r := reason.New(metered, reason.Number("issued", i.issued), reason.Text("phase", i.phase.String()), reason.Number("request", i.request), reason.Number("limit", i.currentLimit()))
	if i.cycle.stretch > 0 {
		r = r.With(reason.Number("stretch", i.cycle.stretch))
	}
	return r
}
