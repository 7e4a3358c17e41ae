package token

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gfaas/gfaas/pkg/gpu"
	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/wire"
)

// device is one GPU and its scheduler.
type device struct {
	name  string
	d     *Daemon
	sched policy.Policy
	did   []policy.Action // scratch of step
	wakes time.Duration   // when the scheduler wants to be woken; 0 is never

	stopCheck  *time.Timer // looks for stopped clients
	checking   bool        // it is set
	unmeasured bool        // nobody tells what processes occupy of it

	occupied map[int]gpu.Bytes // by processes, when that was last told

	grants, revokes prometheus.Counter
	waits           prometheus.Observer
}

// device finds or makes the GPU of that name. Leases start at a random number,
// so that one from before a restart is not taken for one of ours.
func (d *Daemon) device(name string) *device {
	g := d.gpus[name]
	if g == nil {
		cfg := policy.Config{Window: d.settings.Window, Round: d.settings.Round, SMLimit: d.settings.SMLimit, FirstLease: rand.Uint32()}
		sched, err := policy.Make(d.cfg.Policy, cfg, d.now())
		if err != nil {
			panic(err) // Open has looked
		}
		g = &device{name: name, d: d, sched: sched}
		g.stopCheck = time.AfterFunc(time.Hour, func() { _ = d.locked(g.checkStopped) })
		g.stopCheck.Stop()
		g.grants, g.revokes = d.metrics.grants.WithLabelValues(name), d.metrics.revokes.WithLabelValues(name)
		g.waits = d.metrics.waits.WithLabelValues(name)
		d.gpus[name] = g
		if d.cfg.Uses != nil {
			go d.cfg.Uses(name) // it may wait for other programs
		}
	}
	return g
}

// devices are all GPUs, by name.
func (d *Daemon) devices() []*device {
	var out []*device
	for _, g := range d.gpus {
		out = append(out, g)
	}
	slices.SortFunc(out, func(a, b *device) int { return strings.Compare(a.name, b.name) })
	return out
}

// step tells the scheduler what happened and does what it says. Locked.
func (g *device) step(events ...policy.Event) {
	now := g.d.now()
	g.did = g.sched.Step(now, events, g.did[:0])
	for _, a := range g.did {
		switch a := a.(type) {
		case policy.Grant:
			g.grant(a)
		case policy.Revoke:
			g.revoke(a)
		case policy.Budget:
			g.budget(a)
		case policy.WakeAt:
			g.wakes = a.At
			g.d.poller.wakeAt(now, a.At)
		}
	}
}

// fired wakes the schedulers whose time has come. Locked.
func (d *Daemon) fired() {
	d.poller.fires = 0
	for _, g := range d.gpus {
		switch now := d.now(); {
		case g.wakes == 0:
		case now < g.wakes:
			d.poller.wakeAt(now, g.wakes)
		default:
			g.wakes = 0
			g.wake()
		}
	}
}

func (g *device) grant(a policy.Grant) {
	c := g.d.clients[a.Client]
	if c == nil {
		return
	}
	c.granted, c.lease, c.waits, c.excess = time.Now(), a.Lease, false, 0
	c.alloc.page.setTurn(c.slot, a.Turn, a.Lead)
	c.alloc.page.setGate(c.slot, a.Lease)
	g.d.startRenewing()
	g.grants.Inc()
	g.waits.Observe(c.granted.Sub(c.asked).Seconds())
	g.logDecision("grant", c, a.Lease, a.Reason)
}

// revoke closes the gate first: once the process reads the message nothing
// more can be launched under the lease.
func (g *device) revoke(a policy.Revoke) {
	c := g.d.clients[a.Client]
	if c == nil {
		return
	}
	c.revoked = g.d.now()
	if !g.checking {
		g.checking = true
		g.stopCheck.Reset(g.patience())
	}
	c.alloc.page.setGate(c.slot, 0)
	g.revokes.Inc()
	g.logDecision("revoke", c, a.Lease, a.Reason)
	if err := send(c.fd, wire.LeaseEnd{Lease: a.Lease}.Append(nil), nil); err != nil {
		g.d.faults.warn("client does not read its messages", "instance", c.alloc.inst.reg.Instance, "pid", c.pid, "err", err)
		c.hangUp()
	}
}

// logDecision logs one where that is asked for.
func (g *device) logDecision(what string, c *client, lease uint32, reason string) {
	if g.d.log.Enabled(context.Background(), slog.LevelDebug) {
		g.d.log.Debug(what, "gpu", g.name, "instance", c.alloc.inst.reg.Instance, "pid", c.pid, "lease", lease, "reason", reason)
	}
}

// Under the introspective policy processes are held to budgets of kernel
// blocks beside their leases. The scheduler asks to be woken every 5 ms while
// anybody is active, and is told before each wake what the holders of leases
// have launched; while all are idle there is no timer.

// metered says whether processes are held to budgets.
func (d *Daemon) metered() bool { return d.cfg.Policy == policy.Introspection }

// wake tells the scheduler what its clients have launched, and wakes it.
// Locked.
func (g *device) wake() {
	var events []policy.Event
	if g.d.metered() {
		for _, c := range g.d.clients {
			if c.alloc.gpu == g && c.lease != 0 {
				events = append(events, c.sample())
			}
		}
	}
	g.step(append(events, policy.Wake{})...)
}

// sample is what a process has launched.
func (c *client) sample() policy.Event {
	n := c.alloc.page.counters(c.slot)
	return policy.Sample{Client: c.id, Launches: n.launches, Blocks: n.blocks}
}

func (g *device) budget(a policy.Budget) {
	if c := g.d.clients[a.Client]; c != nil {
		c.alloc.page.setBudget(c.slot, a.Blocks)
	}
}
