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
)

// want is a function's demand, the configurations that may serve it, and how
// far it is served.
type want struct {
	demand plan.Demand
	rows   []profile.Row
	span   int    // instances' parts come in such numbers; 0 is 1
	reason string // why there are no rows

	between float64 // ms that an instance has nothing to do between two calls
	served  float64
	count   int // instances placed
}

// wants are the demands with the configurations that may serve them.
func (in Input) wants() []want {
	byFunction := map[string][]profile.Row{}
	for _, r := range in.Profile {
		byFunction[r.Function] = append(byFunction[r.Function], r)
	}
	wanted := make([]want, len(in.Demand))
	for i, d := range in.Demand {
		rows, reason := in.admissible(d, byFunction[d.Function])
		if span, most := in.function(d.Function).GPUs, in.largestNode(); rows != nil && span > most {
			rows, reason = nil, fmt.Sprintf("an instance spans %d GPUs of one node: the most that a node has is %d", span, most)
		}
		wanted[i] = want{demand: d, rows: rows, reason: reason, between: in.handOver(d)}
	}
	return wanted
}

// admissible are the configurations of a function that meet its SLO and fit
// some GPU. When there is none, reason says what stands in the way.
func (in Input) admissible(d plan.Demand, all []profile.Row) (rows []profile.Row, reason string) {
	if len(all) == 0 {
		return nil, "the profile has no row of this function"
	}
	rows = filter(all, func(r profile.Row) bool { return r.ThroughputRPS > 0 })
	if len(rows) == 0 {
		return nil, "no configuration of the profile sustains any request"
	}
	if d.SLOMS > 0 {
		fast := filter(rows, func(r profile.Row) bool { return r.P95MS <= d.SLOMS || in.Poisson && measured(r, d.SLOMS) })
		if len(fast) == 0 {
			best := slices.MinFunc(rows, byLatency)
			return nil, fmt.Sprintf("no configuration has p95_ms <= %s: the best is %s at %s",
				num(d.SLOMS), num(best.P95MS), describe(best))
		}
		rows = fast
	}
	worth, reason := in.worth(rows, d)
	if reason != "" {
		return nil, reason
	}
	return in.fitting(worth)
}

// measured says whether it was measured what a row answers within the objective.
func measured(r profile.Row, sloMS float64) bool {
	_, _, ok := r.Goodput(sloMS)
	return ok
}

// worth are the rows with what is counted on as their throughput: what they
// sustain as requests arrive, less the headroom. Those that sustain nothing then
// are left out; when none is left, reason says why.
func (in Input) worth(rows []profile.Row, d plan.Demand) (out []profile.Row, reason string) {
	for _, r := range rows {
		if r.ThroughputRPS = in.Worth(r, d); r.ThroughputRPS > 0 {
			out = append(out, r)
		}
	}
	if len(out) > 0 {
		return out, ""
	}
	least := slices.MinFunc(rows, func(a, b profile.Row) int { return cmp.Compare(arrivals.Rest(a), arrivals.Rest(b)) })
	return nil, fmt.Sprintf("no configuration answers a request at rest within %s ms: the fastest takes up to %s at %s, the pauses of its quota included",
		num(d.SLOMS), num(tidy(arrivals.Rest(least))), describe(least))
}

// Worth returns how many requests a second an instance of a row is counted on for.
func (in Input) Worth(r profile.Row, d plan.Demand) float64 {
	rps := r.ThroughputRPS
	if in.Poisson && d.SLOMS > 0 {
		rps = arrivals.Worth(arrivals.HandedOver(r, in.handOver(d)), d.SLOMS)
	}
	return rps * (1 - in.Headroom)
}

// handOver is how long an instance of the function has nothing to do between two
// calls, in ms; 0 where that is not known.
func (in Input) handOver(d plan.Demand) float64 {
	i := slices.IndexFunc(in.Functions, func(f function.Function) bool { return f.Name == d.Function })
	if i < 0 || in.Functions[i].Inflight > 1 {
		return 0
	}
	return in.HandOverMS
}

