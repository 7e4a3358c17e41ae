package verify

import (
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/profile"
)

// checkIDs checks that each ID belongs to one instance. An instance that spans several GPUs is
// listed once on each, with the same values.
func (c *checker) checkIDs() {
	type occurrence struct {
		instance plan.Instance
		gpu      plan.GPUName
	}
	first := map[string]occurrence{}
	for _, g := range c.plan.GPUs {
		onThisGPU := map[string]bool{}
		for _, in := range g.Instances {
			previous, twice := first[in.ID]
			switch {
			case !instance.ValidID(in.ID):
				c.add(onGPU(RuleID, g, in), "invalid ID %q: expected at most 63 letters, digits, dots, dashes and underscores", in.ID)
			case !twice:
				first[in.ID] = occurrence{in, g.Name()}
			case onThisGPU[in.ID]:
				c.add(onGPU(RuleID, g, in), "the ID %s appears twice on this GPU", in.ID)
			case !sameInstance(previous.instance, in):
				c.add(onGPU(RuleID, g, in), "the ID %s belongs to another instance on %s", in.ID, previous.gpu)
			}
			onThisGPU[in.ID] = true
		}
	}
}

func sameInstance(a, b plan.Instance) bool {
	a.X, a.Y, a.MemMiB = b.X, b.Y, b.MemMiB
	return a == b
}

// checkSpans checks that each instance is on the number of GPUs that its function spans, all of
// one node, because it is one process or container.
func (c *checker) checkSpans() {
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
			c.add(v, "%s is on %d GPUs, but its function spans %d", id, len(s.nodes), max(1, fn.GPUs))
		}
		if nodes := slices.Compact(slices.Sorted(slices.Values(s.nodes))); len(nodes) > 1 {
			c.add(v, "%s is on GPUs of %d nodes, expected one", id, len(nodes))
		}
	}
}

// checkDemand checks that each function is served as the plan states, and that the plan lists all
// missing demand as unplaced.
func (c *checker) checkDemand() {
	actual := c.servedRPS()
	unplaced := map[string]float64{}
	for _, u := range c.plan.Unplaced {
		unplaced[u.Function] += u.RPS
	}
	listed := map[string]plan.Served{}
	for _, d := range c.plan.Demand {
		v := Violation{Rule: RuleDemand, Function: d.Function}
		if _, twice := listed[d.Function]; twice {
			c.add(v, "the demand of %s is listed twice", d.Function)
			continue
		}
		listed[d.Function] = d
		if differs(d.ServedRPS, actual[d.Function]) {
			c.add(v, "served_rps of %s is %v requests/s, but its instances sum to %v requests/s", d.Function, d.ServedRPS, actual[d.Function])
		}
		if exceeds(d.RPS, actual[d.Function]+unplaced[d.Function]) {
			c.add(v, "the demand of %s is %v requests/s, of which %v are served and only %v are listed as unplaced",
				d.Function, d.RPS, actual[d.Function], unplaced[d.Function])
		}
	}
	c.checkUndemanded(listed)
	for _, d := range c.in.Demand {
		v := Violation{Rule: RuleDemand, Function: d.Function}
		switch planned, known := listed[d.Function]; {
		case !known:
			c.add(v, "the demand of %s is %v requests/s, but the plan does not list the function", d.Function, d.RPS)
		case differs(planned.RPS, d.RPS):
			c.add(v, "the demand of %s is %v requests/s, but %v requests/s in the plan", d.Function, d.RPS, planned.RPS)
		}
	}
}

// checkUndemanded reports functions that only the plan lists, and instances of functions that the
// plan does not list.
func (c *checker) checkUndemanded(listed map[string]plan.Served) {
	if c.in.Demand != nil {
		for _, d := range c.plan.Demand {
			if _, demanded := c.objective[d.Function]; !demanded {
				c.add(Violation{Rule: RuleDemand, Function: d.Function}, "the plan serves %s, which is not in the demand", d.Function)
			}
		}
	}
	if len(listed) == 0 && c.in.Demand == nil {
		return // a plan written by hand need not list its demand
	}
	for _, g := range c.plan.GPUs {
		for _, in := range g.Instances {
			if _, demanded := listed[in.Function]; !demanded {
				c.add(onGPU(RuleDemand, g, in), "%s is an instance of %s, which is missing in the demand of the plan", in.ID, in.Function)
			}
		}
	}
}

