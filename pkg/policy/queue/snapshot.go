package queue

import (
	"cmp"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// Snapshot is how a policy stands.
type Snapshot struct {
	Functions []FunctionStatus     // those known, by number
	Instances []residency.Standing // by name
}

// FunctionStatus is how a function stands.
type FunctionStatus struct {
	Function            int32
	Name                string
	Waiting, InFlight   int
	Instances, Starting int           // Starting: of those, without an invocation
	Oldest              time.Duration // when the one that waits longest came
	Why                 string        // why the next one waits; empty if none does
}

// Snapshot implements Policy.
func (e *engine) Snapshot() Snapshot {
	var s Snapshot
	for i := range e.functions {
		f := int32(i)
		if e.functions[f] == (Function{}) {
			continue
		}
		st := FunctionStatus{Function: f, Name: e.functions[f].Name, InFlight: int(e.running(f))}
		st.Instances, st.Starting = e.pool.Count(f)
		for _, m := range e.waitingFor(f) {
			if st.Waiting++; st.Waiting == 1 || m.at < st.Oldest {
				st.Oldest = m.at
			}
		}
		if st.Waiting > 0 {
			st.Why = e.why(f)
		}
		s.Functions = append(s.Functions, st)
	}
	s.Instances = e.pool.Instances()
	slices.SortFunc(s.Instances, func(a, b residency.Standing) int { return cmp.Compare(a.Instance, b.Instance) })
	return s
}

// why is why nothing of a function that waits goes.
func (e *engine) why(f int32) string {
	switch said := e.order.why(f); {
	case said != "":
		return said
	case e.queues.queues[f].len == 0 && len(e.held) > 0:
		return "there has to be room for its memory first"
	case e.queues.queues[f].len == 0:
		return "goes when the one before it in its batch has ended"
	case e.pool.GPUs() == 0 || e.allSlots() == 0:
		return "there is no GPU"
	case e.states[f].failures >= mostFailures && e.now < e.states[f].barred:
		return "its starts failed several times in a row, and another is tried later"
	case e.states[f].failures >= mostFailures && e.pool.Starting(f):
		return "its instances are starting"
	case e.pool.Capped(f):
		return "all instances that it may have are busy"
	case e.queues.queues[f].out && len(e.states[f].plans) > 0:
		return "the instances that a plan has for it are busy, and sooner free than another is started"
	case e.queues.queues[f].out:
		return "its instances are starting"
	case !e.pool.AnyFree():
		return "every GPU is full"
	}
	if _, ok := e.pool.Best(f, residency.Any, residency.Any); !ok {
		return "no GPU has room for it beside what runs there"
	}
	return "others go first"
}

// Snapshot implements Policy: what waits for its tenant's turn waits too.
func (l *limits) Snapshot() Snapshot {
	s := l.engine.Snapshot()
	for i := range s.Functions {
		st := &s.Functions[i]
		if n := l.waiting(st.Function); n > 0 {
			st.Waiting += n
			if st.Why == "" {
				st.Why = "its tenant has as much as it may"
			}
		}
	}
	return s
}