// fitting keeps the rows for which there is a GPU of their model with memory
// enough.
func (in Input) fitting(rows []profile.Row) ([]profile.Row, string) {
	devices := in.Devices
	if devices == nil {
		devices = []plan.Device{in.more(0)}
	}
	if len(devices) == 0 {
		return nil, "the inventory has no GPU"
	}
	somewhere := func(ok func(profile.Row, plan.Device) bool) func(profile.Row) bool {
		return func(r profile.Row) bool {
			return slices.ContainsFunc(devices, func(d plan.Device) bool { return ok(r, d) })
		}
	}
	matching := filter(rows, somewhere(matches))
	if len(matching) == 0 {
		return nil, fmt.Sprintf("no GPU is of a model it was measured on: it was on %s, the inventory has %s",
			names(rows, func(r profile.Row) string { return r.GPU }), names(devices, func(d plan.Device) string { return d.Model }))
	}
	fitting := filter(matching, somewhere(func(r profile.Row, d plan.Device) bool {
		return matches(r, d) && gpu.FromMiB(r.GPUMemMiB) <= room(d)
	}))
	if len(fitting) == 0 {
		least := slices.MinFunc(matching, byMemory)
		most := slices.MaxFunc(devices, func(a, b plan.Device) int { return cmp.Compare(room(a), room(b)) })
		return nil, fmt.Sprintf("no GPU is large enough: it needs at least %s MiB, the most a GPU has free is %s MiB",
			num(least.GPUMemMiB), num(room(most).MiB()))
	}
	return fitting, ""
}

func (w *want) missing() float64 {
	if gap := w.demand.RPS - w.served; gap > served*w.demand.RPS {
		return gap
	}
	return 0
}

// add counts one more instance of the row.
func (w *want) add(row profile.Row) {
	w.count++
	w.served += row.ThroughputRPS
}

// account writes down what a function asked for, gets and lacks. What it lacks
// is counted from the figure that is shown as served, so that the two add up.
func account(p *plan.Plan, w *want, reason func() string) {
	d := plan.Served{Function: w.demand.Function, RPS: w.demand.RPS, ServedRPS: tidy(w.served), HandOverMS: w.between}
	p.Demand = append(p.Demand, d)
	gap := w.missing()
	if gap == 0 {
		return
	}
	if shown := d.RPS - d.ServedRPS; shown > 0 {
		gap = shown
	}
	p.Unplaced = append(p.Unplaced, plan.Unplaced{Function: d.Function, RPS: tidy(gap), Reason: reason()})
}

// tidy drops the digits that summing left behind the sixth decimal.
func tidy(v float64) float64 {
	if t := math.Round(v*1e6) / 1e6; t > 0 {
		return t
	}
	return v
}

// full says that GPUs have no more room.
func full(gpus int) string {
	if gpus == 1 {
		return "the GPU is full"
	}
	return fmt.Sprintf("the %d GPUs are full", gpus)
}

// smallest is the configuration of the least area, then the least memory.
func (w *want) smallest() profile.Row {
	return slices.MinFunc(w.rows, func(a, b profile.Row) int { return cmp.Or(cmp.Compare(area(a), area(b)), byMemory(a, b)) })
}

func byLatency(a, b profile.Row) int {
	return cmp.Or(cmp.Compare(a.P95MS, b.P95MS), cmp.Compare(area(a), area(b)))
}

func byMemory(a, b profile.Row) int { return cmp.Compare(a.GPUMemMiB, b.GPUMemMiB) }

// describe names a configuration.
func describe(r profile.Row) string {
	text := fmt.Sprintf("sm_pct %s, quota %s, batch %d", num(r.SMPct), num(r.Quota), r.Batch)
	if r.GPU != "" {
		text += " on " + r.GPU
	}
	return text
}

// num prints a number as profiles do.
func num(v float64) string {
	if v != 0 && math.Abs(v) < 1e-6 {
		return number.Significant(v, -1)
	}
	return number.Plain(v)
}

// names lists the different names of items, sorted.
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

func filter[T any](items []T, keep func(T) bool) []T {
	var out []T
	for _, item := range items {
		if keep(item) {
			out = append(out, item)
		}
	}
	return out
}
