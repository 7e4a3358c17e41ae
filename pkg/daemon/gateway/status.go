package gateway

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/status"
	"github.com/gfaas/gfaas/pkg/wire"
)

// Status is how everything stands.
func (g *Gateway) Status() status.Status { return g.status() }

func (g *Gateway) serveStatus(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(g.status()) // nobody is there to be told
}

func (g *Gateway) status() status.Status {
	usage := g.usage.Load()
	e := &g.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	at := e.now()
	snapshot := e.policy.Snapshot()
	s := status.Status{GPUs: []status.GPU{}, Functions: []status.Function{}, Instances: []status.Instance{}}
	running := map[int32]int{}
	stands := map[residency.ID]residency.Standing{}
	for _, i := range snapshot.Instances {
		stands[i.Instance] = i
		running[i.GPU] += i.Calls
	}
	queues := map[int32]queue.FunctionStatus{}
	for _, f := range snapshot.Functions {
		queues[f.Function] = f
	}
	for _, v := range e.servers {
		for _, gpu := range v.further {
			running[gpu] += stands[v.id].Calls
		}
	}
	for i, gpu := range g.cfg.GPUs {
		row := status.GPU{GPU: gpu.Name, Slots: new(e.slots()), Running: new(running[int32(i)])}
		if gpu.Mem > 0 {
			row.MemMiB = new(mib(gpu.Mem))
		}
		if usage != nil {
			busy, mem := usageOf(usage, gpu.Name)
			row.BusyPct, row.MemUsedMiB = new(100*busy), new(mem)
		}
		if m := &e.memory.gpus[i]; m.known {
			row.MemUsedMiB, row.MemOtherMiB = new(mib(m.driver.Total-m.driver.Free)), new(mib(m.others))
		}
		s.GPUs = append(s.GPUs, row)
	}
	counts, planned := map[*target]int{}, map[*target]float64{}
	for _, v := range e.servers {
		if v.state == serverReady {
			counts[v.target]++
			planned[v.target] += v.record.RPS
		}
		s.Instances = append(s.Instances, instanceStatus(g, v, stands[v.id], at, usage))
	}
	s.Instances = append(s.Instances, e.faultedStatus()...)
	slices.SortFunc(s.Instances, func(a, b status.Instance) int { return cmp.Compare(a.ID, b.ID) })
	for _, t := range e.inOrder() {
		if !t.gone {
			f := t.status(g.limits.now(), queues[t.number], counts[t])
			if rps := planned[t]; rps > 0 {
				f.PlannedRPS = &rps
			}
			s.Functions = append(s.Functions, f)
		}
	}
	slices.SortFunc(s.Functions, func(a, b status.Function) int { return cmp.Compare(a.Function, b.Function) })
	return s
}

// slots is how many calls a GPU runs at once. Locked.
func (e *engine) slots() int {
	if queue.OneAtATime(e.g.cfg.Policy.Policy) {
		return 1
	}
	return e.g.cfg.Concurrency
}

// status is how a function stands. Locked.
func (t *target) status(now time.Duration, q queue.FunctionStatus, ready int) status.Function {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := status.Function{Function: t.name, State: status.Idle, Waiting: &q.Waiting, InFlight: &q.InFlight, Instances: t.instances,
		ColdStarts: new(t.found[residency.Cold]), HostWarmStarts: new(t.found[residency.HostWarm]), GPUWarmStarts: new(t.found[residency.GPUWarm]),
		Rejected: new(t.rejected), Errors: new(t.errors), GPUSeconds: new(t.served.Seconds()), Why: q.Why}
	switch {
	case ready > 0:
		f.State = status.Ready
	case t.fails >= failing:
		f.State, f.Why = status.Failing, cmp.Or(f.Why, firstLine(t.failure))
	case t.instances > 0:
		f.State = status.Starting
	}
	rps, ms := t.recent.look(now, 0.5, 0.95, 0.99)
	f.RPS, f.P50MS, f.P95MS, f.P99MS = &rps, &ms[0], &ms[1], &ms[2]
	return f
}

// failing is how many starts that failed in a row make a function one that fails.
const failing = 3

func firstLine(err error) string {
	if err == nil {
		return ""
	}
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// instanceStatus is how an instance stands. Locked.
func instanceStatus(g *Gateway, v *server, s residency.Standing, at time.Duration, usage *wire.Status) status.Instance {
	r := v.record
	i := status.Instance{ID: r.ID, Function: v.target.name, GPU: cmp.Or(strings.Join(r.GPUs, ","), g.cfg.GPUs[v.gpu].Name), State: s.State, InFlight: new(len(v.calls)),
		Address: r.Handle.Address, SMPct: r.Slice.SMPct, QuotaRequest: r.Slice.QuotaRequest, QuotaLimit: r.Slice.QuotaLimit}
	switch v.state {
	case serverStarts:
		i.State = "starting"
	case serverStops:
		i.State = "stopping"
	case serverReady:
		i.Residency = "gpu"
		if s.Mem == 0 && v.target.spec.Mem > 0 {
			i.Residency = "host"
		}
		if len(v.calls) == 0 {
			i.IdleS = new((at - v.since).Seconds())
		}
	case serverGone:
	}
	if usage != nil {
		if mem, known := memoryOf(usage, r.ID); known {
			i.MemUsedMiB = &mem
		}
	}
	return i
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// usageOf is how busy a GPU was in the token daemon's last window, 0 to 1, and the
// MiB of memory that instances have there, with their contexts.
func usageOf(s *wire.Status, gpu string) (busy, mem float64) {
	for _, g := range s.GPUs {
		if g.GPU != gpu {
			continue
		}
		for _, c := range g.Clients {
			busy += c.Used * c.SMPct / 100
			mem += c.MemUsedMiB - c.MemParkedMiB + c.ContextMiB
		}
	}
	return min(busy, 1), mem
}

func memoryOf(s *wire.Status, instance string) (mem float64, known bool) {
	for _, g := range s.GPUs {
		for _, c := range g.Clients {
			if c.Instance == instance {
				mem, known = mem+c.MemUsedMiB-c.MemParkedMiB, true
			}
		}
	}
	return mem, known
}
