package place

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/profile"
)

// AtMost plans with at most so many instances on a GPU. A GPU has a number of
// places as it has a number of bytes, so the places are given to the planner as
// memory, and its bound is one for them. Where memory is limited as well, an
// instance counts for what is more of the GPU, its bytes or its place: a plan
// for that keeps both, and the bound is the larger of those for either. With
// shared weights the planner must keep them once.
func AtMost(in Input, most int, shared bool, planner Planner) (plan.Plan, error) {
	p, err := planner(in)
	if err != nil || crowd(p) <= most {
		return p, err
	}
	counted, err := planner(in.places(most))
	if err != nil {
		return counted, err
	}
	if !in.limits() {
		return in.measured(counted, most, false), nil
	}
	both, err := planner(in.padded(most, shared))
	if both.Bound, both.BoundMethod = p.Bound, p.BoundMethod; counted.Bound > p.Bound {
		both.Bound, both.BoundMethod = counted.Bound, instances(counted.BoundMethod)
	}
	return in.measured(both, most, shared), err
}

// boundInstances is the bound by the number of instances alone.
const boundInstances = "instances"

// instances is what a bound is called whose memory was places.
func instances(method string) string {
	if method == boundMemory {
		return boundInstances
	}
	return method
}

// crowd is the most instances that a GPU of the plan hosts.
func crowd(p plan.Plan) int {
	most := 0
	for _, g := range p.GPUs {
		most = max(most, len(g.Instances))
	}
	return most
}

// places is the input where a GPU has so many places instead of memory, and each
// instance that it has memory for takes one.
func (in Input) places(most int) Input {
	fitting, _ := in.fitting(in.Profile)
	in.Devices, in.Profile = slices.Clone(in.Devices), slices.Clone(fitting)
	in.MemMiB = float64(most)
	for i := range in.Devices {
		in.Devices[i].MemMiB, in.Devices[i].UsedMemMiB = float64(most), 0
	}
	for i := range in.Profile {
		in.Profile[i].GPUMemMiB, in.Profile[i].ModelMemMiB = 1, 0
	}
	return in
}

// padded is the input where an instance takes at least its part of the largest
// GPU's memory.
func (in Input) padded(most int, shared bool) Input {
	largest := in.MemMiB
	if in.Devices != nil {
		largest = 0
	}
	for _, d := range in.Devices {
		if d.MemMiB > 0 {
			largest = max(largest, room(d).MiB())
		}
	}
	in.Devices, in.Profile = slices.Clone(in.Devices), slices.Clone(in.Profile)
	for i, d := range in.Devices {
		if d.MemMiB == 0 { // which is without limit otherwise
			in.Devices[i].MemMiB = largest + d.UsedMemMiB
		}
	}
	for i, r := range in.Profile {
		if pad := largest/float64(most) - private(r, shared); pad > 0 {
			in.Profile[i].GPUMemMiB += pad
		}
	}
	return in
}

// private is what an instance takes besides weights that are kept for all.
func private(r profile.Row, shared bool) float64 {
	if shared {
		return max(0, r.GPUMemMiB-r.ModelMemMiB)
	}
	return r.GPUMemMiB
}

// measured gives the GPUs and instances of a plan the memory they have, where it
// was made with another: the GPUs what the input says, instances what was
// measured, of several models of GPU the most. Reasons say what memory stood for.
func (in Input) measured(p plan.Plan, most int, shared bool) plan.Plan {
	type config struct {
		function string
		profile.Config
	}
	needs := map[config]float64{}
	for _, r := range in.Profile {
		at := config{r.Function, r.Config}
		needs[at] = max(needs[at], private(r, shared))
	}
	type name struct {
		node  string
		index int
	}
	sizes := map[name]float64{}
	for _, d := range in.Devices {
		sizes[name{d.Node, d.Index}] = d.MemMiB
	}
	limited := in.limits()
	for i := range p.Unplaced {
		p.Unplaced[i].Reason += fmt.Sprintf(" (a GPU hosts at most %d instances)", most)
		if !limited {
			p.Unplaced[i].Reason = strings.Replace(p.Unplaced[i].Reason, "not its 1 MiB of memory", "is one too many", 1)
		}
	}
	p.BoundMethod = instances(p.BoundMethod)
	for g := range p.GPUs {
		gpu := &p.GPUs[g]
		if gpu.MemMiB = in.MemMiB; in.Devices != nil {
			gpu.MemMiB = sizes[name{gpu.Node, gpu.Index}]
		}
		for i := range gpu.Instances {
			if t := &gpu.Instances[i]; limited {
				t.MemMiB = min(t.MemMiB, needs[config{t.Function, profile.Config{SMPct: t.SMPct, Quota: t.QuotaRequest, Batch: t.Batch}}])
			} else {
				t.MemMiB = 0
			}
		}
	}
	return p
}
