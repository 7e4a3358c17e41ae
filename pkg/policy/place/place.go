// Package place decides which instances of which configurations run where, so
// that every function's demand is served. Joint, our own, chooses and packs
// together and proves how few GPUs could do; Fast and Dilu plan as the papers
// do; Incremental changes a plan that runs. Packages below it solve the parts,
// and one, verify, checks plans without a line of code of theirs. It does no I/O
// and its plans depend on nothing but its arguments.
package place

import (
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/joint"
	"github.com/gfaas/gfaas/pkg/profile"
)

// Input is what a plan is made from.
type Input struct {
	Profile []profile.Row
	Demand  []plan.Demand
	// Devices are the GPUs there are. None means as many as it takes, each
	// with MemMiB of memory. A device of 0 MiB has memory without limit.
	Devices []plan.Device
	MemMiB  float64
	// Functions say how many GPUs an instance spans and what its weights are
	// called; those not among them span one, and are called as they are.
	Functions []function.Function
}

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
	return max(0, gpu.FromMiB(d.MemMiB)-gpu.FromMiB(d.UsedMemMiB))
}

const unlimited gpu.Bytes = math.MaxInt64

// matches says whether a row measured on one model of GPU holds for a device.
func matches(row profile.Row, d plan.Device) bool {
	return row.GPU == "" || d.Model == "" || row.GPU == d.Model
}
