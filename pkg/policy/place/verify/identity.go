package verify

import (
	"slices"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/plan"
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
			case !instance.ValidID(in.ID):
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

// spans checks that an instance is on as many GPUs as its function spans, all
// of one node: it is one process, or one container.
func (c *checker) spans() {
	type span struct {
		function string
		nodes    []string
	}
	var order []string
	byID := map[string]*span{}
	for _, g := range c.plan.GPUs {
		for _, in := range g.Instances {
			s, known := byID[in.ID]
			if !known {
				s = &span{function: in.Function}
				byID[in.ID] = s
				order = append(order, in.ID)
			}
			s.nodes = append(s.nodes, g.Node)
		}
	}
	for _, id := range order {
		s := byID[id]
		v := Violation{Rule: RuleSpan, Function: s.function, Instances: []string{id}}
		if fn, known := c.functions[s.function]; known && len(s.nodes) != max(1, fn.GPUs) {
			c.add(v, "%s is on %d GPUs, its function spans %d", id, len(s.nodes), max(1, fn.GPUs))
		}
		if nodes := slices.Compact(slices.Sorted(slices.Values(s.nodes))); len(nodes) > 1 {
			c.add(v, "%s is on GPUs of %d nodes, expected one", id, len(nodes))
		}
	}
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
	if exceeds(g.MemMiB, device.MemMiB) && device.MemMiB > 0 {
		c.add(onGPU(RuleMemory, g), "the plan gives the GPU %v MiB, the inventory %v", g.MemMiB, device.MemMiB)
	}
}
