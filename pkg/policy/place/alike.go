package place

import (
	"slices"

	"github.com/gfaas/gfaas/pkg/plan"
)

const (
	// manyFunctions is up to how many the linear program plans well for GPUs of
	// several sizes.
	manyFunctions = 40
	// triedAlike is how many sizes of memory are tried.
	triedAlike = 3
)

// alike are the input with GPUs that are alike, as those of a fleet must be: those of
// the inventory with so much memory free, and no more of it. The sizes are the largest
// of which there may be GPUs enough. There are none for few functions, where instances
// span GPUs, and where GPUs are of several models or alike already.
func (in Input) alike() (out []Input) {
	spans := func(d plan.Demand) bool { return in.function(d.Function).GPUs > 1 }
	if len(in.Demand) <= manyFunctions || slices.ContainsFunc(in.Demand, spans) || len(in.Devices) == 0 {
		return nil
	}
	first, same := in.Devices[0], true
	for _, d := range in.Devices {
		if d.Model != first.Model || d.MemMiB == 0 {
			return nil
		}
		same = same && room(d) == room(first)
	}
	if same {
		return nil
	}
	wanted, sizes := in.wants(), in.sizes()
	for i, size := range sizes {
		one := in
		one.Devices = nil
		for _, d := range in.Devices {
			if room(d).MiB() >= size {
				d.MemMiB, d.UsedMemMiB = size, 0
				one.Devices = append(one.Devices, d)
			}
		}
		need, _ := one.bound(wanted)
		if (need <= len(one.Devices) || i == len(sizes)-1) && len(out) < triedAlike {
			out = append(out, one)
		}
	}
	return out
}

// resize gives GPUs of a plan the memory that the inventory says.
func (in Input) resize(gpus []plan.GPU) {
	type name struct {
		node  string
		index int
	}
	sizes := map[name]float64{}
	for _, d := range in.Devices {
		sizes[name{d.Node, d.Index}] = d.MemMiB
	}
	for i := range gpus {
		gpus[i].MemMiB = sizes[name{gpus[i].Node, gpus[i].Index}]
	}
}
