package place

import (
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/profile"
)

// Names of the lower bounds, for a plan's bound_method.
const (
	boundArea   = "area"
	boundMemory = "memory"
)

// slack prevents rounding errors from raising a bound to the next whole number. It lowers a bound
// by far less than a GPU.
const slack = 1e-9

// bound returns a lower bound on the number of GPUs, for any choice of configurations, and its
// name. A function that must serve R requests per second needs at least an area of R × min(SM share
// × quota / throughput) over its configurations, and at least the area of its smallest
// configuration (times its span, if rows describe an instance's part on one GPU). A GPU has an area
// of 1. Memory is bounded in the same way.
func (in Input) bound(demands []functionDemand) (int, string) {
	area := total(demands, func(r profile.Row) float64 { return r.SMPct / 100 * r.Quota })
	gpus, method := ceil(area), boundArea
	if !in.limitsMemory() {
		return gpus, method
	}
	mem := total(demands, func(r profile.Row) float64 { return gpu.FromMiB(r.GPUMemMiB).MiB() }) // rounded as in planners
	if byMem := in.devicesFor(mem); byMem > gpus {
		return byMem, boundMemory
	}
	return gpus, method
}

// total returns the sum over all functions of the least amount of a resource that serves each.
func total(demands []functionDemand, cost func(profile.Row) float64) float64 {
	sum := 0.0
	for _, w := range demands {
		smallest, rate := math.Inf(1), math.Inf(1)
		for _, r := range w.rows {
			smallest = min(smallest, cost(r))
			rate = min(rate, cost(r)/r.ThroughputRPS)
		}
		if len(w.rows) > 0 {
			sum += max(smallest*float64(max(1, w.span)), rate*w.demand.RPS)
		}
	}
	return sum
}

// ceil rounds up, except for rounding errors.
func ceil(v float64) int {
	return int(min(math.Ceil(v-slack*max(1, v)), math.MaxInt32))
}

// devicesFor returns the least number of GPUs with the given total memory. If the inventory does
// not suffice, it assumes more GPUs of the largest size.
func (in Input) devicesFor(mib float64) int {
	if in.Devices == nil {
		return ceil(mib / gpu.FromMiB(in.MemMiB).MiB())
	}
	var rooms []float64
	for _, d := range in.Devices {
		if d.MemMiB == 0 {
			return 0
		}
		rooms = append(rooms, freeMemory(d).MiB())
	}
	slices.Sort(rooms)
	slices.Reverse(rooms)
	for n, room := range rooms {
		if mib <= slack*max(1, mib) {
			return n
		}
		mib -= room
	}
	if mib <= slack*max(1, mib) || len(rooms) == 0 || rooms[0] <= 0 {
		return len(rooms)
	}
	return len(rooms) + ceil(mib/rooms[0])
}
