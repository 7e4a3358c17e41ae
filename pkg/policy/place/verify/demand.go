package verify

import (
	"math"

	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/profile"
)

// config is what rows of a profile are found by. Shares are rounded to
// billionths: plans may have been through programs that print 0.30000000000000004.
type config struct {
	function  string
	sm, quota float64
	batch     int
}

func configOf(function string, sm, quota float64, batch int) config {
	return config{function, math.Round(sm * 1e9), math.Round(quota * 1e9), batch}
}

// configuration checks an instance against the profile and its objective. When
// the profile has its configuration for several models of GPU and the GPU's is
// not known, one of them must hold.
func (c *checker) configuration(g plan.GPU, in plan.Instance) {
	if c.in.Profile == nil {
		return
	}
	model := c.devices[name(g.Node, g.Index)].Model
	var faults []Violation
	known := false
	for _, row := range c.rows[configOf(in.Function, in.SMPct, in.QuotaRequest, in.Batch)] {
		if model != "" && row.GPU != "" && row.GPU != model {
			continue
		}
		wrong := c.against(row, g, in)
		if len(wrong) == 0 {
			return
		}
		if !known {
			faults = wrong
		}
		known = true
	}
	if !known {
		c.add(onGPU(RuleProfile, g, in), "%s runs at sm_pct %v, quota %v, batch %d, which is no row of the profile for its GPU",
			in.ID, in.SMPct, in.QuotaRequest, in.Batch)
	}
	c.found = append(c.found, faults...)
}

// against lists what of an instance is not as a row of the profile says.
func (c *checker) against(row profile.Row, g plan.GPU, in plan.Instance) []Violation {
	var one checker
	if exceeds(in.RPS, row.ThroughputRPS) {
		one.add(onGPU(RuleProfile, g, in), "%s is counted on for %v requests a second, its configuration sustains %v", in.ID, in.RPS, row.ThroughputRPS)
	}
	need := c.needs(row, g)
	if _, limited := c.room(g); limited && exceeds(need, in.MemMiB) {
		one.add(onGPU(RuleMemory, g, in), "%s has %v MiB, its configuration needs %v", in.ID, in.MemMiB, need)
	}
	if slo := c.objective[in.Function]; slo > 0 && exceeds(row.P95MS, slo) {
		one.add(onGPU(RuleSLO, g, in), "%s has a p95 latency of %v ms, expected at most %v", in.ID, row.P95MS, slo)
	}
	return one.found
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
