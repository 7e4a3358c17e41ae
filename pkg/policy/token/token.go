// Package token decides who may use a GPU now. There are two policies behind
// one contract: multi-token, the scheduler of FaST-GShare (section 3.3.2;
// multitoken.go has its rules), which hands out leases of time, and
// introspective, Dilu's fast vertical scaling (section 3.4.1; introspective.go),
// which meters the kernel blocks that may be launched.
package token

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/policy"
)

// Policy decides who may use one GPU now. Its Step decides once, after all of
// the events; a Snapshot is as of the last Step.
type Policy = policy.Stepper[Event, Action, Snapshot]

// The names of the policies.
const (
	MultiToken    = "multi-token"
	Introspection = "introspective"
)

// policies are all there are, by name.
var policies = map[string]func(c Config, now time.Duration) Policy{
	MultiToken:    func(c Config, now time.Duration) Policy { return newMultiToken(c, now) },
	Introspection: func(c Config, now time.Duration) Policy { return newIntrospective(c, published, now) },
}

// Names are the policies there are.
func Names() []string {
	var names []string
	for name := range policies {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Make makes the policy of that name, whose first window starts at now.
func Make(name string, c Config, now time.Duration) (Policy, error) {
	if f := policies[name]; f != nil {
		return f(c, now), nil
	}
	return nil, fmt.Errorf("policy %q: expected %s", name, strings.Join(Names(), " or "))
}

// ClientID names a client, one process of an instance. The caller chooses it.
type ClientID uint64

// String is the client's number.
func (id ClientID) String() string { return strconv.FormatUint(uint64(id), 10) }

// Config is what a policy goes by.
type Config struct {
	Window     time.Duration // W; 0 is gpu.Window
	Round      time.Duration // in which each that waits has a turn, of multi-token; 0 is gpu.Round, W or more is none
	SMLimit    float64       // most percent of SMs that leases hold together, of multi-token; 0 is 100
	FirstLease uint32        // number of the first lease
}

// Unlimited is the Budget of a client that is not held to tokens.
const Unlimited uint64 = math.MaxUint64

// State is what a client does.
type State int

// The states of a client.
const (
	Idle      State = iota // wants nothing
	Waiting                // asked, has no lease
	Running                // holds a lease
	Draining               // was asked back and has not returned yet: still holds its SMs
	Suspended              // was stopped or stuck while it drained: holds nothing until it returns
)

// Overlaps is why a client drains that said it was about to be done and was not: for so
// long the SMs are its own and those of whoever was granted them on its word.
const Overlaps = "goes on for longer than it said: others may have its SMs already"

// String is the state's name in a status.
func (s State) String() string {
	return [...]string{"idle", "waiting", "running", "draining", "suspended"}[s]
}

// active says whether it wants the GPU or has it.
func (s State) active() bool { return s != Idle && s != Suspended }

// Snapshot is how everything on a GPU stands.
type Snapshot struct {
	// SMRunning is the percent of SMs that leases hold, those draining included.
	// Under introspective it may exceed 100, and where a client Overlaps.
	SMRunning float64
	Instances []InstanceStatus // by id
	Clients   []ClientStatus   // by id
}

// InstanceStatus is how an instance stands.
type InstanceStatus struct {
	Instance string
	// Debt is what it carried over its limit into this window; under
	// introspective how long it has to wait for what it launched beyond its
	// tokens, in time alone on the GPU.
	Debt time.Duration
	// Owed is what it used beyond its request while others missed theirs, and owes to
	// them in this window. Introspective has it in Debt.
	Owed time.Duration
	// Charged is all the GPU time that it was charged since it was made known, up
	// to the last window or the last lease that ended; under introspective the
	// time that its blocks take alone on the GPU, but for those launched before
	// that was known.
	Charged time.Duration
	// Phase is its own of Algorithm 2 if it is SLO-sensitive, else the GPU's.
	// Only introspective has phases.
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
	Budget uint64 // blocks that it may have launched since it connected; only of introspective
}

// Instance is how the instance of that id stands: not at all if it is not known.
func (s Snapshot) Instance(id string) InstanceStatus {
	at, ok := slices.BinarySearchFunc(s.Instances, id, func(i InstanceStatus, id string) int { return strings.Compare(i.Instance, id) })
	if !ok {
		return InstanceStatus{Instance: id}
	}
	return s.Instances[at]
}

// validLease is the number if a lease may have it, else the first that may: the
// preload library takes 0 for a closed gate and the largest for no lease.
func validLease(lease uint32) uint32 {
	if lease == math.MaxUint32 {
		return 1
	}
	return max(lease, 1)
}
