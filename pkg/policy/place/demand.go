package place

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/arrivals"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/reason"
)

// functionDemand is a function's demand, the configurations that may serve it, and the served
// part.
type functionDemand struct {
	demand plan.Demand
	rows   []profile.Row
	span   int           // GPUs of an instance, if rows describe its part on one GPU; 0 means 1
	reason reason.Reason // why rows is empty

	handOverMS float64 // ms that an instance idles between two calls
	served     float64 // requests per second
	count      int     // instances placed
}

// functionDemands returns the demands with the configurations that may serve them.
func (in Input) functionDemands() []functionDemand {
	byFunction := map[string][]profile.Row{}
	for _, r := range in.Profile {
		byFunction[r.Function] = append(byFunction[r.Function], r)
	}
	demands := make([]functionDemand, len(in.Demand))
	for i, d := range in.Demand {
		rows, why := in.admissible(d, byFunction[d.Function])
		if fn, _ := in.function(d.Function); rows != nil && fn.GPUs > in.largestNode() {
			rows, why = nil, reason.New(nodeTooSmall, reason.Number("gpus", fn.GPUs), reason.Number("largest_node", in.largestNode()))
		}
		demands[i] = functionDemand{demand: d, rows: rows, reason: why, handOverMS: in.handOver(d)}
	}
	return demands
}

// admissible returns the configurations of a function that meet its objective and fit some GPU. If
// there are none, it returns the reason.
func (in Input) admissible(d plan.Demand, measuredRows []profile.Row) (rows []profile.Row, why reason.Reason) {
	if len(measuredRows) == 0 {
		return nil, reason.New(notInProfile)
	}
	rows = filter(measuredRows, func(r profile.Row) bool { return r.ThroughputRPS > 0 })
	if len(rows) == 0 {
		return nil, reason.New(noThroughput)
	}
	if rows = in.Reachable(d.Function, rows); len(rows) == 0 {
		return nil, reason.New(onlyBatches)
	}
	if d.SLOMS > 0 {
		fast := filter(rows, func(r profile.Row) bool { return r.P95MS <= d.SLOMS || in.Poisson && measured(r, d.SLOMS) })
		if len(fast) == 0 {
			best := slices.MinFunc(rows, byLatency)
			return nil, about(best, sloTooTight, reason.Number("slo_ms", d.SLOMS), reason.Number("best_p95_ms", best.P95MS))
		}
		rows = fast
	}
	worth, why := in.worth(rows, d)
	if !why.IsZero() {
		return nil, why
	}
	return in.fitting(worth)
}

// Reachable returns the rows of a function whose batches reach its instances. If the function is unknown, these
// are all rows; otherwise, it must have a batcher, or take several calls at once, for batches above 1.
func (in Input) Reachable(name string, rows []profile.Row) []profile.Row {
	if fn, known := in.function(name); !known || fn.Batches() {
		return rows
	}
	return filter(rows, func(r profile.Row) bool { return r.Batch <= 1 })
}

// measured reports whether the row has a measured goodput for the objective.
func measured(r profile.Row, sloMS float64) bool {
	_, _, ok := r.Goodput(sloMS)
	return ok
}

// worth returns the rows with the throughput that a plan counts on (Worth), without rows for which
// it is 0. If no row remains, it returns the reason.
func (in Input) worth(rows []profile.Row, d plan.Demand) (out []profile.Row, why reason.Reason) {
	for _, r := range rows {
		if r.ThroughputRPS = in.Worth(r, d); r.ThroughputRPS > 0 {
			out = append(out, r)
		}
	}
	if len(out) > 0 {
		return out, reason.Reason{}
	}
	fastest := slices.MinFunc(rows, func(a, b profile.Row) int { return cmp.Compare(arrivals.IdleLatency(a), arrivals.IdleLatency(b)) })
	return nil, about(fastest, sloTooTightIdle, reason.Number("slo_ms", d.SLOMS), reason.Number("idle_ms", arrivals.IdleLatency(fastest)))
}

// Worth returns the requests per second that a plan counts on for an instance of a row: the
// throughput for the arrival process, minus the headroom.
func (in Input) Worth(r profile.Row, d plan.Demand) float64 {
	rps := r.ThroughputRPS
	if in.Poisson && d.SLOMS > 0 {
		rps = arrivals.Worth(arrivals.HandedOver(r, in.handOver(d)), d.SLOMS)
	}
	return rps * (1 - in.Headroom)
}

// handOver returns the idle time of an instance of the function between two calls, in ms. It is 0 if it
// is unknown, and for training functions, which answer no calls.
func (in Input) handOver(d plan.Demand) float64 {
	if fn, known := in.function(d.Function); known && fn.Inflight <= 1 && fn.Kind != function.Training {
		return in.HandOverMS
	}
	return 0
}

