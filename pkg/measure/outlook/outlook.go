// Package outlook plans from a profile: it computes how many GPUs the functions of a
// profile need for some demands, each function alone and all together.
//
// Plan makes the same plans as gfaas-place plan for the same demand (place.Joint). It starts
// no further plan after its time limit. The command gfaas-profile report calls the package.
package outlook

import (
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place"
	"github.com/gfaas/gfaas/pkg/policy/place/prepare"
	"github.com/gfaas/gfaas/pkg/policy/search"
	"github.com/gfaas/gfaas/pkg/profile"
)

// steps are the multiples of the throughput of the chosen configuration that are planned
// without another demand.
var steps = []float64{1, 10, 100}

// Section is one function on one model of GPU.
type Section struct {
	Function string
	GPU      string
	Rows     []profile.Row
	Goal     search.Goal
	Choice   search.Choice
}

// Request describes what to plan for.
type Request struct {
	Sections []Section
	// RPS are the rates of each function. Without them and Demand, the rates are 1, 10 and
	// 100 times the throughput of the chosen configuration.
	RPS       []float64
	Demand    []plan.Demand // replaces RPS, even if it is empty; nil if there is none
	Functions []function.Function
	MemMiB    float64               // of each GPU; 0 is without limit
	Model     string                // plan.ModelRect or plan.ModelTokens
	Arrivals  func(in *place.Input) // sets the assumptions about arrivals in the input of the planner
	TimeLimit time.Duration
	Planned   func() // called after each step (see Steps)
}

// Outlook is the plans for one section or several.
type Outlook struct {
	Plans  []plan.Plan   // one for each demand, except those for which the time was too short
	Demand []plan.Demand // of the first plan
}

// SharedOutlook holds the plans for all sections of one GPU model, at least two.
type SharedOutlook struct {
	GPU     string
	Without []string // functions without a configuration that meets the goal
	// UnsharedGPUs are the GPUs that the functions take for each demand if they share none with
	// each other; nil if unknown.
	UnsharedGPUs []int
	Outlook
}

// Result is the plans for a request.
type Result struct {
	Sections  []Outlook // in the order of the request
	Shared    []SharedOutlook
	Unplanned int // sections that lack a plan because the time was over
}

// Objective returns the p95 objective of a function in ms, from the demand, the function
// or slo, in this order. It returns 0 if there is none.
func Objective(name string, demand []plan.Demand, loaded []function.Function, slo time.Duration) float64 {
	one := []plan.Demand{{Function: name}}
	for _, d := range demand {
		if d.Function == name {
			one[0] = d
		}
	}
	prepare.Objectives(one, loaded, slo)
	return one[0].SLOMS
}

// rates returns the rates to plan for; nil if the section has no demand and no choice.
func (p *Request) rates(s Section) []float64 {
	switch {
	case p.Demand != nil:
		own := lists.Filter(p.Demand, func(d plan.Demand) bool { return d.Function == s.Function })
		return lists.Map(own, func(d plan.Demand) float64 { return d.RPS })
	case len(p.RPS) > 0:
		return p.RPS
	case s.Choice.OK:
		return lists.Map(steps, func(k float64) float64 { return k * s.Choice.Row.ThroughputRPS })
	}
	return nil
}

// Steps returns how often Plan calls Planned.
func (p *Request) Steps() int { return len(p.Sections) + len(p.models()) }

// models returns the models of GPU, in the order of the sections.
func (p *Request) models() (models []string) {
	for _, s := range p.Sections {
		if !slices.Contains(models, s.GPU) {
			models = append(models, s.GPU)
		}
	}
	return models
}

// Input returns the input of the planner without rates: the rows of all sections, the
// demand of each that is planned, and the assumptions about arrivals.
func (p *Request) Input() place.Input {
	var in place.Input
	for _, s := range p.Sections {
		in.Profile = append(in.Profile, s.Rows...)
		known := slices.ContainsFunc(in.Demand, func(d plan.Demand) bool { return d.Function == s.Function })
		if !known && len(p.rates(s)) > 0 {
			in.Demand = append(in.Demand, plan.Demand{Function: s.Function, SLOMS: s.Goal.SLOMS})
		}
	}
	p.Arrivals(&in)
	return in
}