// servedRPS returns the total throughput of the instances of each function.
func (c *checker) servedRPS() map[string]float64 {
	sum, counted := map[string]float64{}, map[string]bool{}
	for _, g := range c.plan.GPUs {
		for _, in := range g.Instances {
			if !counted[in.ID] {
				sum[in.Function] += in.RPS
			}
			counted[in.ID] = true
		}
	}
	return sum
}

// checkUnplaced checks that each unplaced demand is wanted, missing and has a reason.
func (c *checker) checkUnplaced() {
	demands := map[string]plan.Served{}
	for _, d := range c.plan.Demand {
		demands[d.Function] = d
	}
	counted := map[string]bool{}
	for _, u := range c.plan.Unplaced {
		v := Violation{Rule: RuleUnplaced, Function: u.Function}
		d, known := demands[u.Function]
		switch {
		case counted[u.Function]:
			c.add(v, "%s is listed as unplaced twice", u.Function)
		case !known:
			c.add(v, "%s is listed as unplaced, but is not in the demand", u.Function)
		case !(u.RPS > 0):
			c.add(v, "the unplaced demand of %s is %v requests/s, expected more than 0", u.Function, u.RPS)
		case exceeds(u.RPS, d.RPS-min(d.RPS, d.ServedRPS)):
			c.add(v, "the unplaced demand of %s is %v requests/s, but only %v of %v requests/s are missing", u.Function, u.RPS, max(0, d.RPS-d.ServedRPS), d.RPS)
		}
		if u.Reason == "" {
			c.add(v, "%s is unplaced without a reason", u.Function)
		}
		counted[u.Function] = true
	}
}

// checkCounts checks the totals of the plan.
func (c *checker) checkCounts() {
	used := 0
	for _, g := range c.plan.GPUs {
		if len(g.Instances) > 0 {
			used++
		}
	}
	v := Violation{Rule: RuleCount}
	if used != c.plan.GPUsUsed {
		c.add(v, "gpus_used is %d, but %d GPUs have instances", c.plan.GPUsUsed, used)
	}
	if c.plan.Bound < 0 {
		c.add(v, "bound is %d, expected 0 or more", c.plan.Bound)
	}
	if len(c.plan.Unplaced) == 0 && c.plan.Bound > used {
		c.add(v, "bound is %d, although %d GPUs serve the whole demand", c.plan.Bound, used)
	}
	if limit, ok := c.sufficientGPUs(); ok && len(c.found) == 0 && float64(c.plan.Bound) > limit {
		c.add(v, "bound is %d, although %v GPUs suffice for the servable demand if each instance has its own GPUs", c.plan.Bound, limit)
	}
}

// sufficientGPUs returns a number of GPUs that certainly serves the demand: every instance has
// GPUs of its own and the configuration with the highest throughput. No lower bound may exceed
// it. It returns false if the inventory may lack GPUs of the model, if weights are shared, if no
// GPU states its memory, or if the plan has GPUs of several models.
func (c *checker) sufficientGPUs() (gpus float64, ok bool) {
	if c.in.Profile == nil || c.in.Demand == nil || c.in.Inventory != nil || len(c.plan.GPUs) == 0 {
		return 0, false
	}
	mem, model := c.plan.GPUs[0].MemMiB, c.plan.GPUs[0].Model
	for _, g := range c.plan.GPUs {
		if g.MemMiB != mem || g.Model != model || len(g.Models) > 0 {
			return 0, false
		}
	}
	best := map[string]float64{}
	for _, r := range profile.On(c.in.Profile, model) {
		slo := c.slo(r.Function)
		if c.meets(r, slo) && c.reaches(r.Function, r.Batch) && (mem == 0 || r.GPUMemMiB <= mem) {
			best[r.Function] = max(best[r.Function], c.maxRPS(r))
		}
	}
	for _, d := range c.in.Demand {
		if best[d.Function] > 0 {
			gpus += math.Ceil(d.RPS/best[d.Function]) * float64(max(1, c.functions[d.Function].GPUs))
		}
	}
	return gpus, true
}