// fitting returns the rows that some GPU can host: a GPU of the row's model with enough memory. If
// there are none, it returns the reason.
func (in Input) fitting(rows []profile.Row) ([]profile.Row, reason.Reason) {
	devices := in.Devices
	if devices == nil {
		devices = []plan.Device{in.newDevice(0)}
	}
	if len(devices) == 0 {
		return nil, reason.New(noGPU)
	}
	somewhere := func(ok func(profile.Row, plan.Device) bool) func(profile.Row) bool {
		return func(r profile.Row) bool {
			return slices.ContainsFunc(devices, func(d plan.Device) bool { return ok(r, d) })
		}
	}
	matching := filter(rows, somewhere(matches))
	if len(matching) == 0 {
		return nil, reason.New(noGPUOfModel, reason.Text("measured", names(rows, func(r profile.Row) string { return r.GPU })),
			reason.Text("inventory", names(devices, func(d plan.Device) string { return d.Model })))
	}
	fitting := filter(matching, somewhere(func(r profile.Row, d plan.Device) bool {
		return matches(r, d) && gpu.FromMiB(r.GPUMemMiB) <= freeMemory(d)
	}))
	if len(fitting) == 0 {
		smallest := slices.MinFunc(matching, byMemory)
		largest := slices.MaxFunc(devices, func(a, b plan.Device) int { return cmp.Compare(freeMemory(a), freeMemory(b)) })
		return nil, reason.New(gpuTooSmall, reason.Number("needed_mib", smallest.GPUMemMiB), reason.Number("free_mib", freeMemory(largest).MiB()))
	}
	return fitting, reason.Reason{}
}

func (w *functionDemand) missing() float64 {
	if gap := w.demand.RPS - w.served; gap > roundingTolerance*w.demand.RPS {
		return gap
	}
	return 0
}

// fallBack starts instances until the function is served or start returns false for all rows. It
// tries the most efficient configurations first. The function start starts one instance and
// reports whether there was room.
func (w *functionDemand) fallBack(tie TieBreak, start func(profile.Row) bool) {
	if w.missing() == 0 {
		return
	}
	for _, row := range efficient(w.rows, tie) {
		for w.missing() > 0 && start(row) {
		}
	}
}

// private returns the demand with the memory of its configurations without shared weights.
func (w functionDemand) private(shared bool) functionDemand {
	w.rows = slices.Clone(w.rows)
	for k, r := range w.rows {
		w.rows[k].GPUMemMiB = privateMemory(r, shared)
	}
	return w
}

// add counts one more instance of the row.
func (w *functionDemand) add(row profile.Row) {
	w.count++
	w.served += row.ThroughputRPS
}

// account records the demanded, served and unplaced rates of a function. The unplaced rate is
// computed from the rounded served rate, so that the two add up.
func account(p *plan.Plan, w *functionDemand, why func() reason.Reason) {
	d := plan.Served{Function: w.demand.Function, RPS: w.demand.RPS, ServedRPS: tidy(w.served), HandOverMS: w.handOverMS}
	p.Demand = append(p.Demand, d)
	gap := w.missing()
	if gap == 0 {
		return
	}
	if shown := d.RPS - d.ServedRPS; shown > 0 {
		gap = shown
	}
	p.Unplaced = append(p.Unplaced, plan.Unplaced{Function: d.Function, RPS: tidy(gap), Reason: why().String()})
}

// complete returns the plan p with its number of GPUs and with the demanded, served and unplaced
// rates of each function. The function lacking returns why the rest of the ith function, which has
// a configuration, is not placed.
func complete(p plan.Plan, demands []functionDemand, lacking func(i int) reason.Reason) plan.Plan {
	p.GPUsUsed = len(p.GPUs)
	for i := range demands {
		w := &demands[i]
		account(&p, w, func() reason.Reason {
			if !w.reason.IsZero() {
				return w.reason
			}
			return lacking(i)
		})
	}
	return p
}

// tidy removes rounding errors beyond the sixth decimal. It keeps values that would become 0.
func tidy(v float64) float64 {
	if t := math.Round(v*1e6) / 1e6; t > 0 {
		return t
	}
	return v
}

// largest returns the largest throughput of an instance, or 0 if there are no rows.
func (w *functionDemand) largest() (largest float64) {
	for _, r := range w.rows {
		largest = max(largest, r.ThroughputRPS)
	}
	return largest
}

// smallest returns the configuration with the least area, then the least memory.
func (w *functionDemand) smallest() profile.Row {
	return slices.MinFunc(w.rows, func(a, b profile.Row) int { return cmp.Or(cmp.Compare(area(a), area(b)), byMemory(a, b)) })
}

func byLatency(a, b profile.Row) int {
	return cmp.Or(cmp.Compare(a.P95MS, b.P95MS), cmp.Compare(area(a), area(b)))
}

func byMemory(a, b profile.Row) int { return cmp.Compare(a.GPUMemMiB, b.GPUMemMiB) }

// describe returns a configuration as text.
func describe(r profile.Row) string {
	text := fmt.Sprintf("sm_pct %s, quota %s, batch %d", num(r.SMPct), num(r.Quota), r.Batch)
	if r.GPU != "" {
		text += " on " + r.GPU
	}
	return text
}

// num formats a number as profiles do.
func num(v float64) string {
	if v != 0 && math.Abs(v) < 1e-6 {
		return number.Significant(v, -1)
	}
	return number.Plain(v)
}

// names returns the distinct names of items, sorted and joined.
func names[T any](items []T, name func(T) string) string {
	var out []string
	for _, item := range items {
		if n := name(item); n != "" {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return strings.Join(slices.Compact(out), ", ")
}

func filter[T any](items []T, accept func(T) bool) []T {
	var out []T
	for _, item := range items {
		if accept(item) {
			out = append(out, item)
		}
	}
	return out
}
