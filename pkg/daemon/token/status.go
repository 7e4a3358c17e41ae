package token

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gfaas/gfaas/pkg/gpu"
	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/reason"
	"github.com/gfaas/gfaas/pkg/wire"
)

const (
	notConnected reason.Code = "not-connected"
	unlimited    reason.Code = "unmanaged"
)

// Reasons documents the codes that the daemon itself gives as reasons, in addition to the policy's.
var Reasons = reason.Table{
	reason.Doc(notConnected, "no process of the instance is connected"),
	reason.Doc(unlimited, "the process uses the driver without the preload library: nothing limits it", "program", "its program"),
}

// statusOf returns the state of all GPUs and instances. The caller holds the lock.
func statusOf(r *registry) wire.Status {
	out := wire.Status{WindowMS: millis(r.gpus.window()), Policy: r.cfg.Policy, GPUs: []wire.GPUStatus{}}
	if r.cfg.Grants != nil {
		out.Node = r.cfg.Grants.Node
	}
	for _, g := range r.gpus.sorted() {
		g.wake() // closes the windows that have ended
		now := g.sched.Snapshot()
		out.GPUs = append(out.GPUs, wire.GPUStatus{
			GPU: g.name, SMRunningPct: now.SMRunning, RoundMS: millis(now.Round), HandoverMS: millis(now.Handover),
			Clients: rowsOf(r, g, now),
		})
	}
	return out
}

// rowsOf returns the status rows of a GPU, ordered by instance and PID: one per process, managed or
// not, and one for each instance without a connected process.
func rowsOf(r *registry, g *device, now policy.Snapshot) []wire.ClientStatus {
	clients := map[policy.ClientID]policy.ClientStatus{}
	for _, c := range now.Clients {
		clients[c.Client] = c
	}
	out := []wire.ClientStatus{}
	for _, inst := range r.instances {
		a := inst.allocationOn(g)
		if a == nil {
			continue
		}
		i := now.Instance(inst.reg.Instance)
		absent := a.row(i)
		if a.connected == 0 {
			out = append(out, absent)
		}
		for _, c := range a.sessions {
			if c != nil {
				out = append(out, c.row(absent, clients[c.id], i))
			}
		}
		out = append(out, a.unmanagedRows(absent)...)
	}
	slices.SortFunc(out, func(a, b wire.ClientStatus) int {
		return cmp.Or(cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.PID, b.PID))
	})
	return out
}

// row returns the status row of an allocation without a process.
func (a *allocation) row(i policy.InstanceStatus) wire.ClientStatus {
	var texts []string
	for _, s := range []string{a.inst.bypasses.String(), a.inst.findings.String()} {
		if s != "" {
			texts = append(texts, s)
		}
	}
	return wire.ClientStatus{
		Instance: a.inst.reg.Instance, Function: a.inst.reg.Function, State: "absent", Why: string(notConnected), Reason: reason.New(notConnected),
		SMPct: a.SMPct, SMLimitPct: a.SMLimitPct, QuotaRequest: a.QuotaRequest, QuotaLimit: a.QuotaLimit,
		DebtMS: millis(i.Debt), OwedMS: millis(i.Owed), MemLimitMiB: a.MemLimit.MiB(), MemStoredMiB: a.stored().MiB(), MemRefused: a.endedTotals.memRefused,
		UnmanagedPrograms: strings.Join(texts, "; "), Fault: a.inst.faultOf(0),
	}
}

// row returns the row of the session's allocation, completed for its process.
func (c *session) row(row wire.ClientStatus, s policy.ClientStatus, i policy.InstanceStatus) wire.ClientStatus {
	n := c.page.counters(c.slot)
	row.PID, row.Used, row.State, row.Why, row.Reason = c.pid, s.Used, s.State.String(), s.Reason.String(), s.Reason
	row.MemUsedMiB, row.Launches = gpu.Bytes(min(n.memUsed, maxBytes)).MiB(), n.launches
	row.MemParkedMiB = gpu.Bytes(min(n.memParked, n.memUsed, maxBytes)).MiB()
	if slices.Contains(c.alloc.inst.parked.pids, c.pid) {
		row.MemParkedMiB = row.MemUsedMiB
	}
	row.MemImportedMiB = gpu.Bytes(min(n.memImported, maxBytes)).MiB()
	row.MemRefused += n.memRefused
	row.BlockedMS = millis(boundedDuration(n.blockedNS))
	row.ContextMiB = c.foreign.MiB()
	row.Fault = c.alloc.inst.faultOf(c.pid)
	row.Phase = i.Phase
	if s.Budget != policy.Unlimited {
		row.BudgetBlocks = s.Budget
	}
	return row
}

