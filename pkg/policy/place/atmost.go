package place

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/profile"
)

// AtMost plans with at most so many instances on a GPU. A GPU has a number of
// places as it has a number of bytes, so the places are given to the planner as
// memory, and its bound is one for them. Where memory is limited as well, an
// instance counts for what is more of the GPU, its bytes or its place: a plan
// for that keeps both, and the bound is the larger of those for either. A place is
// the larger the more memory a GPU has, so where some have more than others a small
// one has too few: plans are made, too, in which the large ones have no more memory
// than smaller ones, and the best of all counts. With shared weights the planner
// must keep them once.
func AtMost(in Input, most int, shared bool, planner Planner) (plan.Plan, error) {
	in = in.apart()
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
	bound, method := p.Bound, p.BoundMethod
	if counted.Bound > bound {
		bound, method = counted.Bound, instances(counted.BoundMethod)
	}
	var best plan.Plan
	for i, size := range in.sizes() {
		padded := in.padded(most, size, shared)
		both, err := planner(padded)
		if err != nil {
			return both, err
		}
		both.Bound, both.BoundMethod = bound, method
		in.tellPlaces(both.Unplaced, padded)
		if i == 0 || better(both, best) {
			best = both
		}
		if len(best.Unplaced) == 0 && best.GPUsUsed <= bound {
			break
		}
	}
	return in.measured(best, most, shared), nil
}

// better prefers the plan that leaves less of each demand, summed, then the one
// that takes fewer GPUs.
func better(a, b plan.Plan) bool {
	x, y := unserved(a), unserved(b)
	return x < y || x == y && a.GPUsUsed < b.GPUsUsed
}

func unserved(p plan.Plan) float64 {
	wanted, sum := map[string]float64{}, 0.0
	for _, d := range p.Demand {
		wanted[d.Function] = d.RPS
	}
	for _, u := range p.Unplaced {
		sum += u.RPS / wanted[u.Function]
	}
	return sum
}

// sizes are the different sizes of memory that GPUs have free, the largest first:
// at most maxRooms of them, and none in which a function has no room that has some
// on a larger one.
func (in Input) sizes() []float64 {
	if in.Devices == nil {
		return []float64{in.MemMiB}
	}
	var all []float64
	for _, d := range in.Devices {
		if d.MemMiB > 0 {
			all = append(all, room(d).MiB())
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	slices.Reverse(all)
	least := 0.0
	for _, w := range in.wants() {
		if len(w.rows) > 0 {
			least = max(least, slices.MinFunc(w.rows, byMemory).GPUMemMiB)
		}
	}
	large := filter(all, func(size float64) bool { return size >= least })
	if len(large) == 0 {
		return all[:1]
	}
	if n := len(large); n > maxRooms {
		for i := range maxRooms {
			large[i] = large[i*(n-1)/(maxRooms-1)]
		}
		large = large[:maxRooms]
	}
	return large
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
	if in.limits() { // else all rows have
		in.Profile, _ = in.fitting(in.Profile)
	}
	in.Devices, in.Profile = slices.Clone(in.Devices), slices.Clone(in.Profile)
	in.MemMiB = float64(most)
	for i := range in.Devices {
		in.Devices[i].MemMiB, in.Devices[i].UsedMemMiB = float64(most), 0
	}
	for i := range in.Profile {
		in.Profile[i].GPUMemMiB, in.Profile[i].ModelMemMiB = 1, 0
	}
	return in
}

// padded is the input where no GPU has more memory free than the size, and an
// instance takes at least its part of the most that a GPU of its model has then, in
// whole bytes rounded down: so many of them fit.
func (in Input) padded(most int, size float64, shared bool) Input {
	in.Devices, in.Profile = slices.Clone(in.Devices), slices.Clone(in.Profile)
	for i, d := range in.Devices {
		if d.MemMiB == 0 || room(d).MiB() > size { // 0 is without limit
			in.Devices[i].MemMiB, in.Devices[i].UsedMemMiB = size, 0
		}
	}
	for i, r := range in.Profile {
		whole := gpu.FromMiB(in.largestFor(r))
		place := whole / gpu.Bytes(most)
		if place <= whole/gpu.Bytes(most+1) { // so many that a byte less for each is one more
			place++
		}
		if gpu.FromMiB(private(r, shared)) >= place {
			continue
		}
		in.Profile[i].GPUMemMiB = place.MiB()
		if shared {
			in.Profile[i].GPUMemMiB += r.ModelMemMiB
		}
	}
	return in
}

// largestFor is the most memory that a GPU has free for which the row was measured.
func (in Input) largestFor(r profile.Row) float64 {
	if in.Devices == nil {
		return in.MemMiB
	}
	largest := 0.0
	for _, d := range in.Devices {
		if matches(r, d) {
			largest = max(largest, room(d).MiB())
		}
	}
	return largest
}

// tellPlaces has the reasons of a plan for the padded input name the memory that
// was measured.
func (in Input) tellPlaces(all []plan.Unplaced, padded Input) {
	for i := range all {
		u := &all[i]
		for k, r := range in.Profile {
			need := padded.Profile[k].GPUMemMiB
			if r.Function == u.Function && need > r.GPUMemMiB && strings.Contains(u.Reason, describe(r)) {
				u.Reason = strings.Replace(u.Reason, notMemory(need), fmt.Sprintf("not both a place and its %s MiB of memory", num(r.GPUMemMiB)), 1)
			}
		}
	}
}

// notMemory is how reasons name memory that is lacking.
func notMemory(mib float64) string { return fmt.Sprintf("not its %s MiB of memory", num(mib)) }

// private is what an instance takes besides weights that are kept for all.
func private(r profile.Row, shared bool) float64 {
	if shared {
		return max(0, r.GPUMemMiB-r.ModelMemMiB)
	}
	return r.GPUMemMiB
}

// measured gives the GPUs and instances of a plan the memory they have, where it
// was made with another: the GPUs what the input says, instances what was
// measured on their GPU's model. Where that is not known, the most that was measured
// counts. Reasons say what memory stood for.
func (in Input) measured(p plan.Plan, most int, shared bool) plan.Plan {
	rows := profile.NewIndex(in.Profile)
	needs := func(t plan.Instance, model string) (most float64) {
		for _, r := range rows.On(t.Function, t.Config(), model) {
			most = max(most, private(r, shared))
		}
		return most
	}
	if in.Devices != nil {
		in.resize(p.GPUs)
	}
	limited := in.limits()
	never := map[string]bool{} // whatever the number
	for _, w := range in.wants() {
		never[w.demand.Function] = w.reason != ""
	}
	for i := range p.Unplaced {
		u := &p.Unplaced[i]
		if never[u.Function] {
			continue
		}
		if !limited {
			u.Reason = strings.Replace(u.Reason, notMemory(1), "is one too many", 1)
		}
		u.Reason += fmt.Sprintf(" (a GPU hosts at most %d instances)", most)
	}
	p.BoundMethod = instances(p.BoundMethod)
	for g := range p.GPUs {
		host := &p.GPUs[g]
		if in.Devices == nil {
			host.MemMiB = in.MemMiB
		}
		for i := range host.Instances {
			if t := &host.Instances[i]; limited {
				t.MemMiB = min(t.MemMiB, needs(*t, host.Model))
			} else {
				t.MemMiB = 0
			}
		}
	}
	return p
}
