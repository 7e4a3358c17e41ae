// Package verify checks plans: Plan returns every Violation of its rules. It shares no code with the
// planners, so that their mistakes cannot hide in it. The exception is the throughput of an instance
// under random arrivals (package arrivals), which simulations check. Packages command/place,
// command/sim and rollout call it.
package verify

import (
	"fmt"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/profile"
)

// eps is the tolerance for shares, rates and sizes, because decimal fractions are not exact. It is
// relative for values above 1.
const eps = 1e-6

// Inputs holds the inputs of the plan. Fields that are nil are not checked.
type Inputs struct {
	Profile   []profile.Row
	Demand    []plan.Demand
	Inventory []plan.Device
	// Functions gives the span, the memory limit, the batches and the name of the weights of functions. The
	// weights of a function that is missing have its name. The objective of a function counts if
	// the demand has none.
	Functions []function.Function
	// SLOMS is the objective for the p95 latency, in ms, of functions that have no objective in
	// the demand or in Functions; 0 means none.
	SLOMS float64
}

// Rules of violations.
const (
	RuleInside   = "inside"   // an instance exceeds its GPU, or has an invalid share
	RuleOverlap  = "overlap"  // two instances overlap on a GPU
	RuleSchedule = "schedule" // a timetable is invalid or gives an instance too little
	RuleMemory   = "memory"   // a GPU's memory is exceeded
	RuleID       = "id"       // an ID is invalid or not unique
	RuleSpan     = "span"     // an instance is on more or fewer GPUs than its function spans, or on several nodes
	RuleGPU      = "gpu"      // a GPU is listed twice or is not in the inventory
	RuleProfile  = "profile"  // an instance differs from all rows of the profile
	RuleSLO      = "slo"      // a configuration misses the function's objective
	RuleDemand   = "demand"   // a demand is not served, or not as the plan states
	RuleUnplaced = "unplaced" // an unplaced demand is invalid
	RuleCount    = "count"    // gpus_used or bound is wrong
)

// Violation is one fault of a plan.
type Violation struct {
	Rule      string   `json:"rule"`
	GPU       string   `json:"gpu"` // node/index; empty if the violation concerns no single GPU
	Function  string   `json:"function"`
	Instances []string `json:"instances"` // IDs
	Message   string   `json:"message"`
}

// facts holds a plan and its inputs, indexed for the checks.
type facts struct {
	plan      plan.Plan
	in        Inputs
	devices   map[plan.GPUName]plan.Device
	rows      map[config][]profile.Row
	listed    map[plan.GPUName]int // number of times that a GPU is in the plan
	objective map[string]float64   // by function: slo_ms of the demand
	functions map[string]function.Function
}

// checker collects violations in the order of the plan.
type checker struct {
	*facts
	found []Violation
}

// Plan returns all violations of a plan. The result is never nil.
func Plan(p plan.Plan, in Inputs) []Violation {
	c := &checker{newFacts(p, in), []Violation{}}
	c.checkIDs()
	c.checkSpans()
	for _, g := range p.GPUs {
		c.checkGPU(g)
		c.checkShares(g)
		switch p.Model {
		case plan.ModelTokens:
			c.checkSchedule(g)
		case plan.ModelNone:
			c.checkRequests(g)
		default:
			c.checkRectangles(g)
		}
		c.checkMemory(g)
		for _, in := range g.Instances {
			c.checkConfiguration(g, in)
		}
	}
	c.checkDemand()
	c.checkUnplaced()
	c.checkCounts()
	return c.found
}

func newFacts(p plan.Plan, in Inputs) *facts {
	f := &facts{
		plan: p, in: in, devices: map[plan.GPUName]plan.Device{}, rows: map[config][]profile.Row{}, listed: map[plan.GPUName]int{},
		objective: map[string]float64{}, functions: map[string]function.Function{},
	}
	for _, d := range in.Inventory {
		f.devices[d.Name()] = d
	}
	for _, r := range in.Profile {
		at := configOf(r.Function, r.SMPct, r.Quota, r.Batch)
		f.rows[at] = append(f.rows[at], r)
	}
	for _, g := range p.GPUs {
		f.listed[g.Name()]++
	}
	for _, d := range in.Demand {
		f.objective[d.Function] = d.SLOMS
	}
	for _, fn := range in.Functions {
		f.functions[fn.Name] = fn
	}
	return f
}

// slo returns the objective of a function, in ms: that of the demand, its own, or the default; 0 means
// none.
func (f *facts) slo(function string) float64 {
	if slo := f.objective[function]; slo > 0 {
		return slo
	}
	if own := f.functions[function].SLO; own > 0 {
		return float64(own) / float64(time.Millisecond)
	}
	return f.in.SLOMS
}

// model returns the name of a function's weights.
func (f *facts) model(function string) string {
	if fn := f.functions[function]; fn.Model != nil {
		return fn.Model.Name
	}
	return function
}

// tenant returns the tenant of a function as plans write it: empty for the default tenant.
func (f *facts) tenant(name string) string {
	if tenant := f.functions[name].Tenant; tenant != function.DefaultTenant {
		return tenant
	}
	return ""
}

func (c *checker) add(v Violation, format string, args ...any) {
	if v.Instances == nil {
		v.Instances = []string{}
	}
	v.Message = fmt.Sprintf(format, args...)
	c.found = append(c.found, v)
}

// onGPU returns a violation by the given instances of a GPU.
func onGPU(rule string, g plan.GPU, instances ...plan.Instance) Violation {
	v := Violation{Rule: rule, GPU: g.Name().String()}
	for _, in := range instances {
		v.Instances = append(v.Instances, in.ID)
	}
	if len(instances) == 1 {
		v.Function = instances[0].Function
	}
	return v
}

// exceeds reports whether a is larger than b by more than the tolerance.
func exceeds(a, b float64) bool { return a > b+eps*max(1, b) }

func differs(a, b float64) bool { return exceeds(a, b) || exceeds(b, a) }
