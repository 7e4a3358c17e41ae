package place

import (
	"slices"

	"github.com/gfaas/gfaas/pkg/plan"
)

const (
	// manyFunctions is the largest number of functions for which the linear program plans GPUs
	// of several sizes well.
	manyFunctions = 40
	// maxUniformInputs limits the sizes of memory that are tried.
	maxUniformInputs = 3
)

// uniformInputs returns inputs in which all GPUs are alike, so that joint can plan a fleet. Each input has
// the GPUs of the inventory with at least a certain amount of free memory, reduced to that amount.
// The amounts are the largest for which the GPUs may suffice. It returns nil if there are few
// functions, if an instance spans GPUs, or if GPUs are of several models, have unlimited memory or are alike already.
func (in Input) uniformInputs() (out []Input) {
	spans := func(d plan.Demand) bool { fn, _ := in.function(d.Function); return fn.GPUs > 1 }
	if len(in.Demand) <= manyFunctions || slices.ContainsFunc(in.Demand, spans) || len(in.Devices) == 0 {
		return nil
	}
	first, same := in.Devices[0], true
	for _, d := range in.Devices {
		if d.Model != first.Model || d.MemMiB == 0 {
			return nil
		}
		same = same && freeMemory(d) == freeMemory(first)
	}
	if same {
		return nil
	}
	demands, sizes := in.functionDemands(), in.memorySizes()
	for i, size := range sizes {
		input := in
		input.Devices = nil
		for _, d := range in.Devices {
			if freeMemory(d).MiB() >= size {
				d.MemMiB, d.UsedMemMiB = size, 0
				input.Devices = append(input.Devices, d)
			}
		}
		needed, _ := input.bound(demands)
		if (needed <= len(input.Devices) || i == len(sizes)-1) && len(out) < maxUniformInputs {
			out = append(out, input)
		}
	}
	return out
}

// resize sets the memory of GPUs to that of the inventory.
func (in Input) resize(gpus []plan.GPU) {
	sizes := map[plan.GPUName]float64{}
	for _, d := range in.Devices {
		sizes[d.Name()] = d.MemMiB
	}
	for i := range gpus {
		gpus[i].MemMiB = sizes[gpus[i].Name()]
	}
}
