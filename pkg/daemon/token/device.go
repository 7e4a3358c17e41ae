package token

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/wire"
)

// device is one GPU: a scheduler and the timer it is woken by.
type device struct {
	name  string
	d     *Daemon
	sched policy.Policy
	did   []policy.Action // scratch of step
	timer *time.Timer
	wakes time.Duration // when the scheduler wants to be woken; 0 is never
	rings time.Duration // when the timer fires; 0 is not set

	seeker  *time.Timer // looks for stopped clients
	seeking bool        // it is set
	blind   bool        // nobody tells what processes occupy of it

	grants, revokes prometheus.Counter
	waits           prometheus.Observer
}

// device finds or makes the GPU of that name. Leases start at a random number,
// so that one from before a restart is not taken for one of ours.
func (d *Daemon) device(name string) *device {
	g := d.gpus[name]
	if g == nil {
		cfg := policy.Config{Window: d.settings.Window, SMLimit: d.settings.SMLimit, FirstLease: rand.Uint32()}
		sched, err := policy.Make(d.cfg.Policy, cfg, d.now())
		if err != nil {
			panic(err) // Open has looked
		}
		g = &device{name: name, d: d, sched: sched}
		g.timer = time.AfterFunc(time.Hour, func() { _ = d.locked(g.ring) })
		g.timer.Stop()
		g.seeker = time.AfterFunc(time.Hour, func() { _ = d.locked(g.seekStopped) })
		g.seeker.Stop()
		g.grants, g.revokes = d.metrics.grants.WithLabelValues(name), d.metrics.revokes.WithLabelValues(name)
		g.waits = d.metrics.waits.WithLabelValues(name)
		d.gpus[name] = g
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
			g.wakeAt(now, a.At)
		}
	}
}

// wakeAt sets the timer, unless it fires earlier as it is and can be set again
// then: most grants put off a wake that is set, and setting a timer costs more
// than they do.
func (g *device) wakeAt(now, at time.Duration) {
	g.wakes = at
	if g.rings == 0 || at < g.rings {
		g.rings = at
		g.timer.Reset(at - now)
	}
}

// ring wakes the scheduler if it is time. Locked.
func (g *device) ring() {
	now := g.d.now()
	g.rings = 0
	switch at := g.wakes; {
	case at == 0:
	case now < at:
		g.wakeAt(now, at)
	default:
		g.wakes = 0
		g.wake()
	}
}

func (g *device) grant(a policy.Grant) {
	m := g.d.members[a.Client]
	if m == nil {
		return
	}
	m.granted, m.lease, m.waits, m.excess = time.Now(), a.Lease, false, 0
	m.seat.page.setGate(m.slot, a.Lease)
	g.d.leaseOut()
	g.grants.Inc()
	g.waits.Observe(m.granted.Sub(m.asked).Seconds())
	g.note("grant", m, a.Lease, a.Reason)
}

// revoke closes the gate first: once the process reads the message nothing
// more can be launched under the lease.
func (g *device) revoke(a policy.Revoke) {
	m := g.d.members[a.Client]
	if m == nil {
		return
	}
	m.revoked = g.d.now()
	if !g.seeking {
		g.seeking = true
		g.seeker.Reset(g.patience())
	}
	m.seat.page.setGate(m.slot, 0)
	g.revokes.Inc()
	g.note("revoke", m, a.Lease, a.Reason)
	if err := send(m.fd, wire.LeaseEnd{Lease: a.Lease}.Append(nil), nil); err != nil {
		g.d.faults.warn("client does not read its messages", "instance", m.seat.inst.reg.Instance, "pid", m.pid, "err", err)
		m.hangUp()
	}
}

// note logs a decision where that is asked for.
func (g *device) note(what string, m *member, lease uint32, reason string) {
	if g.d.log.Enabled(context.Background(), slog.LevelDebug) {
		g.d.log.Debug(what, "gpu", g.name, "instance", m.seat.inst.reg.Instance, "pid", m.pid, "lease", lease, "reason", reason)
	}
}
