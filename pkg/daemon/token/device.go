package token

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/gpu"
	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/reason"
	"github.com/gfaas/gfaas/pkg/wire"
)

// device is one GPU with its scheduler and its clients. The core's lock guards it.
type device struct {
	name       string
	schedulers *schedulers
	sched      policy.Policy
	clients    map[policy.ClientID]*client
	actions    []policy.Action // reused by step
	wakeAt     time.Duration   // when the scheduler wants to be woken; 0: never

	stopCheck *time.Timer // calls checkStopped
	checking  bool        // the timer is set

	unmeasured  bool              // the last measurement of occupied failed
	memoryByPID map[int]gpu.Bytes // memory by process, as last measured

	grants, revokes prometheus.Counter
	waitTimes       prometheus.Observer
}

// metered reports whether the policy limits processes to budgets of kernel blocks, in addition to
// leases. The scheduler of such a policy requests a wake every 5 ms while a client is active, and
// receives the launches of all lease holders before each wake. While all clients are idle, no timer
// runs.
func (g *device) metered() bool { return g.schedulers.cfg.Policy == policy.Introspection }

// step passes events to the scheduler and performs its actions.
func (g *device) step(events ...policy.Event) {
	now := g.schedulers.now()
	g.actions = g.sched.Step(now, events, g.actions[:0])
	for _, a := range g.actions {
		switch a := a.(type) {
		case policy.Grant:
			g.grant(a)
		case policy.Revoke:
			g.revoke(a)
		case policy.Budget:
			if c := g.clients[a.Client]; c != nil {
				c.page.setBudget(c.slot, a.Blocks)
			}
		case policy.WakeAt:
			g.wakeAt = a.At
			g.schedulers.alarm.set(now, a.At)
		}
	}
}

// addClient adds a client.
func (g *device) addClient(c *client) {
	g.clients[c.id] = c
	g.step(policy.AddClient{Client: c.id, Instance: c.instance})
}

// removeClient removes a client and frees its lease. It returns the client's last counters.
func (g *device) removeClient(c *client) counters {
	delete(g.clients, c.id)
	last := c.page.counters(c.slot)
	c.page.clear(c.slot)
	g.step(policy.RemoveClient{Client: c.id})
	return last
}

func (g *device) grant(a policy.Grant) {
	c := g.clients[a.Client]
	if c == nil {
		return
	}
	c.grantedAt, c.lease, c.requestPending, c.violations = time.Now(), a.Lease, false, 0
	c.page.setLease(c.slot, a)
	c.page.setGate(c.slot, a.Lease)
	g.schedulers.startRenewing()
	g.grants.Inc()
	g.waitTimes.Observe(c.grantedAt.Sub(c.requestedAt).Seconds())
	g.logDecision("grant", c, a.Lease, a.Reason)
}

// revoke closes the gate before it asks for the lease, so that the process launches nothing more
// under the lease once it has read the message.
func (g *device) revoke(a policy.Revoke) {
	c := g.clients[a.Client]
	if c == nil {
		return
	}
	c.revokedAt = g.schedulers.now()
	if !g.checking {
		g.checking = true
		g.stopCheck.Reset(g.patience())
	}
	c.page.setGate(c.slot, 0)
	g.revokes.Inc()
	g.logDecision("revoke", c, a.Lease, a.Reason)
	if err := send(c.fd, wire.Append(nil, wire.LeaseEnd{Lease: a.Lease}), nil); err != nil {
		g.schedulers.faults.warn("client does not read its messages", "instance", c.instance, "pid", c.pid, "err", err)
		c.hangUp()
	}
}

// logDecision logs a decision at level debug.
func (g *device) logDecision(decision string, c *client, lease uint32, r reason.Reason) {
	if g.schedulers.log.Enabled(context.Background(), slog.LevelDebug) {
		g.schedulers.log.Debug(decision, "gpu", g.name, "instance", c.instance, "pid", c.pid, "lease", lease, "reason", r.String())
	}
}

// wake passes the launches of clients with leases to the scheduler, if it is metered, and wakes it.
func (g *device) wake() {
	var events []policy.Event
	if g.metered() {
		for _, c := range g.clients {
			if c.lease != 0 {
				events = append(events, c.sample())
			}
		}
	}
	g.step(append(events, policy.Wake{})...)
}

