package token

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Snapshot is how everything on a GPU stands.
type Snapshot struct {
	// SMRunning is the percent of SMs that leases hold, those draining included.
	// Under Introspective it may exceed 100.
	SMRunning float64
	Instances []InstanceStatus // by id
	Clients   []ClientStatus   // by id
}

// InstanceStatus is how an instance stands.
type InstanceStatus struct {
	Instance string
	// Debt is what it carried over its limit into this window; under
	// Introspective how long it has to wait for what it launched beyond its
	// tokens, in time alone on the GPU.
	Debt time.Duration
	// Charged is all the GPU time that it was charged since it was made known, up
	// to the last window or the last lease that ended; under Introspective the
	// time that its blocks take alone on the GPU, but for those launched before
	// that was known.
	Charged time.Duration
	// Phase is its own of Algorithm 2 if it is SLO-sensitive, else the GPU's.
	// Only Introspective has phases.
	Phase string
}

// ClientStatus is how a client stands.
type ClientStatus struct {
	Client   ClientID
	Instance string
	State    State
	Used     float64 // share of the last full window that it was charged, 0 to 1
	// Why is the reason of the last decision about it: of one that waits why it
	// does, of one that is idle nothing.
	Why    string
	Budget uint64 // blocks that it may have launched since it connected; only of Introspective
}

// Instance is how the instance of that id stands: not at all if it is not known.
func (s Snapshot) Instance(id string) InstanceStatus {
	at, ok := slices.BinarySearchFunc(s.Instances, id, func(i InstanceStatus, id string) int { return strings.Compare(i.Instance, id) })
	if !ok {
		return InstanceStatus{Instance: id}
	}
	return s.Instances[at]
}

// said is a reason that is put in words when somebody asks for it: with hundreds
// of clients that would be most of the work.
func said(format string, args ...any) func() string {
	return func() string { return fmt.Sprintf(format, args...) }
}

// Snapshot is how all stand.
func (s *Scheduler) Snapshot() Snapshot {
	out := Snapshot{Instances: make([]InstanceStatus, len(s.instances)), Clients: make([]ClientStatus, len(s.clients))}
	for n, i := range s.instances {
		out.Instances[n] = InstanceStatus{Instance: i.id, Debt: i.debt, Charged: i.charged}
	}
	for n, c := range s.clients {
		out.Clients[n] = ClientStatus{
			Client: c.id, Instance: c.inst.id, State: c.state, Why: c.why(),
			Used: min(1, float64(c.last)/float64(s.window)),
		}
		if c.holds() {
			out.SMRunning += c.inst.slice.SMPct
		}
	}
	return out
}