// unmanagedRows returns rows for the unmanaged processes of an instance, only on the instance's first
// GPU.
func (a *allocation) unmanagedRows(row wire.ClientStatus) (rows []wire.ClientStatus) {
	if a.inst.allocations[0] != a {
		return nil
	}
	row.State, row.Used, row.DebtMS = wire.StateUnmanaged, 0, 0
	for _, u := range a.inst.findings.unmanaged {
		row.PID = u.PID
		row.Reason = reason.New(unlimited, reason.Text("program", u.Program))
		row.Why = row.Reason.String()
		row.ContextMiB = a.gpu.memoryByPID[u.PID].MiB()
		rows = append(rows, row)
	}
	return rows
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// collector exports the state of instances and clients.
type collector struct{ registry *registry }

// export returns the metrics of the daemon.
func (r *registry) export() *prometheus.Registry {
	out, m := prometheus.NewRegistry(), r.metrics
	out.MustRegister(m.grants, m.revokes, m.refused, m.waits, m.leases, collector{r})
	return out
}

// totals returns the sums over ended and current sessions.
func (a *allocation) totals(now policy.Snapshot) totals {
	out := a.endedTotals
	out.gpu, out.instance = a.gpu.name, a.inst.reg.Instance
	for _, c := range a.sessions {
		if c != nil {
			out.add(a.page.counters(c.slot))
		}
	}
	out.gpuTime = now.Instance(out.instance).Charged.Seconds()
	return out
}

// Describe implements prometheus.Collector.
func (m collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, ch) }

// Collect implements prometheus.Collector.
func (m collector) Collect(ch chan<- prometheus.Metric) {
	var s wire.Status
	var all []totals
	if m.registry.locked(func() {
		s = statusOf(m.registry)
		for _, g := range m.registry.gpus.sorted() {
			now := g.sched.Snapshot()
			for _, i := range m.registry.instances {
				if a := i.allocationOn(g); a != nil {
					all = append(all, a.totals(now))
				}
			}
		}
	}) != nil {
		return
	}
	export := func(kind prometheus.ValueType, name, help string, v float64, labels prometheus.Labels) {
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc("gfaas_token_"+name, help, nil, labels), kind, v)
	}
	for _, t := range all {
		of := prometheus.Labels{"gpu": t.gpu, "instance": t.instance}
		export(prometheus.CounterValue, "gpu_seconds_total", "GPU time that an instance was charged.", t.gpuTime, of)
		export(prometheus.CounterValue, "launches_total", "Launches of an instance's processes.", t.launches, of)
		export(prometheus.CounterValue, "blocked_seconds_total",
			"Time for which an instance's processes waited at a closed gate.", t.blocked, of)
	}
	for _, g := range s.GPUs {
		states, phases := map[string]int{}, map[[2]string]bool{}
		memory := map[string]float64{}
		for _, c := range g.Clients {
			states[c.State]++
			memory[c.Instance] += c.MemUsedMiB * (1 << 20)
			if c.Phase != "" {
				phases[[2]string{c.Instance, c.Phase}] = true
			}
		}
		for _, state := range []string{"absent", "idle", "waiting", "running", "draining", "suspended"} {
			export(prometheus.GaugeValue, "clients", "Processes by state; absent counts instances without a process.",
				float64(states[state]), prometheus.Labels{"gpu": g.GPU, "state": state})
		}
		for of := range phases {
			export(prometheus.GaugeValue, "phase", "1 for the current phase of an instance (policy introspective).",
				1, prometheus.Labels{"gpu": g.GPU, "instance": of[0], "phase": of[1]})
		}
		for id, bytes := range memory {
			export(prometheus.GaugeValue, "memory_bytes", "GPU memory that an instance has allocated.",
				bytes, prometheus.Labels{"gpu": g.GPU, "instance": id})
		}
		gpu := prometheus.Labels{"gpu": g.GPU}
		export(prometheus.GaugeValue, "instances", "Registered instances.", float64(len(memory)), gpu)
		export(prometheus.GaugeValue, "sm_running_ratio", "Share of the SMs that leases hold.", g.SMRunningPct/100, gpu)
	}
}
