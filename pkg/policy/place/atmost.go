package place

import (
	"slices"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/profile"
)

// AtMost plans with at most limit instances on each GPU. The planner knows no such limit, but it knows
// memory. So AtMost expresses the limit as memory: each GPU has limit slots, and each instance needs
// one. The planner's bound then holds for slots as well.
//
// If memory is limited as well, an instance is planned with the larger of its memory and the size of
// a slot, which is GPU memory / limit. A plan for these sizes satisfies both limits; the bound is the
// larger of the bounds for memory and for slots. The size of a slot depends on the largest GPU, so
// smaller GPUs have fewer than limit slots. Therefore AtMost also plans with the memory of large GPUs
// reduced to that of smaller ones, and returns the best of these plans. The planner must share weights
// if shared is true.
func AtMost(in Input, limit int, shared bool, planner Planner) (plan.Plan, error) {
	in = in.splitByModel()
	p, err := planner(in)
	if err != nil || maxPerGPU(p) <= limit {
		return p, err
	}
	bySlots, err := planner(in.withSlots(limit))
	if err != nil {
		return bySlots, err
	}
	if !in.limitsMemory() {
		return in.restoreMemory(bySlots, limit, false), nil
	}
	bound, method := p.Bound, p.BoundMethod
	if bySlots.Bound > bound {
		bound, method = bySlots.Bound, slotBoundMethod(bySlots.BoundMethod)
	}
	var best plan.Plan
	for i, size := range in.memorySizes() {
		padded := in.withPaddedMemory(limit, size, shared)
		byBoth, err := planner(padded)
		if err != nil {
			return byBoth, err
		}
		byBoth.Bound, byBoth.BoundMethod = bound, method
		in.restateReasons(byBoth.Unplaced, padded)
		if i == 0 || better(byBoth, best) {
			best = byBoth
		}
		if len(best.Unplaced) == 0 && best.GPUsUsed <= bound {
			break
		}
	}
	return in.restoreMemory(best, limit, shared), nil
}

// better reports whether plan a leaves a smaller sum of unserved fractions of demands than b, or
// the same with fewer GPUs.
func better(a, b plan.Plan) bool {
	x, y := unserved(a), unserved(b)
	return x < y || x == y && a.GPUsUsed < b.GPUsUsed
}

// unserved returns the sum of the unserved fractions of demands.
func unserved(p plan.Plan) float64 {
	demands, sum := map[string]float64{}, 0.0
	for _, d := range p.Demand {
		demands[d.Function] = d.RPS
	}
	for _, u := range p.Unplaced {
		sum += u.RPS / demands[u.Function]
	}
	return sum
}

