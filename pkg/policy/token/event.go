package token

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/reason"
)

// Event is an input of a Policy: AddInstance, RemoveInstance, AddClient, RemoveClient, Request,
// Ending, Return, Unleased, Sample, Suspend, Wake or Configure. A policy ignores events about
// unknown instances and clients.
type Event interface {
	client() ClientID // the registered client that the event is about, or 0
}

// AddInstance registers an instance or changes the settings of a registered one. Multi-token
// uses the slice and the turns; introspective uses all fields except the turns.
type AddInstance struct {
	Instance string
	Slice    gpu.Slice
	Turns    []gpu.Turn    // the instance's own parts of each window; none: its times follow from the order alone
	SLO      time.Duration // latency objective; 0: best effort
	LLM      bool          // the instance serves a language model

	// Training reports whether the instance is a training job. Such an instance has no objective.
	Training bool

	// Unenforced reports whether the SM share is not enforced by MPS: the instance uses the whole
	// GPU when it runs alone.
	Unenforced bool
}

// RemoveInstance removes an instance and its clients.
type RemoveInstance struct{ Instance string }

// AddClient registers a process of a registered instance. The client starts idle.
type AddClient struct {
	Client   ClientID
	Instance string
}

// RemoveClient removes a client. Its SMs are free at once.
type RemoveClient struct{ Client ClientID }

// Request reports that a client waits to launch kernels. If the client's lease was revoked, the
// request counts once the client has returned it. If the client already waits or holds a lease,
// the request has no effect.
type Request struct{ Client ClientID }

// Return gives a lease back. It has no effect if the client does not hold that lease.
type Return struct {
	Client    ClientID
	Lease     uint32
	Used      time.Duration // measured GPU time, counted up to the time since the grant
	WantsMore bool          // the client waits to launch again
}

// Unleased reports work of a client that ran without a lease. The client had queued the work
// behind something that it waited for (a value in memory or a host function), and returned its
// lease meanwhile. Multi-token charges the GPU time, up to the time since the last Unleased of
// the client. Introspective ignores the event: it charged the blocks at launch.
type Unleased struct {
	Client ClientID
	Used   time.Duration // measured GPU time
}

// Ending announces when the work in flight of a draining client ends, as far as the client can
// tell. If that is soon, the policy may grant the client's SMs to others before the client
// returns its lease, so that the hand-over costs no GPU time. The policy ignores the
// announcement of a client whose lease was not revoked or whose recent announcements were wrong.
// Introspective ignores all announcements.
type Ending struct {
	Client    ClientID
	Lease     uint32
	Remaining time.Duration // time from now
}

// Sample reports how much a client has launched since it connected. Multi-token ignores samples.
// Introspective returns no actions from a Step that receives only samples.
type Sample struct {
	Client   ClientID
	Launches uint64 // kernels
	Blocks   uint64 // blocks of these kernels
}

// Suspend reports that a draining client was stopped (by a signal, a debugger or a frozen
// cgroup) or has not returned its lease for a long time. The client's gate is closed and its work
// in flight counts as finished, so its SMs are free until it returns. Multi-token charges the
// time until now or, if that is more, the time that the client measured when it returns. The
// measured time of a stopped client is ignored, because it includes the pause. The event has no
// effect if the client is not draining.
type Suspend struct {
	Client  ClientID
	Stopped bool // by a signal, a debugger or a frozen cgroup
}

// Wake reports that the time of a WakeAt has come. An early Wake has no other effect than the
// passing of time.
type Wake struct{}

// Configure changes the settings and starts a new window.
type Configure struct{ Settings }

func (AddInstance) client() ClientID     { return 0 }
func (RemoveInstance) client() ClientID  { return 0 }
func (AddClient) client() ClientID       { return 0 }
func (ev RemoveClient) client() ClientID { return ev.Client }
func (ev Request) client() ClientID      { return ev.Client }
func (ev Ending) client() ClientID       { return ev.Client }
func (ev Return) client() ClientID       { return ev.Client }
func (ev Unleased) client() ClientID     { return ev.Client }
func (ev Sample) client() ClientID       { return ev.Client }
func (ev Suspend) client() ClientID      { return ev.Client }
func (Wake) client() ClientID            { return 0 }
func (Configure) client() ClientID       { return 0 }

// Action is an output of a Policy: Grant, Revoke, Budget or WakeAt. The caller performs the
// actions in order.
type Action interface{ action() }

// Grant opens a client's gate with a lease.
type Grant struct {
	Client ClientID
	Lease  uint32 // neither 0 nor the largest uint32

	// Turn is the time after which the lease is revoked if other clients wait, so that the
	// client should keep less work in flight than that. It is 0 if all clients fit side by
	// side, or if the lease ends only with its budget.
	Turn time.Duration

	// Lead is how long before the end of its work in flight the client should announce that end
	// (Ending): about the duration of a hand-over. 0: announcements are of no use.
	Lead time.Duration

	// Hold is how long the client should keep the lease while it is idle, because it usually
	// launches again within this time. 0: its own default, about DefaultHold.
	Hold time.Duration

	Reason reason.Reason
}

