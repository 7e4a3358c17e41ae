package token

import "time"

// phase is a state of Algorithm 2.
type phase int

// The phases of an instance, and the states of a GPU.
const (
	none       phase = iota // no SLO-sensitive process is there
	emergency               // cycles stretch: SLO-sensitive to its limit, the others down
	recovery                // somebody is idle: the others grow
	contention              // all run as they should: everything stays
)

// String is the phase's name in a status.
func (p phase) String() string {
	return [...]string{"NONE", "EMERGENCY", "RECOVERY", "CONTENTION"}[p]
}

// scale works out what each instance wants to be issued: Algorithm 2.
func (s *Introspective) scale() {
	for _, a := range s.accounts {
		if a.sensitive {
			s.scaleSensitive(a)
		}
	}
	state, stretch := s.state()
	for _, a := range s.accounts {
		if !a.sensitive {
			s.scaleBestEffort(a, state, stretch)
		}
	}
	for _, a := range s.accounts {
		a.cycle.fresh = false
	}
}

// empty says whether the instance's rate window is: it has launched nothing for
// so long and wants nothing.
func (s *Introspective) empty(a *account) bool {
	return a.busy == 0 && s.now-a.launched >= time.Duration(s.params.RateWindow)*s.params.Period
}

func (s *Introspective) othersEmpty(a *account) bool {
	for _, o := range s.accounts {
		if o != a && !s.empty(o) {
			return false
		}
	}
	return true
}

// scaleSensitive is lines 12 to 21.
func (s *Introspective) scaleSensitive(a *account) {
	c, p := &a.cycle, s.params
	back := c.stretch < p.Recovery && c.stretch*a.limit/a.request <= p.Violation
	switch {
	case s.empty(a):
		a.phase, a.want, c.stretch = recovery, a.request, 0
	case c.stretch > p.Violation, a.phase == emergency && !back:
		a.phase, a.want = emergency, a.limit
	case s.othersEmpty(a):
		a.phase, a.want = recovery, min(a.want*p.Increase, a.limit)
	default:
		a.phase, a.want = contention, a.request
	}
}

// state is the GPU's, and in an emergency the largest stretch that was measured
// since the last issue, if one was.
func (s *Introspective) state() (state phase, stretch float64) {
	for _, a := range s.accounts {
		if !a.sensitive || len(a.processes) == 0 {
			continue
		}
		if a.phase == emergency && a.cycle.fresh {
			stretch = max(stretch, a.cycle.stretch)
		}
		if state == none || a.phase == emergency || a.phase == contention && state != emergency {
			state = a.phase
		}
	}
	return state, stretch
}

// scaleBestEffort is lines 23 to 31. Out of an emergency nobody is below its
// request: that is what its placement promised.
func (s *Introspective) scaleBestEffort(a *account, state phase, stretch float64) {
	p := s.params
	a.phase = state
	switch {
	case state == none:
		a.want = a.limit
	case state == recovery:
		a.want = min(max(a.want*p.Increase, a.request), a.limit)
	case state == contention:
		a.want = max(a.want, a.request)
	case state == emergency && stretch > p.Violation:
		a.want = max(min(a.request, a.want)/stretch, a.request*p.Floor)
	case state == emergency && stretch > 0 && stretch < p.Recovery:
		a.want = min(a.want*p.Increase, a.request)
	}
}
