package top

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gfaas/gfaas/pkg/status"
	"github.com/gfaas/gfaas/pkg/wire"
)

// FromTokens converts the status of the token daemon, which has a row for each process (client), into the form of the
// gateway's status, which has a row for each instance. Values that only the gateway knows stay nil.
//
// An instance with several GPUs has a row for each of them. The state of a row is faulted if a process that has not ended
// cannot use CUDA any more; otherwise running if the state of any process is running; otherwise the state of the first
// process.
func FromTokens(s wire.Status) status.Status {
	out := status.Status{GPUs: []status.GPU{}, Functions: []status.Function{}, Instances: []status.Instance{}}
	functions, instances := map[string]*status.Function{}, map[[2]string]*status.Instance{}
	counted := map[string]bool{} // instances by ID; one may use several GPUs
	for _, g := range s.GPUs {
		busy, mem := 0.0, 0.0
		for _, c := range g.Clients {
			used := c.MemUsedMiB - c.MemParkedMiB
			busy, mem = busy+100*c.Busy(), mem+used
			i := instances[[2]string{c.Instance, g.GPU}]
			if i == nil { // the first process of the instance on this GPU
				i = &status.Instance{ID: c.Instance, Function: c.Function, GPU: g.GPU, State: c.State, MemUsedMiB: new(float64),
					SMPct: c.SMPct, SMLimitPct: c.SMLimitPct, QuotaRequest: c.QuotaRequest, QuotaLimit: c.QuotaLimit}
				instances[[2]string{c.Instance, g.GPU}] = i
				f := functions[c.Function]
				if f == nil {
					f = &status.Function{Function: c.Function, State: status.Ready}
					functions[c.Function] = f
				}
				if !counted[c.Instance] {
					counted[c.Instance] = true
					f.Instances++
				}
			}
			*i.MemUsedMiB += used
			if c.Fault != "" && c.PID != 0 { // PID 0 stands for processes that have ended
				i.State = "faulted"
			} else if c.State == "running" && i.State != "faulted" {
				i.State = c.State
			}
		}
		busy = min(busy, 100)
		out.GPUs = append(out.GPUs, status.GPU{GPU: g.GPU, BusyPct: &busy, MemUsedMiB: &mem})
	}
	for _, name := range slices.Sorted(maps.Keys(functions)) {
		out.Functions = append(out.Functions, *functions[name])
	}
	for _, i := range instances {
		out.Instances = append(out.Instances, *i)
	}
	slices.SortFunc(out.Instances, func(a, b status.Instance) int { return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.GPU, b.GPU)) })
	return out
}