// DefaultHold is how long the preload library keeps a lease while the program is idle and other
// clients may want the GPU, unless Grant.Hold is set.
const DefaultHold = time.Millisecond

// Revoke closes a client's gate and asks the client to return its lease.
type Revoke struct {
	Client ClientID
	Lease  uint32
	Reason reason.Reason
}

// Budget limits the blocks that a client may have launched since it connected. It precedes the
// Grant to which it belongs.
type Budget struct {
	Client ClientID
	Blocks uint64 // Unlimited: no limit
	Reason reason.Reason
}

// WakeAt requests a Wake at a future time. It replaces the previous WakeAt.
type WakeAt struct {
	At     time.Duration
	Reason reason.Reason
}

func (Grant) action()  {}
func (Revoke) action() {}
func (Budget) action() {}
func (WakeAt) action() {}

// Settings holds the settings that Configure can change. Introspective uses only Window.
type Settings struct {
	Window     time.Duration // length of a window; 0: gpu.Window
	Round      time.Duration // time in which each waiting client has a turn; 0: gpu.Round; Window or more: no rounds
	SMLimit    float64       // limit on the sum of the SM percentages of all leases; 0: 100
	GrantOrder string        // OrderRounds, or OrderPaper for the scheduler as published; "": OrderRounds
}

// Config configures a policy.
type Config struct {
	Settings
	FirstLease    uint32 // number of the first lease
	Introspective IntrospectiveParameters
}

// ClientID identifies a client, which is one process of an instance. The caller chooses it.
type ClientID uint64

// String returns the ID as a decimal number.
func (id ClientID) String() string { return strconv.FormatUint(uint64(id), 10) }

// Unlimited is the Budget of a client whose launches are not metered.
const Unlimited uint64 = math.MaxUint64

// State is the state of a client.
type State int

// The states of a client.
const (
	Idle      State = iota // does not want the GPU
	Waiting                // wants a lease
	Running                // holds a lease
	Draining               // its lease was revoked and not yet returned; holds its SMs
	Suspended              // stopped or stuck while draining; holds nothing until it returns
)

// String returns the name of the state for status output.
func (s State) String() string {
	return [...]string{"idle", "waiting", "running", "draining", "suspended"}[s]
}

// active reports whether the client wants the GPU or has it.
func (s State) active() bool { return s != Idle && s != Suspended }

// Snapshot describes the state of a policy.
type Snapshot struct {
	// SMRunning is the percent of SMs held by leases, draining ones included. It may exceed 100
	// under introspective, and while the work of a client Overlaps.
	SMRunning float64
	// Round is the current length of a round, and Handover is the usual time for which a hand-over
	// leaves the GPU idle. Both are 0 if clients do not take turns in rounds.
	Round, Handover time.Duration

	Instances []InstanceStatus // ordered by ID
	Clients   []ClientStatus   // ordered by ID
}

// InstanceStatus describes an instance in a Snapshot.
type InstanceStatus struct {
	Instance string
	// Debt is the time used beyond the limit and carried into this window. Under introspective
	// it is the time that the launches beyond the instance's tokens take alone on the GPU; the
	// instance waits until new tokens have covered them.
	Debt time.Duration
	// Owed is the time that the instance used beyond its request while others missed theirs,
	// and that it owes to them in this window. It is always 0 under introspective.
	Owed time.Duration
	// Charged is the GPU time charged since the instance was added, up to the end of the last
	// window or lease. Under introspective it is the time that its blocks take alone on the GPU,
	// without the blocks launched before its speed was known.
	Charged time.Duration
	// Phase is the phase of Algorithm 2: the instance's own if it is SLO-sensitive, otherwise
	// the GPU's. It is set only under introspective.
	Phase string
}

// ClientStatus describes a client in a Snapshot.
type ClientStatus struct {
	Client   ClientID
	Instance string
	State    State
	Used     float64 // fraction of the last full window that was charged to the client, 0 to 1
	// Reason is the reason for the last decision about the client: for a waiting client, why it
	// waits. It is zero for an idle client.
	Reason reason.Reason
	Budget uint64 // blocks that the client may have launched since it connected; only under introspective
}

// Instance returns the status of an instance. For an unknown ID, only the field Instance is set.
func (s Snapshot) Instance(id string) InstanceStatus {
	at, ok := slices.BinarySearchFunc(s.Instances, id, func(i InstanceStatus, id string) int { return strings.Compare(i.Instance, id) })
	if !ok {
		return InstanceStatus{Instance: id}
	}
	return s.Instances[at]
}

// validLease returns the lease number, or 1 if the number is reserved: to the preload library, 0
// means a closed gate and the largest number means no lease.
func validLease(lease uint32) uint32 {
	if lease == math.MaxUint32 {
		return 1
	}
	return max(lease, 1)
}
