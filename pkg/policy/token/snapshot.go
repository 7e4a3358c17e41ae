package token

import (
	"fmt"
	"time"
)

// ClientStatus is how a client stands.
type ClientStatus struct {
	Client   ClientID
	Instance string
	State    State
	Used     float64 // share of the last full window that it was charged, 0 to 1
	Why      string  // reason of the last decision about it

	// Of Introspective only.
	Phase  string // of Algorithm 2: the instance's own if it is SLO-sensitive, else the GPU's
	Budget uint64 // blocks that it may have launched since it connected
}

// said is a reason that is put in words when somebody asks for it: with hundreds
// of clients that would be most of the work.
func said(format string, args ...any) func() string {
	return func() string { return fmt.Sprintf(format, args...) }
}

// Clients is how all clients stand, by id.
func (s *Scheduler) Clients() []ClientStatus {
	out := make([]ClientStatus, len(s.clients))
	for n, c := range s.clients {
		out[n] = ClientStatus{
			Client: c.id, Instance: c.inst.id, State: c.state, Why: c.why(),
			Used: min(1, float64(c.last)/float64(s.window)),
		}
	}
	return out
}

// Debt is what the instance carried over its limit into this window.
func (s *Scheduler) Debt(instance string) time.Duration {
	if at, ok := s.findInstance(instance); ok {
		return s.instances[at].debt
	}
	return 0
}

// Charged is all the GPU time that the instance was charged.
func (s *Scheduler) Charged(instance string) time.Duration {
	if at, ok := s.findInstance(instance); ok {
		return s.instances[at].charged
	}
	return 0
}

// SMRunning is the percent of SMs that leases hold now, those draining
// included.
func (s *Scheduler) SMRunning() float64 {
	sum := 0.0
	for _, c := range s.clients {
		if c.holds() {
			sum += c.inst.slice.SMPct
		}
	}
	return sum
}

// Window is the length of a window.
func (s *Scheduler) Window() time.Duration { return s.window }
