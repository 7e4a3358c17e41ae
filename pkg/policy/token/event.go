package token

import (
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// Event is something that happened: AddInstance, RemoveInstance, AddClient,
// RemoveClient, Request, Ending, Return, Unleased, Sample, Suspend, Wake or Configure. One about
// an instance or a client that is not known changes nothing.
type Event interface{ event() }

// AddInstance makes an instance known, or says anew how a known one is to be
// treated. Multi-token looks at the slice and the turns, introspective at all but the
// turns.
type AddInstance struct {
	Instance string
	Slice    gpu.Slice
	Turns    []gpu.Turn    // parts of each window that are its own; none leaves its place to the order
	SLO      time.Duration // its latency objective; 0 is best effort

	// Loose says that nothing holds it to its SM share, as MPS would: alone it
	// has the whole GPU.
	Loose bool
}

// RemoveInstance forgets an instance and its clients.
type RemoveInstance struct{ Instance string }

// AddClient makes a process of a known instance known. It starts idle.
type AddClient struct {
	Client   ClientID
	Instance string
}

// RemoveClient forgets a client. What it held is free at once.
type RemoveClient struct{ Client ClientID }

// Request says that a client waits to launch. Of one that was asked back it
// counts once that has returned; of one that waits already or holds a lease it
// changes nothing.
type Request struct{ Client ClientID }

// Return gives a lease back. A lease that the client does not hold changes
// nothing.
type Return struct {
	Client    ClientID
	Lease     uint32
	Used      time.Duration // measured GPU time; what exceeds the time since the grant does not count
	WantsMore bool          // the client waits to launch again
}

// Unleased tells of work of a client that ran without a lease: it was queued behind
// something that the client waited for, a value in memory or a function on the host,
// and gave its lease back meanwhile. Multi-token charges its time, of which no more counts
// than has passed since the last Unleased of the client. Introspective does nothing:
// it charged the blocks when they were launched.
type Unleased struct {
	Client ClientID
	Used   time.Duration // measured GPU time
}

// Ending says of a client that was asked back when what it has in flight is over, as
// far as it can tell. Who waits for its SMs may be granted them before it returns, if
// that is soon: passing the GPU on then takes no time of it. Of one that was not asked
// back, and of one whose word was not good lately, it changes nothing. Only multi-token
// looks at it.
type Ending struct {
	Client ClientID
	Lease  uint32
	Left   time.Duration // from now
}

// Sample tells what a client has launched since it connected. It leads to no
// action by itself; only introspective looks at it.
type Sample struct {
	Client   ClientID
	Launches uint64 // kernels
	Blocks   uint64 // their blocks
}

// Suspend says that a client which was asked back has been stopped, by a
// signal or a debugger, or does not return for long. Its gate is closed and what
// it had in flight is taken to be over, so nobody waits for it any longer: its
// SMs are free until it returns. Multi-token charges it for the time until now, or
// for what it has measured when it returns if that is more, unless it is stopped:
// what it measures then has the pause in it, in which it sent nothing. A client
// that was not asked back is not suspended.
type Suspend struct {
	Client  ClientID
	Stopped bool // by a signal, a debugger or a frozen cgroup
}

// Wake says that the time of a WakeAt has come. One that comes early changes
// nothing but what time has.
type Wake struct{}

// Configure changes the window, the round and the SM limit, which are as in Config: a new
// window starts. Introspective has no SM limit.
type Configure struct {
	Window  time.Duration
	Round   time.Duration
	SMLimit float64
}

func (AddInstance) event()    {}
func (RemoveInstance) event() {}
func (AddClient) event()      {}
func (RemoveClient) event()   {}
func (Request) event()        {}
func (Ending) event()         {}
func (Return) event()         {}
func (Unleased) event()       {}
func (Sample) event()         {}
func (Suspend) event()        {}
func (Wake) event()           {}
func (Configure) event()      {}

// Action is something to do: Grant, Revoke, Budget or WakeAt.
type Action interface{ action() }

// Grant opens a client's gate with that lease.
type Grant struct {
	Client ClientID
	Lease  uint32 // neither 0 nor the largest there is

	// Turn is after how long it is asked back where others wait, so that no more
	// should be in flight than fits into a part of it. 0: nobody is known who
	// would have to, or only the end of its budget ends it.
	Turn time.Duration

	// Lead is how long before what it has in flight is over it is best said (Ending):
	// as long as passing the GPU on takes. 0: nobody wants to know.
	Lead time.Duration

	Reason string
}

// Revoke closes a client's gate and asks the lease back.
type Revoke struct {
	Client ClientID
	Lease  uint32
	Reason string
}

// Budget says how many blocks a client may have launched since it connected. It
// comes before the Grant it is for.
type Budget struct {
	Client ClientID
	Blocks uint64 // Unlimited is no bound
	Reason string
}

// WakeAt asks for a Wake at that time, which lies ahead. It replaces the one
// before.
type WakeAt struct {
	At     time.Duration
	Reason string
}

func (Grant) action()  {}
func (Revoke) action() {}
func (Budget) action() {}
func (WakeAt) action() {}
