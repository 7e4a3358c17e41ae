package token

import "fmt"

// Snapshot is how all stand.
func (s *Introspective) Snapshot() Snapshot {
	out := Snapshot{Instances: make([]InstanceStatus, len(s.accounts)), Clients: make([]ClientStatus, len(s.processes))}
	for n, a := range s.accounts {
		out.Instances[n] = InstanceStatus{
			Instance: a.id, Debt: a.gauge.timeOf(max(0, -a.level)), Charged: a.charged, Phase: a.phase.String(),
		}
	}
	for n, p := range s.processes {
		out.Clients[n] = ClientStatus{
			Client: p.id, Instance: p.acct.id, State: p.state, Why: s.why(p),
			Used: min(1, float64(p.last)/float64(s.window)), Budget: p.budget,
		}
		if p.holds() {
			out.SMRunning += p.acct.sm
		}
	}
	return out
}

// why says why a client waits, or what it is issued and on what grounds.
func (s *Introspective) why(p *process) string {
	a := p.acct
	switch t := s.trial; {
	case p.state == Waiting && t != nil && t.p != p:
		return "client " + t.p.id.String() + " is measured alone"
	case p.state == Waiting && t != nil:
		return "is measured alone when the others have drained"
	case p.state != Running || t != nil:
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