// client is a process on one GPU from the scheduler's point of view: its gate and its lease. The
// core's lock guards it.
type client struct {
	id       policy.ClientID
	gpu      *device
	instance string
	pid      int   // in the daemon's PID namespace; 0 if the process is not visible there
	fd       int   // its connection's descriptor
	page     *page // instance page with the gate
	slot     int   // index of its slot in the page

	lease          uint32 // held or draining; 0: none
	requestPending bool   // it has a pending request
	requestedAt    time.Time
	grantedAt      time.Time
	revokedAt      time.Duration // on the schedulers' clock; 0 while the lease is not revoked
	endAnnounced   bool          // it has announced the end of its work in flight
	suspended      bool          // it does not drain, and other clients do not wait for it
	launches       uint64        // counter in its slot at the last return of a lease
	unleased       uint64        // GPU time in ns of work without a lease, as last read from its slot
	violations     int           // messages during this lease that the protocol does not allow
}

// maxViolations is the number of messages during a lease that a client may send against the protocol: a
// request while another is pending, or the return of a lease that it does not hold. The next such
// message ends its connection.
const maxViolations = 8

// errViolations ends the connection of a client that floods the daemon.
var errViolations = errors.New("too many requests and returns that the protocol does not allow")

// recordViolation counts a message that the protocol does not allow. It returns errViolations after more than
// maxViolations of them.
func (c *client) recordViolation() error {
	if c.violations++; c.violations > maxViolations {
		return errViolations
	}
	return nil
}

// hangUp ends the client's connection. The poller notices that and removes the client.
func (c *client) hangUp() { _ = unix.Shutdown(c.fd, unix.SHUT_RDWR) }

// recordRequest records that the client wants the GPU. The caller then passes the request to the scheduler.
func (c *client) recordRequest(now time.Time) error {
	if c.requestPending || c.lease != 0 {
		return c.recordViolation()
	}
	c.requestPending, c.requestedAt = true, now
	return nil
}

// request passes the client's request to the scheduler.
func (c *client) request() { c.gpu.step(c.unleasedEvent(), policy.Request{Client: c.id}) }

// announce passes the announced end of the client's work in flight to the scheduler.
func (c *client) announce(msg wire.Ending) error {
	if msg.Lease != c.lease || c.lease == 0 || c.revokedAt == 0 || c.endAnnounced {
		return c.recordViolation()
	}
	c.endAnnounced = true
	c.gpu.step(policy.Ending{Client: c.id, Lease: msg.Lease, Remaining: boundedDuration(msg.LeftNS)})
	return nil
}

// returnLease ends the client's lease.
func (c *client) returnLease(msg wire.Return, now time.Time) error {
	if msg.Lease != c.lease || c.lease == 0 {
		return c.recordViolation()
	}
	ev := policy.Return{
		Client: c.id, Lease: msg.Lease, Used: boundedDuration(msg.UsedNS),
		WantsMore: msg.Flags&wire.ReturnWantsMore != 0,
	}
	// A client that launched and reports no GPU time has not measured it.
	launches := atomic.LoadUint64(&c.page.slot(c.slot).Launches)
	if ev.Used == 0 && launches != c.launches {
		ev.Used = now.Sub(c.grantedAt)
	}
	c.launches = launches
	// A process that returns its lease unasked closes its gate itself. If it has not, the daemon
	// closes it.
	c.lease, c.revokedAt, c.endAnnounced, c.suspended, c.requestPending, c.requestedAt = 0, 0, false, false, ev.WantsMore, now
	c.page.setGate(c.slot, 0)
	c.gpu.schedulers.metrics.leases.WithLabelValues(c.gpu.name).Observe(now.Sub(c.grantedAt).Seconds())
	if c.gpu.metered() {
		c.gpu.step(c.sample(), ev)
	} else {
		c.gpu.step(c.unleasedEvent(), ev)
	}
	return nil
}

// unleasedEvent returns the GPU time of work without a lease since its last call.
func (c *client) unleasedEvent() policy.Unleased {
	previous := c.unleased
	c.unleased = atomic.LoadUint64(&c.page.slot(c.slot).UnleasedNS)
	return policy.Unleased{Client: c.id, Used: boundedDuration(max(c.unleased, previous) - previous)}
}

// sample returns the process's launches.
func (c *client) sample() policy.Event {
	n := c.page.counters(c.slot)
	return policy.Sample{Client: c.id, Launches: n.launches, Blocks: n.blocks}
}

// boundedDuration converts nanoseconds reported by a process. It bounds them so that sums do not overflow.
func boundedDuration(ns uint64) time.Duration { return time.Duration(min(ns, 1<<62)) }
