// Package place decides which instances of which configurations run where, so
// that every function's demand is served. Joint, our own, chooses and packs
// together and proves how few GPUs could do; Fast and Dilu plan as the papers
// do; Incremental changes a plan that runs. Packages below it solve the parts,
// and one, verify, checks plans without a line of code of theirs. It does no I/O
// and its plans depend on nothing but its arguments.
package place

import (
	"fmt"
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/joint"
	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
	"github.com/gfaas/gfaas/pkg/policy/place/timetable"
	"github.com/gfaas/gfaas/pkg/profile"
)

// Input is what a plan is made from.
type Input struct {
	Profile []profile.Row
	Demand  []plan.Demand
	// Devices are the GPUs there are. None means as many as it takes, each
	// with MemMiB of memory and of the GPU model Model, which is empty where it is
	// not known. A device of 0 MiB has memory without limit.
	Devices []plan.Device
	MemMiB  float64
	Model   string
	// Functions say how many GPUs an instance spans and what its weights are
	// called; those not among them span one, and are called as they are.
	Functions []function.Function
	// Poisson says that requests to functions with an objective come at random
	// (package arrivals); to others they come one as another is answered.
	Poisson bool
	// HandOverMS is how long an instance of a function that takes one call at a time
	// (inflight: 1, by Functions) has nothing to do between two. It counts under Poisson;
	// where calls come steadily the plan only tells of it.
	HandOverMS float64
	// Headroom is the part of what an instance is worth that is not counted on,
	// 0 to less than 1.
	Headroom float64
}

// maxInstances is the most instances a plan may have.
const maxInstances = 5_000_000

// Order says in which order instances are packed.
type Order string

// Packing the largest rectangles first needs fewer GPUs, and can be done since
// a plan knows them all. Functions that arrive one by one, as in the paper's
// cluster, are packed in the order of the demand.
const (
	Largest Order = "largest"
	Arrival Order = "arrival"
)

// function is what is known of a function besides its profile.
func (in Input) function(name string) function.Function {
	fn := function.Function{Name: name, GPUs: 1}
	if i := slices.IndexFunc(in.Functions, func(f function.Function) bool { return f.Name == name }); i >= 0 {
		fn = in.Functions[i]
	}
	if fn.Model == nil {
		fn.Model = &function.Model{Name: name}
	}
	fn.GPUs = max(1, fn.GPUs)
	return fn
}

// nodes numbers the nodes of the inventory.
func (in Input) nodes() map[string]int {
	out := map[string]int{}
	for _, d := range in.Devices {
		if _, known := out[d.Node]; !known {
			out[d.Node] = len(out)
		}
	}
	return out
}

// largestNode is the most GPUs that one node has.
func (in Input) largestNode() int {
	if in.Devices == nil {
		return math.MaxInt
	}
	count, most := map[string]int{}, 0
	for _, d := range in.Devices {
		count[d.Node]++
		most = max(most, count[d.Node])
	}
	return most
}

// one is the whole window and all SMs of a GPU in the unit of rectangles: a
// billionth, in which the shares of profiles are exact and areas fit 64 bits.
const one = joint.One

// share is a fraction in billionths.
func share(fraction float64) int64 { return int64(math.Round(fraction * one)) }

// limits says whether memory is limited at all.
func (in Input) limits() bool {
	if in.MemMiB > 0 {
		return true
	}
	for _, d := range in.Devices {
		if d.MemMiB > 0 {
			return true
		}
	}
	return false
}

// room is what a device has left for instances; unlimited when it has no
// limit.
func room(d plan.Device) gpu.Bytes {
	if d.MemMiB == 0 {
		return unlimited
	}
	return max(0, gpu.FromMiB(d.MemMiB-d.UsedMemMiB))
}

const unlimited gpu.Bytes = math.MaxInt64

// more returns the device of the GPU with that index, where GPUs come as they are needed.
func (in Input) more(index int) plan.Device {
	return plan.Device{Node: plan.DefaultNode, Index: index, MemMiB: in.MemMiB, Model: in.Model}
}

// apart returns the input with rows of which at most one of a configuration holds for a
// GPU of each model there is; others are models besides those of the input.
func (in Input) apart(others ...string) Input {
	models := append(others, in.Model)
	for _, d := range in.Devices {
		models = append(models, d.Model)
	}
	slices.Sort(models)
	in.Profile = profile.Apart(in.Profile, slices.Compact(models))
	return in
}

