package place

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
	"github.com/gfaas/gfaas/pkg/policy/place/online"
	"github.com/gfaas/gfaas/pkg/profile"
)

// DiluOptions are the parameters of Dilu's scheduler, and the order in which
// instances come to it.
type DiluOptions struct {
	online.DiluOptions // Omega at most 1: a plan's rectangles do not overlap
	Order              Order
}

// Dilu plans as Dilu's scheduler places (section 3.3, Algorithm 1), instance by
// instance. Dilu divides SMs, not time: of a function's configurations only
// those of its largest quota count, and of them the one of the best throughput
// efficacy is its request; the limit is twice that (section 3.2). Where no GPU
// has room for it the next best are tried. Inference that spans several GPUs
// counts as a large model. It fails when the demand takes more than 5 million
// instances.
func Dilu(in Input, o DiluOptions) (plan.Plan, error) {
	in = in.apart()
	d := diluPlanner{in: in, wanted: in.wants()}
	if in.Devices == nil {
		d.fleet = online.DiluElastic(in.more(0), o.DiluOptions)
	} else {
		d.devices = online.Grouped(in.Devices)
		d.fleet = online.Dilu(d.devices, o.DiluOptions)
	}
	d.lacking = make([]online.Reason, len(d.wanted))
	order := make([]int, len(d.wanted))
	for i := range d.wanted {
		order[i] = i
		d.rows = append(d.rows, ofLargestQuota(d.wanted[i].rows))
	}
	if o.Order == Largest {
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(d.size(b), d.size(a)) })
	}
	if err := d.tooMany(); err != nil && in.Devices == nil {
		return plan.Plan{}, err
	}
	for _, f := range order {
		d.serve(f)
	}
	return d.plan(), nil
}

// tooMany refuses a demand that takes more than maxInstances of the best
// configurations.
func (d *diluPlanner) tooMany() error {
	rate := make([]float64, len(d.wanted))
	for f, rows := range d.rows {
		if len(rows) > 0 {
			rate[f] = rows[0].ThroughputRPS
		}
	}
	return tooMany(d.wanted, rate, "most efficient")
}

// ofLargestQuota are the rows of the largest quota, the most efficient first.
func ofLargestQuota(rows []profile.Row) []profile.Row {
	widest := 0.0
	for _, r := range rows {
		widest = max(widest, r.Quota)
	}
	return efficient(filter(rows, func(r profile.Row) bool { return r.Quota == widest }), LargerQuota)
}

// diluPlanner is a plan that Dilu's scheduler is making.
type diluPlanner struct {
	in      Input
	wanted  []want
	rows    [][]profile.Row // by function, best first
	devices []plan.Device   // none: as many as it takes
	fleet   *online.Fleet
	gpus    []plan.GPU      // by their place in the fleet
	tops    []int64         // where the next rectangle of each begins
	lacking []online.Reason // by function: why one of the best configuration was not placed
}

// size is the request of a function's best configuration.
func (d *diluPlanner) size(f int) float64 {
	if len(d.rows[f]) == 0 {
		return 0
	}
	return d.rows[f][0].SMPct
}

// serve places instances of a function until its demand is served.
func (d *diluPlanner) serve(f int) {
	w := &d.wanted[f]
	fn := d.in.function(w.demand.Function)
	for _, row := range d.rows[f] {
		for w.missing() > 0 {
			r := online.Request{
				Instance: fmt.Sprintf("%s-%d", w.demand.Function, w.count), Function: w.demand.Function, GPUs: fn.GPUs,
				SMRequest: row.SMPct / 100, SMLimit: min(1, 2*row.SMPct/100),
				Large: fn.Kind != "training",
			}
			if d.in.limits() {
				r.Mem = gpu.FromMiB(row.GPUMemMiB)
			}
			if row.GPU != "" {
				r.Models = []string{row.GPU}
			}
			at := d.fleet.Place(r)
			if len(at.GPUs) == 0 {
				d.lacking[f] = cmp.Or(d.lacking[f], at.Reason)
				break
			}
			for _, g := range at.GPUs {
				d.host(g, r.Instance, row)
			}
			w.add(row)
		}
	}
}

// host lists an instance on its GPU: for its quota of the window, on the SMs
// above those that are taken.
func (d *diluPlanner) host(g int, id string, row profile.Row) {
	for len(d.gpus) <= g {
		device := d.in.more(len(d.gpus))
		if d.devices != nil {
			device = d.devices[len(d.gpus)]
		}
		d.gpus = append(d.gpus, gpuOf(device))
		d.tops = append(d.tops, 0)
	}
	in := newInstance(id, row, d.in.limits())
	setCorner(&in, maxrect.Rect{Y: d.tops[g]})
	d.tops[g] += share(row.SMPct / 100)
	d.gpus[g].Instances = append(d.gpus[g].Instances, in)
}

func (d *diluPlanner) plan() plan.Plan {
	bound, method := d.in.bound(d.wanted)
	p := d.in.empty("dilu", plan.ModelRect, bound, method)
	for _, g := range d.gpus {
		if len(g.Instances) > 0 {
			p.GPUs = append(p.GPUs, g)
		}
	}
	p.GPUsUsed = len(p.GPUs)
	for i, w := range d.wanted {
		account(&p, &w, func() string { return cmp.Or(w.reason, string(d.lacking[i])) })
	}
	return p
}
