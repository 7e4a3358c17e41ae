package token

import (
	"cmp"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/wire"
)

// status is how everything stands. Locked.
func (d *Daemon) status() wire.Status {
	out := wire.Status{WindowMS: millis(d.window()), Policy: d.cfg.Policy, GPUs: []wire.GPUStatus{}}
	for _, g := range d.devices() {
		g.wake() // closes the windows that have ended
		now := g.sched.Snapshot()
		out.GPUs = append(out.GPUs, wire.GPUStatus{
			GPU: g.name, SMRunningPct: now.SMRunning, Clients: d.clientsOf(g, now),
		})
	}
	return out
}

// window is the length of a scheduling window.
func (d *Daemon) window() time.Duration {
	if d.settings.Window <= 0 {
		return gpu.Window
	}
	return d.settings.Window
}

// clientsOf are the processes on a GPU, and its instances without any, by
// instance and process.
func (d *Daemon) clientsOf(g *device, now policy.Snapshot) []wire.ClientStatus {
	out := []wire.ClientStatus{}
	for _, c := range now.Clients {
		m := d.clients[c.Client]
		if m == nil {
			continue
		}
		i := now.Instance(c.Instance)
		row := m.alloc.row(i)
		n := m.alloc.page.counters(m.slot)
		row.PID, row.Used, row.State, row.Why = m.pid, c.Used, c.State.String(), c.Why
		row.MemUsedMiB, row.Launches = gpu.Bytes(min(n.memUsed, 1<<62)).MiB(), n.launches
		row.MemParkedMiB = gpu.Bytes(min(n.memParked, n.memUsed, 1<<62)).MiB()
		if slices.Contains(m.alloc.inst.parked.pids, m.pid) {
			row.MemParkedMiB = row.MemUsedMiB
		}
		row.MemImportedMiB = gpu.Bytes(min(n.memImported, 1<<62)).MiB()
		row.MemRefused += n.memRefused
		row.BlockedMS = millis(duration(n.blockedNS))
		row.ContextMiB = m.foreign.MiB()
		row.Fault = m.alloc.inst.faultOf(m.pid)
		scaling(&row, c, i)
		out = append(out, row)
	}
	for _, inst := range d.instances {
		s := inst.on(g)
		if s == nil {
			continue
		}
		row := s.row(now.Instance(inst.reg.Instance))
		if s.connected == 0 {
			out = append(out, row)
		}
		out = append(out, s.outsiders(row)...)
	}
	slices.SortFunc(out, func(a, b wire.ClientStatus) int {
		return cmp.Or(cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.PID, b.PID))
	})
	return out
}

// row is what a status says about an allocation that no process has.
func (a *allocation) row(i policy.InstanceStatus) wire.ClientStatus {
	return wire.ClientStatus{
		Instance: a.inst.reg.Instance, Function: a.inst.reg.Function, State: "absent", Why: "none of its processes is connected",
		SMPct: a.SMPct, QuotaRequest: a.QuotaRequest, QuotaLimit: a.QuotaLimit,
		DebtMS: millis(i.Debt), OwedMS: millis(i.Owed), MemLimitMiB: a.MemLimit.MiB(), MemStoredMiB: a.stored().MiB(), MemRefused: a.left.memRefused, Strays: a.inst.straysText(),
		Fault: a.inst.faultOf(0),
	}
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// scaling adds to a row of the status what the policy says of a client and its
// instance.
func scaling(row *wire.ClientStatus, c policy.ClientStatus, i policy.InstanceStatus) {
	row.Phase = i.Phase
	if c.Budget != policy.Unlimited {
		row.BudgetBlocks = c.Budget
	}
}
