// Package place makes plans: it decides which instances with which configurations run on which
// GPUs, so that every function's demand is served.
//
// There are four planners. Joint, our own, chooses and packs configurations together and proves a
// lower bound on the number of GPUs. Fast and Dilu plan like FaST-GShare and Dilu. Incremental
// changes a running plan. AtMost limits the instances per GPU for any planner. All take an Input
// and return a plan.Plan; Kinds lists the algorithms that users can choose.
//
// Package place performs no I/O, and a plan depends only on the arguments. Subpackages solve parts
// of the problem. Subpackage verify checks plans and shares no code with the planners. The main
// caller is package command/place; package policy/scale uses ScaleUp and ScaleDown.
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

// Input holds everything that a plan depends on.
type Input struct {
	Profile []profile.Row
	Demand  []plan.Demand
	// Devices are the available GPUs. If it is nil, their number is unlimited, and each has
	// MemMiB of memory and the GPU model Model (empty if unknown). The memory of a device with
	// 0 MiB is unlimited.
	Devices []plan.Device
	MemMiB  float64
	Model   string
	// Functions describes functions: the GPUs that an instance spans and the name of its
	// weights. A function that is missing spans one GPU, and its weights have its name.
	Functions []function.Function
	// Poisson assumes that requests to functions with an objective arrive at random (package
	// arrivals). Requests to other functions always arrive when another is answered.
	Poisson bool
	// HandOverMS is the idle time of an instance between two calls, if its function takes one
	// call at a time (inflight: 1 in Functions). It lowers throughput under Poisson; otherwise,
	// the plan only reports it.
	HandOverMS float64
	// Headroom is the fraction of an instance's throughput that planners do not count on, from 0
	// to less than 1.
	Headroom float64
}

// maxInstances is the largest number of instances of a plan.
const maxInstances = 5_000_000

// Order is the order in which instances are packed.
type Order string

// Orders of packing. The order of the largest rectangles needs fewer GPUs. The order of the
// demand imitates functions that arrive one by one, as in the paper's cluster.
const (
	Largest Order = "largest"
	Arrival Order = "arrival"
)

// function returns the description of a function, with defaults filled in, and whether Functions
// has it.
func (in Input) function(name string) (fn function.Function, known bool) {
	fn = function.Function{Name: name}
	if i := slices.IndexFunc(in.Functions, func(f function.Function) bool { return f.Name == name }); i >= 0 {
		fn, known = in.Functions[i], true
	}
	if fn.Model == nil {
		fn.Model = &function.Model{Name: name}
	}
	fn.GPUs = max(1, fn.GPUs)
	return fn, known
}

// nodes returns the number of each node of the inventory, from 0 up.
func (in Input) nodes() map[string]int {
	out := map[string]int{}
	for _, d := range in.Devices {
		if _, known := out[d.Node]; !known {
			out[d.Node] = len(out)
		}
	}
	return out
}

// largestNode returns the number of GPUs of the largest node.
func (in Input) largestNode() int {
	if in.Devices == nil {
		return math.MaxInt
	}
	count, largest := map[string]int{}, 0
	for _, d := range in.Devices {
		count[d.Node]++
		largest = max(largest, count[d.Node])
	}
	return largest
}

// one is the whole window, and all SMs of a GPU, in units of rectangles (billionths). In this unit
// the shares of profiles are exact and areas fit 64 bits.
const one = joint.One

// share converts a fraction to billionths.
func share(fraction float64) int64 { return int64(math.Round(fraction * one)) }

// limitsMemory reports whether memory is limited on any GPU.
func (in Input) limitsMemory() bool {
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

// freeMemory returns the free memory of a device, or unlimited if the device has no limit.
func freeMemory(d plan.Device) gpu.Bytes {
	if d.MemMiB == 0 {
		return unlimited
	}
	return max(0, gpu.FromMiB(d.MemMiB-d.UsedMemMiB))
}

const unlimited gpu.Bytes = math.MaxInt64

// newDevice returns the device with the given index if the number of GPUs is unlimited.
func (in Input) newDevice(index int) plan.Device {
	return plan.Device{Node: plan.DefaultNode, Index: index, MemMiB: in.MemMiB, Model: in.Model}
}

// splitByModel returns the input with at most one row per configuration for each GPU model. It
// considers the GPU models of the input and others.
func (in Input) splitByModel(others ...string) Input {
	models := append(others, in.Model)
	for _, d := range in.Devices {
		models = append(models, d.Model)
	}
	slices.Sort(models)
	in.Profile = profile.SplitByModel(in.Profile, slices.Compact(models))
	return in
}

// gpuOf returns the GPU of a plan for a device, without instances.
func gpuOf(d plan.Device) plan.GPU {
	return plan.GPU{Node: d.Node, Index: d.Index, MemMiB: d.MemMiB, Model: d.Model}
}

// matches reports whether a row's measurement applies to a device's GPU model.
func matches(row profile.Row, d plan.Device) bool {
	return row.GPU == "" || d.Model == "" || row.GPU == d.Model
}

// empty returns a plan without GPUs.
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

// newInstance returns an instance of a configuration with the limits that its row states, without a
// place. It has the measured memory
// if memory is limited.
func newInstance(id string, row profile.Row, limited bool) plan.Instance {
	smLimit, quotaLimit, _ := row.Limits()
	in := plan.Instance{
		ID: id, Function: row.Function, SMPct: row.SMPct, QuotaRequest: row.Quota, QuotaLimit: quotaLimit,
		Batch: row.Batch, RPS: row.ThroughputRPS,
	}
	if smLimit > row.SMPct {
		in.SMLimitPct = smLimit
	}
	if limited {
		in.MemMiB = row.GPUMemMiB
	}
	return in
}

// setCorner sets the corner of an instance's rectangle.
func setCorner(in *plan.Instance, at maxrect.Rect) {
	x, y := float64(at.X)/one, float64(at.Y)/(one/100)
	in.X, in.Y = &x, &y
}

// rectOf returns the rectangle of an instance, which must have a corner.
func rectOf(in plan.Instance) maxrect.Rect {
	return maxrect.Rect{X: share(*in.X), Y: share(*in.Y / 100), W: share(in.QuotaRequest), H: share(in.SMPct / 100)}
}

// schedule returns the timetable of instances with the given turns. With withGaps, times without
// instances become entries too, so that all turns keep their times; otherwise, they are left out.
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

// Timetabled converts a plan of rectangles to the model tokens: each instance has its turns at the
// times of its rectangle. The bound of area or memory holds for both models. Timetabled changes p.
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

// DemandError reports a function whose demand cannot be planned.
type DemandError struct{ Function, Reason string }

func (e *DemandError) Error() string { return e.Function + ": " + e.Reason }

// tooMany returns an error if the demand needs more than maxInstances instances. The function rate
// returns the throughput of an instance of a function in the configuration called name, or 0 if
// the function has none.
func tooMany(demands []functionDemand, rate func(f int) float64, name string) error {
	count := 0.0
	for f, w := range demands {
		if rate(f) == 0 {
			continue
		}
		if count += w.demand.RPS / rate(f); count > maxInstances {
			return &DemandError{w.demand.Function, fmt.Sprintf("%s requests/s need more than %d instances: the %s configuration sustains %s requests/s",
				num(w.demand.RPS), maxInstances, name, num(rate(f)))}
		}
	}
	return nil
}
