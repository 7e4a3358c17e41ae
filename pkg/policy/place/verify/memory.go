package verify

import (
	"math"

	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/profile"
)

// room is what a GPU has for instances and models, in MiB; not limited when
// neither the plan nor the inventory limits it.
func (c *checker) room(g plan.GPU) (mib float64, limited bool) {
	device, known := c.devices[name(g.Node, g.Index)]
	switch {
	case known && device.MemMiB > 0 && g.MemMiB > 0:
		return min(g.MemMiB, device.MemMiB-device.UsedMemMiB), true
	case known && device.MemMiB > 0:
		return device.MemMiB - device.UsedMemMiB, true
	}
	return g.MemMiB, g.MemMiB > 0
}

// memory checks that what runs on a GPU, and the models kept for it, fit. Each
// model counts once, however many instances share it.
func (c *checker) memory(g plan.GPU) {
	sum, models := 0.0, map[string]bool{}
	for _, in := range g.Instances {
		sum += in.MemMiB
	}
	for _, m := range g.Models {
		if models[m.Name] || !finite(m.MemMiB) || m.MemMiB < 0 || m.Name == "" {
			c.add(onGPU(RuleMemory, g), "the model %q with %v MiB is kept twice, has no name or no size", m.Name, m.MemMiB)
		}
		models[m.Name] = true
		sum += m.MemMiB
	}
	if room, limited := c.room(g); limited && !(sum <= room+eps*max(1, room)) {
		c.add(onGPU(RuleMemory, g, g.Instances...), "instances and models need %v MiB, the GPU has %v", sum, room)
	}
}

// needs is the least an instance of a configuration may have on the GPU: all
// that was measured, or its private part where the GPU keeps its weights.
func (c *checker) needs(row profile.Row, g plan.GPU) float64 {
	for _, m := range g.Models {
		if m.Name == c.model(row.Function) && !exceeds(row.ModelMemMiB, m.MemMiB) {
			return row.GPUMemMiB - row.ModelMemMiB
		}
	}
	return row.GPUMemMiB
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
