package token

import (
	"fmt"
	"time"
)

// Clients is how all clients stand, by id.
func (s *Introspective) Clients() []ClientStatus {
	out := make([]ClientStatus, len(s.processes))
	for n, p := range s.processes {
		out[n] = ClientStatus{
			Client: p.id, Instance: p.acct.id, State: p.state, Why: s.why(p),
			Used: min(1, float64(p.last)/float64(s.window)), Phase: p.acct.phase.String(), Budget: p.budget,
		}
	}
	return out
}

// why says what a client is issued, and on what grounds.
func (s *Introspective) why(p *process) string {
	a := p.acct
	if p.state != Running || s.trial != nil {
		return p.why
	}
	if !s.metered(a) {
		return p.why + ", none needed"
	}
	text := fmt.Sprintf("%.3f of the GPU in %v, request %.3f, limit %.3f", a.issue, a.phase, a.request, a.limit)
	if a.cycle.stretch > 0 {
		text += fmt.Sprintf(", cycle stretched %.2f times", a.cycle.stretch)
	}
	return text
}

// Debt is how long the instance has to wait for what it launched beyond its
// tokens: in time alone on the GPU.
func (s *Introspective) Debt(instance string) time.Duration {
	if at, ok := s.findAccount(instance); ok {
		a := s.accounts[at]
		return a.gauge.timeOf(max(0, -a.level))
	}
	return 0
}

// Charged is the time that all blocks of the instance take alone on the GPU, but
// for those launched before that was known.
func (s *Introspective) Charged(instance string) time.Duration {
	if at, ok := s.findAccount(instance); ok {
		return s.accounts[at].charged
	}
	return 0
}

// SMRunning is the sum of the SM shares of the clients that hold leases, which
// under this policy may exceed 100.
func (s *Introspective) SMRunning() float64 {
	sum := 0.0
	for _, p := range s.processes {
		if p.holds() {
			sum += p.acct.sm
		}
	}
	return sum
}

// Window is the length of a window.
func (s *Introspective) Window() time.Duration { return s.window }
