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

// slack keeps rounding from pushing a sum over a whole number: what is lost of
// a bound so is far less than a GPU.
const slack = 1e-9

// bound is a number of GPUs below which no choice of configurations serves the
// demand. Whatever the choice, a function that must serve R requests a second
// takes at least R × min(SM share × quota / throughput) of area over its
// configurations, and at least its smallest configuration's area (on each GPU
// that an instance spans, where rows are of its part on one); a GPU has an
// area of 1. Memory is counted alike.
func (in Input) bound(wanted []want) (int, string) {
	area := total(wanted, func(r profile.Row) float64 { return r.SMPct / 100 * r.Quota })
	gpus, method := ceil(area), boundArea
	if !in.limits() {
		return gpus, method
	}
	mem := total(wanted, func(r profile.Row) float64 { return gpu.FromMiB(r.GPUMemMiB).MiB() }) // as planners count
	if byMem := in.devicesFor(mem); byMem > gpus {
		return byMem, boundMemory
	}
	return gpus, method
}

// total sums over all functions the least of a resource that serves each.
func total(wanted []want, cost func(profile.Row) float64) float64 {
	sum := 0.0
	for _, w := range wanted {
		least, rate := math.Inf(1), math.Inf(1)
		for _, r := range w.rows {
			least = min(least, cost(r))
			rate = min(rate, cost(r)/r.ThroughputRPS)
		}
		if len(w.rows) > 0 {
			sum += max(least*float64(max(1, w.span)), rate*w.demand.RPS)
		}
	}
	return sum
}

// ceil rounds up, in doubt down.
func ceil(v float64) int {
	return int(min(math.Ceil(v-slack*max(1, v)), math.MaxInt32))
}

// devicesFor is the least number of GPUs with so much memory together. When
// the inventory has not enough, more of its largest are imagined.
func (in Input) devicesFor(mib float64) int {
	if in.Devices == nil {
		return ceil(mib / gpu.FromMiB(in.MemMiB).MiB())
	}
	var rooms []float64
	for _, d := range in.Devices {
		if d.MemMiB == 0 {
			return 0
		}
		rooms = append(rooms, room(d).MiB())
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