// Plan plans the sections of each model of GPU together, then each section alone.
func Plan(request Request) (Result, error) {
	p := planner{Request: &request, until: time.Now().Add(request.TimeLimit)}
	res := Result{Sections: make([]Outlook, len(p.Sections))}
	for _, model := range p.models() {
		var sections []int // indexes of the model's sections
		for i, s := range p.Sections {
			if s.GPU == model {
				sections = append(sections, i)
			}
		}
		f, err := p.together(model, sections)
		if err != nil {
			return res, err
		}
		p.Planned()
		for _, i := range sections {
			if !p.expired() {
				if res.Sections[i], err = p.plan(p.Sections[i : i+1]); err != nil {
					return res, err
				}
			}
			p.Planned()
		}
		if len(f.Plans) > 0 {
			f.UnsharedGPUs = p.gpusOfSeparatePlans(sections, res.Sections, len(f.Plans))
			res.Shared = append(res.Shared, f)
		}
	}
	for i, s := range p.Sections {
		if len(res.Sections[i].Plans) < len(p.rates(s)) {
			res.Unplanned++
		}
	}
	return res, nil
}

// planner makes plans until its time is over.
type planner struct {
	*Request
	until time.Time
}

// expired reports whether no further plan may be started.
func (p *planner) expired() bool { return time.Now().After(p.until) }

// together plans the sections with the given indexes on shared GPUs. The result has no plans if
// fewer than two of the sections have a demand.
func (p *planner) together(model string, sections []int) (SharedOutlook, error) {
	f := SharedOutlook{GPU: model}
	var planned []Section
	for _, i := range sections {
		if s := p.Sections[i]; len(p.rates(s)) > 0 {
			planned = append(planned, s)
		} else if !s.Choice.OK {
			f.Without = append(f.Without, s.Function)
		}
	}
	if len(planned) < 2 {
		return f, nil
	}
	var err error
	f.Outlook, err = p.plan(planned)
	return f, err
}

// gpusOfSeparatePlans returns the GPUs that the sections with those indexes take alone, summed, for each
// of n demands; nil if not all are planned.
func (p *planner) gpusOfSeparatePlans(sections []int, outlooks []Outlook, n int) []int {
	out := make([]int, n)
	for _, k := range sections {
		if len(p.rates(p.Sections[k])) == 0 {
			continue
		}
		if len(outlooks[k].Plans) < n {
			return nil
		}
		for i := range out {
			out[i] += outlooks[k].Plans[i].GPUsUsed
		}
	}
	return out
}

// plan plans for the sections' rates, at least the first. Each plan may take as long as in
// gfaas-place plan, even if the time limit passes meanwhile.
func (p *planner) plan(sections []Section) (out Outlook, err error) {
	var rows []profile.Row
	for _, s := range sections {
		rows = append(rows, s.Rows...)
	}
	for i := range p.rates(sections[0]) {
		d := lists.Map(sections, func(s Section) plan.Demand {
			return plan.Demand{Function: s.Function, RPS: p.rates(s)[i], SLOMS: s.Goal.SLOMS}
		})
		prepare.Limits(rows, p.Functions, false)
		in := place.Input{Profile: rows, Demand: d, Functions: p.Functions, MemMiB: p.MemMiB, Model: sections[0].GPU}
		p.Arrivals(&in)
		until := time.Now().Add(prepare.TimeLimit)
		made, _, err := place.Joint(in, place.JointOptions{
			Model: p.Model, Expired: func() bool { return time.Now().After(until) },
		})
		if err != nil {
			return out, err
		}
		if i == 0 {
			out.Demand = d
		}
		out.Plans = append(out.Plans, made)
		if p.expired() {
			break
		}
	}
	return out, nil
}
