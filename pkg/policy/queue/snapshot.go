package queue

import (
	"cmp"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/reason"
)

// Snapshot describes the state of a policy.
type Snapshot struct {
	Functions []FunctionStatus           // in order of their numbers
	Instances []residency.InstanceStatus // in order of their IDs
}

// FunctionStatus describes the state of a function.
type FunctionStatus struct {
	Function            int32
	Name                string
	Waiting, InFlight   int
	Instances, Starting int           // Starting: starting without an invocation; included in Instances
	Oldest              time.Duration // arrival time of the oldest waiting invocation
	WaitReason          reason.Reason // the reason why the next one waits; zero if there is no such invocation
}

// Snapshot implements Policy.
func (e *engine) Snapshot() Snapshot {
	var s Snapshot
	for i := range e.functions {
		f := int32(i)
		if e.functions[f] == (Function{}) {
			continue
		}
		st := FunctionStatus{Function: f, Name: e.functions[f].Name, InFlight: int(e.plans.inFlight(f))}
		st.Instances, st.Starting = e.pool.Count(f)
		for _, m := range e.listWaiting(f) {
			if st.Waiting++; st.Waiting == 1 || m.at < st.Oldest {
				st.Oldest = m.at
			}
		}
		if st.Waiting > 0 {
			st.WaitReason = e.waitReason(f)
		}
		s.Functions = append(s.Functions, st)
	}
	s.Instances = e.pool.Instances()
	slices.SortFunc(s.Instances, func(a, b residency.InstanceStatus) int { return cmp.Compare(a.Instance, b.Instance) })
	return s
}

// waitReason explains why no waiting invocation of a function is dispatched.
func (e *engine) waitReason(f int32) reason.Reason {
	failures := e.starts.failures[f]
	e.batching.examined = false
	closed := e.batchReason(f)
	switch r := e.order.reason(f); {
	case e.queues.queues[f].len == 0 && len(e.bound.outside(f)) > 0:
		return reason.New(waitingForBound)
	case !closed.IsZero():
		return closed
	case !r.IsZero():
		return r
	case e.queues.queues[f].len == 0 && e.held.len() > 0:
		return reason.New(waitingForRoom)
	case e.queues.queues[f].len == 0:
		return reason.New(waitingForBatch)
	case e.pool.GPUs() == 0 || e.totalSlots == 0:
		return reason.New(noGPU)
	case e.starts.isFailing(f) && e.now < failures.barred:
		return reason.New(startsPaused, reason.Number("failures", failures.n), reason.Millis("in_ms", failures.barred-e.now))
	case e.starts.isFailing(f) && e.pool.Starting(f):
		return reason.New(instanceStarting)
	case e.functions[f].Placed && !e.pool.Limited(f):
		return reason.New(waitingForPlace)
	case e.pool.Capped(f) && e.functions[f].Max > 0:
		return reason.New(instanceLimit, reason.Number("max", e.functions[f].Max))
	case e.pool.Capped(f):
		return reason.New(instanceLimit)
	case e.queues.queues[f].excluded && e.plans.has(f):
		return reason.New(waitingForPlanned)
	case e.queues.queues[f].excluded:
		return reason.New(instanceStarting)
	case !e.pool.AnyFree():
		return reason.New(gpusBusy)
	}
	if _, ok := e.pool.Best(f, residency.Any, residency.Any); !ok {
		if e.pool.WaitsForTenant(f) {
			return reason.New(tenantLimit)
		}
		return reason.New(noGPUWithRoom)
	}
	return reason.New(othersFirst)
}

// Snapshot implements Policy. It counts invocations that wait for their tenant's turn as waiting.
func (l *limits) Snapshot() Snapshot {
	s := l.engine.Snapshot()
	for i := range s.Functions {
		st := &s.Functions[i]
		if n := l.countWaiting(st.Function); n > 0 {
			st.Waiting += n
			if st.WaitReason.IsZero() {
				st.WaitReason = reason.New(tenantLimit)
			}
		}
	}
	return s
}
