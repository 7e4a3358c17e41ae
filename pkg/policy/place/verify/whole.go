package verify

import (
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/profile"
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

// demand checks that each function is served as far as the plan says, and that
// what is missing is said to be.
func (c *checker) demand() {
	actual := c.actual()
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
			c.add(v, "%s is said to be served %v requests a second, its instances sum to %v", d.Function, d.ServedRPS, actual[d.Function])
		}
		if exceeds(d.RPS, actual[d.Function]+unplaced[d.Function]) {
			c.add(v, "%s wants %v requests a second, is served %v, and only %v are said to be unplaced",
				d.Function, d.RPS, actual[d.Function], unplaced[d.Function])
		}
	}
	c.unwanted(listed)
	for _, d := range c.in.Demand {
		v := Violation{Rule: RuleDemand, Function: d.Function}
		switch planned, known := listed[d.Function]; {
		case !known:
			c.add(v, "%s wants %v requests a second, the plan does not list it", d.Function, d.RPS)
		case differs(planned.RPS, d.RPS):
			c.add(v, "%s wants %v requests a second, the plan is for %v", d.Function, d.RPS, planned.RPS)
		}
	}
}

// unwanted finds what is in no demand: functions that only the plan lists, and
// instances of functions that it does not.
func (c *checker) unwanted(listed map[string]plan.Served) {
	if c.in.Demand != nil {
		for _, d := range c.plan.Demand {
			if _, wanted := c.objective[d.Function]; !wanted {
				c.add(Violation{Rule: RuleDemand, Function: d.Function}, "the plan serves %s, which is in no demand", d.Function)
			}
		}
	}
	if len(listed) == 0 && c.in.Demand == nil {
		return // a plan written by hand need not repeat what it is for
	}
	for _, g := range c.plan.GPUs {
		for _, in := range g.Instances {
			if _, wanted := listed[in.Function]; !wanted {
				c.add(onGPU(RuleDemand, g, in), "%s is of %s, which the plan's demand does not list", in.ID, in.Function)
			}
		}
	}
}

// actual is what the instances of each function sum to.
func (c *checker) actual() map[string]float64 {
	sum, seen := map[string]float64{}, map[string]bool{}
	for _, g := range c.plan.GPUs {
		for _, in := range g.Instances {
			if !seen[in.ID] {
				sum[in.Function] += in.RPS
			}
			seen[in.ID] = true
		}
	}
	return sum
}

// unplaced checks that what is said to be unplaced is wanted, missing, and
// explained.
func (c *checker) unplaced() {
	wanted := map[string]plan.Served{}
	for _, d := range c.plan.Demand {
		wanted[d.Function] = d
	}
	seen := map[string]bool{}
	for _, u := range c.plan.Unplaced {
		v := Violation{Rule: RuleUnplaced, Function: u.Function}
		d, known := wanted[u.Function]
		switch {
		case seen[u.Function]:
			c.add(v, "%s is listed as unplaced twice", u.Function)
		case !known:
			c.add(v, "%s is unplaced but in no demand", u.Function)
		case !(u.RPS > 0):
			c.add(v, "%s has %v requests a second unplaced, expected more than 0", u.Function, u.RPS)
		case exceeds(u.RPS, d.RPS-min(d.RPS, d.ServedRPS)):
			c.add(v, "%s has %v requests a second unplaced, only %v of %v are missing", u.Function, u.RPS, max(0, d.RPS-d.ServedRPS), d.RPS)
		}
		if u.Reason == "" {
			c.add(v, "%s is unplaced without a reason", u.Function)
		}
		seen[u.Function] = true
	}
}

// counts checks the figures of the whole plan.
func (c *checker) counts() {
	used := 0
	for _, g := range c.plan.GPUs {
		if len(g.Instances) > 0 {
			used++
		}
	}
	v := Violation{Rule: RuleCount}
	if used != c.plan.GPUsUsed {
		c.add(v, "gpus_used is %d, there are instances on %d", c.plan.GPUsUsed, used)
	}
	if c.plan.Bound < 0 {
		c.add(v, "bound is %d, expected 0 or more", c.plan.Bound)
	}
	if len(c.plan.Unplaced) == 0 && c.plan.Bound > used {
		c.add(v, "bound is %d although %d GPUs serve all of the demand", c.plan.Bound, used)
	}
	if most, ok := c.sufficient(); ok && len(c.found) == 0 && float64(c.plan.Bound) > most {
		c.add(v, "bound is %d although %v GPUs suffice for what can be served when every instance has its own", c.plan.Bound, most)
	}
}

// sufficient is a number of GPUs that surely serves the demand: every instance
// has GPUs of its own and runs what sustains most. No lower bound exceeds it.
// It is not known when the inventory may lack GPUs of the model, when weights
// are shared, when no GPU says how much memory there is, or when the plan has GPUs of
// several models.
func (c *checker) sufficient() (gpus float64, ok bool) {
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
		if c.meets(r, slo) && (mem == 0 || r.GPUMemMiB <= mem) {
			best[r.Function] = max(best[r.Function], c.worth(r))
		}
	}
	for _, d := range c.in.Demand {
		if best[d.Function] > 0 {
			gpus += math.Ceil(d.RPS/best[d.Function]) * float64(max(1, c.functions[d.Function].GPUs))
		}
	}
	return gpus, true
}
