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
	"github.com/gfaas/gfaas/pkg/reason"
)

// Dilu plans with Dilu's scheduler (section 3.3, Algorithm 1), instance by instance. Dilu divides
// SMs but not time, so an instance takes its SM share of a GPU whatever its quota is. The request is
// the configuration with the most throughput per SM (the paper's throughput efficacy, section 3.2);
// its limits decide which instances share a GPU. If no GPU has
// room for it, Dilu tries the next best. The plan states only the limits of rows that state theirs
// (see withLimits). An inference function that spans several GPUs counts as a
// large model. Dilu returns an error if the demand needs more than 5 million instances.
func Dilu(in Input, o Options) (plan.Plan, error) {
	in = in.splitByModel()
	d := diluPlanner{in: in, demands: in.functionDemands()}
	if in.Devices == nil {
		d.fleet = online.DiluElastic(in.newDevice(0), o.Dilu)
	} else {
		d.devices = online.Grouped(in.Devices)
		d.fleet = online.Dilu(d.devices, o.Dilu)
	}
	d.lacking = make([]reason.Reason, len(d.demands))
	order := make([]int, len(d.demands))
	for i := range d.demands {
		order[i] = i
		d.rows = append(d.rows, byEfficacyOfSMs(d.demands[i].rows))
	}
	if o.Order == Largest {
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(d.size(b), d.size(a)) })
	}
	best := func(f int) float64 {
		if len(d.rows[f]) == 0 {
			return 0
		}
		return d.rows[f][0].ThroughputRPS
	}
	if err := tooMany(d.demands, best, "most efficient"); err != nil && in.Devices == nil {
		return plan.Plan{}, err
	}
	for _, f := range order {
		d.serve(f)
	}
	return d.plan(), nil
}

// byEfficacyOfSMs returns the rows, those with the most throughput per SM first. Of equal rows, the
// one with the larger quota is first.
func byEfficacyOfSMs(rows []profile.Row) []profile.Row {
	rows = efficient(rows, LargerQuota)
	slices.SortStableFunc(rows, func(a, b profile.Row) int {
		return cmp.Or(cmp.Compare(b.ThroughputRPS/b.SMPct, a.ThroughputRPS/a.SMPct), cmp.Compare(b.Quota, a.Quota))
	})
	return rows
}

// withLimits returns the input with limits in all rows. A row that states no limits gets those of
// Dilu (section 3.2).
func (in Input) withLimits() Input {
	byFunction := map[string][]profile.Row{}
	for _, r := range in.Profile {
		byFunction[r.Function] = append(byFunction[r.Function], r)
	}
	in.Profile = slices.Clone(in.Profile)
	for i, r := range in.Profile {
		in.Profile[i].SMLimitPct, in.Profile[i].QuotaLimit = in.limits(r, byFunction[r.Function])
	}
	return in
}

// limits returns the limits of a row. The parameter rows has at least the rows of its function.
func (in Input) limits(r profile.Row, rows []profile.Row) (smPct, quota float64) {
	smPct, quota, stated := r.Limits()
	if stated {
		return smPct, quota
	}
	if fn, _ := in.function(r.Function); fn.Kind == "training" {
		return profile.TrainingLimits(rows, r)
	}
	return r.InferenceLimits()
}

// diluPlanner is a plan that Dilu's scheduler builds.
type diluPlanner struct {
	in      Input
	demands []functionDemand
	rows    [][]profile.Row // by function, best first
	devices []plan.Device   // nil if unlimited
	fleet   *online.Fleet
	gpus    []plan.GPU      // by index in the fleet
	nextY   []int64         // by index: where the next rectangle begins
	lacking []reason.Reason // by function: why an instance of the best configuration was not placed
}

// size returns the SM share, in percent, of a function's best configuration.
func (d *diluPlanner) size(f int) float64 {
	if len(d.rows[f]) == 0 {
		return 0
	}
	return d.rows[f][0].SMPct
}

// serve places instances of a function until its demand is served or no configuration fits.
func (d *diluPlanner) serve(f int) {
	w := &d.demands[f]
	fn, _ := d.in.function(w.demand.Function)
	for _, row := range d.rows[f] {
		smLimit, _ := d.in.limits(row, d.in.Profile)
		for w.missing() > 0 {
			r := online.Request{
				Instance: fmt.Sprintf("%s-%d", w.demand.Function, w.count), Function: w.demand.Function, GPUs: fn.GPUs,
				SMRequest: row.SMPct / 100, SMLimit: smLimit / 100,
				Large: fn.Kind != "training",
			}
			if d.in.limitsMemory() {
				r.Mem = gpu.FromMiB(row.GPUMemMiB)
			}
			if row.GPU != "" {
				r.Models = []string{row.GPU}
			}
			at := d.fleet.Place(r)
			if len(at.GPUs) == 0 {
				if d.lacking[f].IsZero() {
					d.lacking[f] = at.Reason
				}
				break
			}
			for _, g := range at.GPUs {
				d.host(g, r.Instance, row)
			}
			w.add(row)
		}
	}
}

// host adds an instance to a GPU, with a rectangle above those of earlier instances.
func (d *diluPlanner) host(g int, id string, row profile.Row) {
	for len(d.gpus) <= g {
		device := d.in.newDevice(len(d.gpus))
		if d.devices != nil {
			device = d.devices[len(d.gpus)]
		}
		d.gpus = append(d.gpus, gpuOf(device))
		d.nextY = append(d.nextY, 0)
	}
	in := newInstance(id, row, d.in.limitsMemory())
	setCorner(&in, maxrect.Rect{Y: d.nextY[g]})
	d.nextY[g] += share(row.SMPct / 100)
	d.gpus[g].Instances = append(d.gpus[g].Instances, in)
}

func (d *diluPlanner) plan() plan.Plan {
	bound, method := d.in.bound(d.demands)
	p := d.in.empty("dilu", plan.ModelRect, bound, method)
	for _, g := range d.gpus {
		if len(g.Instances) > 0 {
			p.GPUs = append(p.GPUs, g)
		}
	}
	return complete(p, d.demands, func(i int) reason.Reason { return d.lacking[i] })
}