// memorySizes returns the different amounts of free memory of GPUs, in MiB, the largest first. It
// returns at most maxMemorySizes of them. It omits a size with which some function would not fit any GPU,
// although it fits a larger one.
func (in Input) memorySizes() []float64 {
	if in.Devices == nil {
		return []float64{in.MemMiB}
	}
	var all []float64
	for _, d := range in.Devices {
		if d.MemMiB > 0 {
			all = append(all, freeMemory(d).MiB())
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	slices.Reverse(all)
	minSize := 0.0
	for _, w := range in.functionDemands() {
		if len(w.rows) > 0 {
			minSize = max(minSize, slices.MinFunc(w.rows, byMemory).GPUMemMiB)
		}
	}
	large := filter(all, func(size float64) bool { return size >= minSize })
	if len(large) == 0 {
		return all[:1]
	}
	if n := len(large); n > maxMemorySizes {
		for i := range maxMemorySizes {
			large[i] = large[i*(n-1)/(maxMemorySizes-1)]
		}
		large = large[:maxMemorySizes]
	}
	return large
}

// boundInstances is the name of the bound by the number of instances.
const boundInstances = "instances"

// slotBoundMethod returns the name of the method of a bound that was computed with slots in place of
// memory.
func slotBoundMethod(method string) string {
	if method == boundMemory {
		return boundInstances
	}
	return method
}

// maxPerGPU returns the largest number of instances on one GPU of the plan.
func maxPerGPU(p plan.Plan) int {
	largest := 0
	for _, g := range p.GPUs {
		largest = max(largest, len(g.Instances))
	}
	return largest
}

// withSlots returns the input with limit MiB per GPU and 1 MiB per instance, in place of memory. It
// leaves out rows that do not fit any GPU.
func (in Input) withSlots(limit int) Input {
	if in.limitsMemory() { // without limits on memory, all rows fit
		in.Profile, _ = in.fitting(in.Profile)
	}
	in.Devices, in.Profile = slices.Clone(in.Devices), slices.Clone(in.Profile)
	in.MemMiB = float64(limit)
	for i := range in.Devices {
		in.Devices[i].MemMiB, in.Devices[i].UsedMemMiB = float64(limit), 0
	}
	for i := range in.Profile {
		in.Profile[i].GPUMemMiB, in.Profile[i].ModelMemMiB = 1, 0
	}
	return in
}

// withPaddedMemory returns the input with the free memory of each GPU limited to size, and with the
// memory of each instance raised to at least one slot: the memory of the largest GPU that suits the
// row, divided by limit and rounded down to whole bytes.
func (in Input) withPaddedMemory(limit int, size float64, shared bool) Input {
	in.Devices, in.Profile = slices.Clone(in.Devices), slices.Clone(in.Profile)
	for i, d := range in.Devices {
		if d.MemMiB == 0 || freeMemory(d).MiB() > size { // 0 means unlimited
			in.Devices[i].MemMiB, in.Devices[i].UsedMemMiB = size, 0
		}
	}
	for i, r := range in.Profile {
		whole := gpu.FromMiB(in.largestFor(r))
		slot := whole / gpu.Bytes(limit)
		if slot <= whole/gpu.Bytes(limit+1) { // rounded down so far that limit + 1 slots would fit
			slot++
		}
		if gpu.FromMiB(privateMemory(r, shared)) >= slot {
			continue
		}
		in.Profile[i].GPUMemMiB = slot.MiB()
		if shared {
			in.Profile[i].GPUMemMiB += r.ModelMemMiB
		}
	}
	return in
}

// largestFor returns the largest free memory, in MiB, of a GPU to which the row applies.
func (in Input) largestFor(r profile.Row) float64 {
	if in.Devices == nil {
		return in.MemMiB
	}
	largest := 0.0
	for _, d := range in.Devices {
		if matches(r, d) {
			largest = max(largest, freeMemory(d).MiB())
		}
	}
	return largest
}

// privateMemory returns the memory that an instance does not share with others, in MiB: its memory,
// without the model's weights if shared is true.
func privateMemory(r profile.Row, shared bool) float64 {
	if shared {
		return max(0, r.GPUMemMiB-r.ModelMemMiB)
	}
	return r.GPUMemMiB
}

// restoreMemory restores the memory of GPUs and instances in a plan that was made with slots or
// padded memory. GPUs get the memory of the input. Instances get the memory measured on their GPU
// model, or the largest measured if the model is unknown. restoreMemory also adds the limit to the
// reasons, and restores the name of the bound's method.
func (in Input) restoreMemory(p plan.Plan, limit int, shared bool) plan.Plan {
	rows := profile.NewIndex(in.Profile)
	measuredMiB := func(t plan.Instance, model string) (largest float64) {
		for _, r := range rows.On(t.Function, t.Config(), model) {
			largest = max(largest, privateMemory(r, shared))
		}
		return largest
	}
	if in.Devices != nil {
		in.resize(p.GPUs)
	}
	limited := in.limitsMemory()
	unplaceable := map[string]bool{} // functions that cannot be placed even without limit
	for _, w := range in.functionDemands() {
		unplaceable[w.demand.Function] = !w.reason.IsZero()
	}
	for i := range p.Unplaced {
		u := &p.Unplaced[i]
		if unplaceable[u.Function] {
			continue
		}
		u.Reason = limitReason(u.Reason, limit, limited)
	}
	p.BoundMethod = slotBoundMethod(p.BoundMethod)
	for g := range p.GPUs {
		host := &p.GPUs[g]
		if in.Devices == nil {
			host.MemMiB = in.MemMiB
		}
		for i := range host.Instances {
			if t := &host.Instances[i]; limited {
				t.MemMiB = min(t.MemMiB, measuredMiB(*t, host.Model))
			} else {
				t.MemMiB = 0
			}
		}
	}
	return p
}
