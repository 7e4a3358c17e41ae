package verify

import (
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/wire"
)

// ids checks that an id is one instance's alone. An instance that spans
// several GPUs is listed once on each, always alike.
func (c *checker) ids() {
	type seen struct {
		instance plan.Instance
		gpu      string
	}
	first := map[string]seen{}
	for _, g := range c.plan.GPUs {
		here := map[string]bool{}
		for _, in := range g.Instances {
			was, twice := first[in.ID]
			switch {
			case !wire.ValidInstance(in.ID):
				c.add(onGPU(RuleID, g, in), "%q is no id: expected at most 63 letters, digits, dots, dashes and underscores", in.ID)
			case !twice:
				first[in.ID] = seen{in, name(g.Node, g.Index)}
			case here[in.ID]:
				c.add(onGPU(RuleID, g, in), "the id %s is twice on this GPU", in.ID)
			case !alike(was.instance, in):
				c.add(onGPU(RuleID, g, in), "the id %s is another instance's on %s", in.ID, was.gpu)
			}
			here[in.ID] = true
		}
	}
}

func alike(a, b plan.Instance) bool {
	a.X, a.Y, a.MemMiB = b.X, b.Y, b.MemMiB
	return a == b
}

// place checks that the GPU is listed once and is in the inventory.
func (c *checker) place(g plan.GPU) {
	times := c.listed[name(g.Node, g.Index)]
	if times > 1 {
		c.add(onGPU(RuleGPU, g), "the GPU %s is listed %d times", name(g.Node, g.Index), times)
	}
	if c.in.Inventory == nil {
		return
	}
	device, known := c.devices[name(g.Node, g.Index)]
	if !known {
		c.add(onGPU(RuleGPU, g), "the inventory has no GPU %s", name(g.Node, g.Index))
		return
	}
	if exceeds(g.MemMiB, device.MemMiB) {
		c.add(onGPU(RuleMemory, g), "the plan gives the GPU %v MiB, the inventory %v", g.MemMiB, device.MemMiB)
	}
}

// memory checks that what runs on a GPU, and the models kept for it, fit.
func (c *checker) memory(g plan.GPU) {
	sum, models := 0.0, map[string]bool{}
	for _, in := range g.Instances {
		sum += in.MemMiB
	}
	for _, m := range g.Models {
		if models[m.Name] || !(m.MemMiB >= 0) || m.Name == "" {
			c.add(onGPU(RuleMemory, g), "the model %q with %v MiB is kept twice, has no name or a negative size", m.Name, m.MemMiB)
		}
		models[m.Name] = true
		sum += m.MemMiB
	}
	limit := g.MemMiB
	device, known := c.devices[name(g.Node, g.Index)]
	if known && (limit == 0 || device.MemMiB-device.UsedMemMiB < limit) {
		limit = device.MemMiB - device.UsedMemMiB
	} else if limit == 0 {
		return
	}
	if exceeds(sum, limit) {
		c.add(onGPU(RuleMemory, g, g.Instances...), "instances and models need %v MiB, the GPU has %v", sum, limit)
	}
}
