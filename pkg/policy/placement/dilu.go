package placement

import (
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/online"
	"github.com/gfaas/gfaas/pkg/reason"
)

// dilu places instances by Dilu's Algorithm 1 (section 3.3). Dilu has one rate, that of the SMs. Here an
// instance has an SM share and a quota, and its rate is their product: of the requests for the share of
// the GPU that it requests, and of the limits for the share that it may reach.
type dilu struct{ fleet *online.Fleet }

func newDilu(gpus []GPU, o Options) Placer {
	devices := make([]plan.Device, len(gpus))
	for i, g := range gpus {
		devices[i] = plan.Device{Index: i, MemMiB: g.Mem.MiB(), Model: g.Model}
	}
	return dilu{online.Dilu(devices, o.Dilu)}
}

func (d dilu) Place(r Request, free []gpu.Bytes, except func(int) bool) ([]int, reason.Reason) {
	q := d.request(r)
	q.Except = func(g int) bool { return free[g] < r.Mem || except(g) }
	at := d.fleet.Place(q)
	return at.GPUs, at.Reason
}

func (d dilu) Put(r Request, gpus []int) {
	d.fleet.Remove(r.ID)
	d.fleet.Put(d.request(r), gpus)
}

func (d dilu) Remove(id string) { d.fleet.Remove(id) }

func (dilu) request(r Request) online.Request {
	q := online.Request{
		Instance: r.ID, Function: r.Function, GPUs: r.GPUs, Mem: r.Mem, Large: true,
		SMRequest: r.Slice.SMPct / 100 * r.Slice.QuotaRequest, SMLimit: r.Slice.LargestSMPct() / 100 * r.Slice.QuotaLimit,
	}
	if r.Model != "" {
		q.Models = []string{r.Model}
	}
	return q
}
