package queue

import "time"

// Limits bound what one tenant may have on the GPUs (LALB, section VI). What
// would exceed a limit waits before the policy sees it, oldest first.
type Limits struct {
	Slots int     // invocations admitted at once; 0 is no limit
	Mem   int64   // bytes of GPU memory of those; 0 is no limit
	Time  float64 // share of all slots' time in each period; 0 is no limit
}

// period is how long a tenant's GPU time is counted before it begins anew.
const period = 10 * time.Second

// limits admits invocations to a policy.
type limits struct {
	Limits
	policy    Policy
	functions []Function
	tenants   []tenant
	slots     float64 // of all GPUs
	begin     time.Duration
	passed    []Event
}

type tenant struct {
	admitted int
	mem      int64
	spent    time.Duration // GPU time charged in this period
	waits    []Event
}

// limited puts limits before a policy; without any it is the policy.
func limited(c Config, p Policy) Policy {
	if c.Limits == (Limits{}) {
		return p
	}
	l := &limits{Limits: c.Limits, policy: p, functions: c.Functions, slots: float64(c.GPUs)}
	if !OneAtATime(c.Policy) {
		l.slots *= float64(c.Concurrency)
	}
	for i := range c.Functions {
		for int(c.Functions[i].Tenant) >= len(l.tenants) {
			l.tenants = append(l.tenants, tenant{})
		}
	}
	return l
}

// Step hands on what may go. Time is charged at admission as it is expected to
// be with everything warm.
func (l *limits) Step(now time.Duration, events []Event, actions []Action) []Action {
	if now-l.begin >= period {
		l.begin += (now - l.begin) / period * period
		for i := range l.tenants {
			l.tenants[i].spent = 0
		}
	}
	l.passed = l.passed[:0]
	for _, ev := range events {
		switch ev.Kind {
		case Arrived:
			t := l.of(ev.Function)
			t.waits = append(t.waits, ev)
			continue
		case Completed:
			t := l.of(ev.Function)
			t.admitted--
			t.mem -= l.functions[ev.Function].Mem
		}
		l.passed = append(l.passed, ev)
	}
	late := false
	for again := true; again; {
		for i := range l.tenants {
			late = l.admit(&l.tenants[i]) || late
		}
		begin := len(actions)
		actions = l.policy.Step(now, l.passed, actions)
		again = l.rejected(actions[begin:])
		l.passed = l.passed[:0]
	}
	if late {
		actions = append(actions, Action{Kind: Wake, GPU: none, Container: none, At: l.begin + period,
			Reason: Reason{Rule: "a tenant has had its share of GPU time"}})
	}
	return actions
}

// rejected gives tenants back what rejected invocations were admitted with.
func (l *limits) rejected(actions []Action) (some bool) {
	for i := range actions {
		if a := &actions[i]; a.Kind == Reject {
			t, f := l.of(a.Function), &l.functions[a.Function]
			t.admitted--
			t.mem -= f.Mem
			t.spent -= f.Warm
			some = true
		}
	}
	return some
}

func (l *limits) of(function int32) *tenant { return &l.tenants[l.functions[function].Tenant] }

// admit lets a tenant's invocations go on, oldest first; late says that time is
// what keeps the next one. One that needs more memory than the limit goes alone.
func (l *limits) admit(t *tenant) (late bool) {
	for len(t.waits) > 0 {
		f := &l.functions[t.waits[0].Function]
		switch {
		case l.Slots > 0 && t.admitted >= l.Slots:
			return false
		case l.Mem > 0 && t.mem+f.Mem > l.Mem && t.admitted > 0:
			return false
		case l.Time > 0 && float64(t.spent) >= l.Time*l.slots*float64(period):
			return true
		}
		t.admitted++
		t.mem += f.Mem
		t.spent += f.Warm
		l.passed = append(l.passed, t.waits[0])
		t.waits = t.waits[1:]
	}
	return false
}
