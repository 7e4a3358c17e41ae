// Package verify checks plans. It shares no code with the planners, so that a
// mistake of theirs cannot hide in it; but for what an instance is worth when
// requests come at random (package arrivals), which simulations check.
package verify

import (
	"fmt"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/profile"
)

// eps is how far shares, rates and sizes may be off because decimal fractions
// are not exact; rates and sizes relatively.
const eps = 1e-6

// Inputs are what the plan was made from. What is nil is not checked against.
type Inputs struct {
	Profile   []profile.Row
	Demand    []plan.Demand
	Inventory []plan.Device
	// Functions say how many GPUs an instance spans, how much memory it may use and
	// what its weights are called. Of a function that is not among them the weights, where shared,
	// bear the function's name. Their objectives count where the demand has none.
	Functions []function.Function
	// SLOMS is the objective for the p95 latency of functions that have none by the
	// demand or of their own; 0 is none.
	SLOMS float64
}

// Rules that a violation can be of.
const (
	RuleInside   = "inside"   // an instance exceeds its GPU, or has a share that no instance can have
	RuleOverlap  = "overlap"  // two instances have a part of a GPU in common
	RuleSchedule = "schedule" // a timetable does not give what it must
	RuleMemory   = "memory"   // a GPU's memory is exceeded
	RuleID       = "id"       // an id is not one instance's alone, or none
	RuleSpan     = "span"     // an instance is on more or fewer GPUs than its function spans, or on several nodes
	RuleGPU      = "gpu"      // a GPU is listed twice or is not in the inventory
	RuleProfile  = "profile"  // an instance is not as a row of the profile
	RuleSLO      = "slo"      // a configuration misses the function's objective
	RuleDemand   = "demand"   // a demand is not served, or not as the plan says
	RuleUnplaced = "unplaced" // what is said to be unplaced makes no sense
	RuleCount    = "count"    // gpus_used or bound cannot be right
)

// Violation is one thing wrong with a plan.
type Violation struct {
	Rule      string   `json:"rule"`
	GPU       string   `json:"gpu"` // node/index, empty when no single GPU is meant
	Function  string   `json:"function"`
	Instances []string `json:"instances"` // ids
	Message   string   `json:"message"`
}

// checker gathers violations in the order of the plan.
type checker struct {
	plan  plan.Plan
	in    Inputs
	found []Violation

	devices   map[string]plan.Device
	rows      map[config][]profile.Row
	listed    map[string]int     // times a GPU is in the plan
	objective map[string]float64 // slo_ms of the demand by function
	functions map[string]function.Function
}

// Plan lists everything that is wrong with a plan. Nothing is nil.
func Plan(p plan.Plan, in Inputs) []Violation {
	c := &checker{plan: p, in: in, found: []Violation{}}
	c.index()
	c.ids()
	c.spans()
	for _, g := range p.GPUs {
		c.place(g)
		c.shares(g)
		switch p.Model {
		case plan.ModelTokens:
			c.schedule(g)
		case plan.ModelNone:
			c.requests(g)
		default:
			c.rectangles(g)
		}
		c.memory(g)
		for _, in := range g.Instances {
			c.configuration(g, in)
		}
	}
	c.demand()
	c.unplaced()
	c.counts()
	return c.found
}

func (c *checker) index() {
	c.devices = map[string]plan.Device{}
	for _, d := range c.in.Inventory {
		c.devices[name(d.Node, d.Index)] = d
	}
	c.rows = map[config][]profile.Row{}
	for _, r := range c.in.Profile {
		at := configOf(r.Function, r.SMPct, r.Quota, r.Batch)
		c.rows[at] = append(c.rows[at], r)
	}
	c.listed = map[string]int{}
	for _, g := range c.plan.GPUs {
		c.listed[name(g.Node, g.Index)]++
	}
	c.objective = map[string]float64{}
	for _, d := range c.in.Demand {
		c.objective[d.Function] = d.SLOMS
	}
	c.functions = map[string]function.Function{}
	for _, fn := range c.in.Functions {
		c.functions[fn.Name] = fn
	}
}

// slo is the objective of a function: the demand's, its own, or that of all; 0 is
// none.
func (c *checker) slo(function string) float64 {
	if slo := c.objective[function]; slo > 0 {
		return slo
	}
	if own := c.functions[function].SLO; own > 0 {
		return float64(own) / float64(time.Millisecond)
	}
	return c.in.SLOMS
}

// model is what the weights of a function are called.
func (c *checker) model(function string) string {
	if fn := c.functions[function]; fn.Model != nil {
		return fn.Model.Name
	}
	return function
}

// tenant is the tenant of a function in the way of plans: none for the default one.
func (c *checker) tenant(name string) string {
	if tenant := c.functions[name].Tenant; tenant != function.DefaultTenant {
		return tenant
	}
	return ""
}

func name(node string, index int) string { return fmt.Sprintf("%s/%d", node, index) }

func (c *checker) add(v Violation, format string, args ...any) {
	if v.Instances == nil {
		v.Instances = []string{}
	}
	v.Message = fmt.Sprintf(format, args...)
	c.found = append(c.found, v)
}

// onGPU is a violation of some instances of a GPU.
func onGPU(rule string, g plan.GPU, instances ...plan.Instance) Violation {
	v := Violation{Rule: rule, GPU: name(g.Node, g.Index)}
	for _, in := range instances {
		v.Instances = append(v.Instances, in.ID)
	}
	if len(instances) == 1 {
		v.Function = instances[0].Function
	}
	return v
}

// exceeds compares with tolerance: relative for what is larger than 1.
func exceeds(a, b float64) bool { return a > b+eps*max(1, b) }

func differs(a, b float64) bool { return exceeds(a, b) || exceeds(b, a) }