// gpuOf returns a GPU of a plan, as yet without instances, for a device.
func gpuOf(d plan.Device) plan.GPU {
	return plan.GPU{Node: d.Node, Index: d.Index, MemMiB: d.MemMiB, Model: d.Model}
}

// matches says whether a row measured on one model of GPU holds for a device.
func matches(row profile.Row, d plan.Device) bool {
	return row.GPU == "" || d.Model == "" || row.GPU == d.Model
}

// empty is a plan without GPUs.
func (in Input) empty(algorithm, model string, bound int, method string) plan.Plan {
	p := plan.Plan{
		Version: plan.Version, Algorithm: algorithm, Model: model, Headroom: in.Headroom, Bound: bound, BoundMethod: method,
		GPUs: []plan.GPU{}, Demand: []plan.Served{}, Unplaced: []plan.Unplaced{},
	}
	if in.Poisson && slices.ContainsFunc(in.Demand, func(d plan.Demand) bool { return d.SLOMS > 0 }) {
		p.Arrivals = plan.ArrivalsPoisson
	}
	return p
}

// newInstance is an instance of a configuration, its place aside. Where memory
// is limited it has what was measured.
func newInstance(id string, row profile.Row, limited bool) plan.Instance {
	in := plan.Instance{
		ID: id, Function: row.Function, SMPct: row.SMPct, QuotaRequest: row.Quota, QuotaLimit: row.Quota,
		Batch: row.Batch, RPS: row.ThroughputRPS,
	}
	if limited {
		in.MemMiB = row.GPUMemMiB
	}
	return in
}

// setCorner gives an instance the corner of its rectangle.
func setCorner(in *plan.Instance, at maxrect.Rect) {
	x, y := float64(at.X)/one, float64(at.Y)/(one/100)
	in.X, in.Y = &x, &y
}

// rectOf is an instance's rectangle, which it must have.
func rectOf(in plan.Instance) maxrect.Rect {
	return maxrect.Rect{X: share(*in.X), Y: share(*in.Y / 100), W: share(in.QuotaRequest), H: share(in.SMPct / 100)}
}

// schedule is the timetable in which each instance has its turns. A moment
// without instances is an entry, which keeps the turns after it where they are,
// or left out.
func schedule(instances []plan.Instance, turns [][]timetable.Turn, withGaps bool) []plan.Interval {
	var edges []int64
	if withGaps {
		edges = []int64{0}
	}
	for _, all := range turns {
		for _, t := range all {
			edges = append(edges, t.From, t.To)
		}
	}
	slices.Sort(edges)
	edges = slices.Compact(edges)
	var out []plan.Interval
	for i := 1; i < len(edges); i++ {
		entry := plan.Interval{Duration: float64(edges[i]-edges[i-1]) / one, Instances: []string{}}
		for k, all := range turns {
			if slices.ContainsFunc(all, func(t timetable.Turn) bool { return t.From <= edges[i-1] && edges[i] <= t.To }) {
				entry.Instances = append(entry.Instances, instances[k].ID)
			}
		}
		if withGaps || len(entry.Instances) > 0 {
			out = append(out, entry)
		}
	}
	return out
}

// Timetabled is a plan of rectangles as one of the model tokens: every instance
// has its turns where its rectangle is, and the bound, of area or memory, holds
// for both models.
func Timetabled(p plan.Plan) plan.Plan {
	p.Model = plan.ModelTokens
	for i := range p.GPUs {
		g := &p.GPUs[i]
		turns := make([][]timetable.Turn, len(g.Instances))
		for k := range g.Instances {
			at := rectOf(g.Instances[k])
			turns[k] = []timetable.Turn{{From: at.X, To: at.X + at.W}}
			g.Instances[k].X, g.Instances[k].Y = nil, nil
		}
		g.Schedule = schedule(g.Instances, turns, true)
	}
	return p
}

// DemandError says which function's demand nothing can be planned for, and why.
type DemandError struct{ Function, Why string }

func (e *DemandError) Error() string { return e.Function + ": " + e.Why }

// tooMany refuses a demand that takes more than maxInstances of what an instance
// of each function sustains, in the configuration so called; 0 is of a function
// without any.
func tooMany(wanted []want, rate []float64, name string) error {
	count := 0.0
	for f, w := range wanted {
		if rate[f] == 0 {
			continue
		}
		if count += w.demand.RPS / rate[f]; count > maxInstances {
			return &DemandError{w.demand.Function, fmt.Sprintf("%s requests a second take more than %d instances: the %s configuration sustains %s",
				num(w.demand.RPS), maxInstances, name, num(rate[f]))}
		}
	}
	return nil
}
