package verify

import "math"

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
// are shared, or when no GPU says how much memory there is.
func (c *checker) sufficient() (gpus float64, ok bool) {
	if c.in.Profile == nil || c.in.Demand == nil || c.in.Inventory != nil || len(c.plan.GPUs) == 0 {
		return 0, false
	}
	mem := c.plan.GPUs[0].MemMiB
	for _, g := range c.plan.GPUs {
		if g.MemMiB != mem || len(g.Models) > 0 {
			return 0, false
		}
	}
	best := map[string]float64{}
	for _, r := range c.in.Profile {
		slo := c.objective[r.Function]
		if (slo == 0 || r.P95MS <= slo) && (mem == 0 || r.GPUMemMiB <= mem) {
			best[r.Function] = max(best[r.Function], r.ThroughputRPS)
		}
	}
	for _, d := range c.in.Demand {
		if best[d.Function] > 0 {
			gpus += math.Ceil(d.RPS/best[d.Function]) * float64(max(1, c.functions[d.Function].GPUs))
		}
	}
	return gpus, true
}
