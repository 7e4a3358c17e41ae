package token

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/wire"
)

// device is one GPU: a scheduler and the timer it is woken by.
type device struct {
	name  string
	d     *Daemon
	sched *policy.Scheduler
	timer *time.Timer
}

// device finds or makes the GPU of that name. Leases start at a random number,
// so that one from before a restart is not taken for one of ours.
func (d *Daemon) device(name string) *device {
	g := d.gpus[name]
	if g == nil {
		cfg := policy.Config{Window: d.settings.Window, SMLimit: d.settings.SMLimit, FirstLease: rand.Uint32()}
		g = &device{name: name, d: d, sched: policy.New(cfg, time.Since(d.epoch))}
		g.timer = time.AfterFunc(time.Hour, func() { d.post(func() { g.step(policy.Wake{}) }) })
		g.timer.Stop()
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

// step tells the scheduler what happened and does what it says. Only the loop
// calls it.
func (g *device) step(ev policy.Event) {
	now := time.Since(g.d.epoch)
	for _, a := range g.sched.Step(now, ev) {
		switch a := a.(type) {
		case policy.Grant:
			g.grant(a)
		case policy.Revoke:
			g.revoke(a)
		case policy.WakeAt:
			g.timer.Reset(a.At - now)
		}
	}
}

func (g *device) grant(a policy.Grant) {
	m := g.d.members[a.Client]
	if m == nil {
		return
	}
	m.granted, m.lease = time.Now(), a.Lease
	m.inst.page.setGate(m.slot, a.Lease)
	g.d.metrics.granted(g.name, m.granted.Sub(m.asked))
	g.d.log.Debug("grant", "gpu", g.name, "instance", m.inst.reg.Instance, "pid", m.pid, "lease", a.Lease, "reason", a.Reason)
}

// revoke closes the gate first: once the process reads the message nothing
// more can be launched under the lease.
func (g *device) revoke(a policy.Revoke) {
	m := g.d.members[a.Client]
	if m == nil {
		return
	}
	m.inst.page.setGate(m.slot, 0)
	g.d.metrics.revokes.WithLabelValues(g.name).Inc()
	g.d.log.Debug("revoke", "gpu", g.name, "instance", m.inst.reg.Instance, "pid", m.pid, "lease", a.Lease, "reason", a.Reason)
	if err := send(m.conn, wire.LeaseEnd{Lease: a.Lease}, nil); err != nil {
		g.d.log.Warn("client does not read its messages", "instance", m.inst.reg.Instance, "pid", m.pid, "err", err)
		_ = m.conn.Close() // its reader ends and takes it out
	}
}

// heard passes on what a process said.
func (d *Daemon) heard(m *member, ev policy.Event) {
	if d.members[m.id] != m {
		return
	}
	now := time.Now()
	switch ev := ev.(type) {
	case policy.Request:
		m.asked = now
	case policy.Return:
		if ev.Lease != m.lease {
			break // it crossed a LeaseEnd
		}
		// A process that gives its lease back unasked has closed its gate
		// itself; a careless one is gated here.
		m.lease = 0
		m.inst.page.setGate(m.slot, 0)
		d.metrics.returned(m.inst.reg, now.Sub(m.granted), ev.Used)
		m.asked = now
	}
	d.device(m.inst.reg.GPU).step(ev)
}
