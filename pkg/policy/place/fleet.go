package place

import (
	"slices"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
	"github.com/gfaas/gfaas/pkg/profile"
)

// host is a GPU that is being filled.
type host struct {
	number    int // in the fleet
	device    plan.Device
	room      gpu.Bytes
	space     *maxrect.Space
	instances []plan.Instance
}

// fleet is all GPUs, in the order of the inventory.
type fleet struct {
	hosts   []*host
	open    []*host // those with free rectangles, and some without, in the same order
	full    int     // how many of open have none
	seek    seek
	elastic bool    // more GPUs come as they are needed
	limited bool    // memory counts
	mem     float64 // of a GPU that comes, in MiB
	count   int     // instances placed
}

func newFleet(in Input) *fleet {
	f := &fleet{elastic: in.Devices == nil, limited: in.limits(), mem: in.MemMiB}
	for _, d := range in.Devices {
		f.add(d)
	}
	return f
}

func (f *fleet) add(d plan.Device) *host {
	h := &host{number: len(f.hosts), device: d, room: room(d), space: maxrect.New(one, one, maxrect.DefaultThreshold)}
	f.hosts = append(f.hosts, h)
	f.open = append(f.open, h)
	return h
}

// place puts one instance of the configuration where the least free area is
// left beside it, over all free rectangles of all GPUs (FaST-GShare, section
// 3.4.2, Algorithm 2); a GPU in use is so preferred to an empty one. It says
// whether there was room.
func (f *fleet) place(id string, row profile.Row) bool {
	n := needOf(row)
	best, ok := f.find(n)
	if !ok {
		if !f.elastic {
			return false
		}
		best = offer{host: f.add(plan.Device{Node: "node0", Index: len(f.hosts), MemMiB: f.mem}), at: maxrect.Rect{W: n.w, H: n.h}}
	}
	host := best.host
	host.space.Place(best.at)
	if host.room != unlimited {
		host.room -= n.mem
	}
	host.instances = append(host.instances, f.instance(id, row, best.at))
	f.seek.changed(host)
	f.close(host)
	return true
}

// close stops looking at a GPU without free rectangles: when half of those
// looked at have none, they are dropped.
func (f *fleet) close(h *host) {
	if len(h.space.Free()) > 0 {
		return
	}
	if f.full++; 2*f.full > len(f.open) {
		f.open = slices.DeleteFunc(f.open, func(h *host) bool { return len(h.space.Free()) == 0 })
		f.full = 0
	}
}

func (f *fleet) instance(id string, row profile.Row, at maxrect.Rect) plan.Instance {
	x, y := float64(at.X)/one, float64(at.Y)/(one/100)
	in := plan.Instance{
		ID: id, Function: row.Function, SMPct: row.SMPct, QuotaRequest: row.Quota, QuotaLimit: row.Quota,
		Batch: row.Batch, RPS: row.ThroughputRPS, X: &x, Y: &y,
	}
	if f.limited {
		in.MemMiB = row.GPUMemMiB
	}
	return in
}

// fits says whether the configuration's rectangle has room on some GPU, its
// memory aside.
func (f *fleet) fits(row profile.Row) bool {
	for _, h := range f.open {
		if !matches(row, h.device) {
			continue
		}
		if _, _, ok := h.space.Best(share(row.Quota), share(row.SMPct/100)); ok {
			return true
		}
	}
	return false
}

// used are the GPUs with instances, as a plan lists them.
func (f *fleet) used() []plan.GPU {
	gpus := []plan.GPU{}
	for _, h := range f.hosts {
		if len(h.instances) > 0 {
			gpus = append(gpus, plan.GPU{Node: h.device.Node, Index: h.device.Index, MemMiB: h.device.MemMiB, Instances: h.instances})
		}
	}
	return gpus
}
