package token

import (
	"cmp"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/wire"
)

// status is how everything stands. Only the loop calls it.
func (d *Daemon) status() wire.Status {
	window := d.settings.Window
	if window <= 0 {
		window = gpu.Window
	}
	out := wire.Status{WindowMS: millis(window), Policy: PolicyName, GPUs: []wire.GPUStatus{}}
	for _, g := range d.devices() {
		g.step(policy.Wake{}) // closes the windows that have ended
		out.GPUs = append(out.GPUs, wire.GPUStatus{
			GPU: g.name, SMRunningPct: g.sched.SMRunning(), Clients: d.clientsOf(g),
		})
	}
	return out
}

// clientsOf are the processes on a GPU, and its instances without any, by
// instance and process.
func (d *Daemon) clientsOf(g *device) []wire.ClientStatus {
	out := []wire.ClientStatus{}
	for _, c := range g.sched.Clients() {
		m := d.members[c.Client]
		if m == nil {
			continue
		}
		row := d.row(g, m.inst)
		n := m.inst.page.counters(m.slot)
		row.PID, row.Used, row.State = m.pid, c.Used, c.State.String()
		row.MemUsedMiB, row.Launches = gpu.Bytes(min(n.memUsed, 1<<62)).MiB(), n.launches
		row.BlockedMS = millis(duration(n.blockedNS))
		out = append(out, row)
	}
	for _, inst := range d.instances {
		if inst.reg.GPU == g.name && inst.connected == 0 {
			out = append(out, d.row(g, inst))
		}
	}
	slices.SortFunc(out, func(a, b wire.ClientStatus) int {
		return cmp.Or(cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.PID, b.PID))
	})
	return out
}

// row is what a status says about an instance that has no process.
func (d *Daemon) row(g *device, inst *instance) wire.ClientStatus {
	return wire.ClientStatus{
		Instance: inst.reg.Instance, Function: inst.reg.Function, State: "absent",
		SMPct: inst.reg.SMPct, QuotaRequest: inst.reg.QuotaRequest, QuotaLimit: inst.reg.QuotaLimit,
		DebtMS: millis(g.sched.Debt(inst.reg.Instance)), MemLimitMiB: inst.reg.MemLimit.MiB(),
	}
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
