package verify

import (
	"slices"
	"testing"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/profile"
)

func at(v float64) *float64 { return &v }

// good returns a valid plan and its inputs.
func good() (plan.Plan, Inputs) {
	in := Inputs{
		Profile: []profile.Row{
			{Function: "a", GPU: "V100", Config: profile.Config{SMPct: 50, Quota: 0.4, Batch: 1}, ThroughputRPS: 10, P95MS: 20, GPUMemMiB: 1000},
			{Function: "a", GPU: "A100", Config: profile.Config{SMPct: 50, Quota: 0.4, Batch: 1}, ThroughputRPS: 30, P95MS: 10, GPUMemMiB: 1000},
			{Function: "b", Config: profile.Config{SMPct: 50, Quota: 1, Batch: 2}, ThroughputRPS: 5, P95MS: 200, GPUMemMiB: 2000},
		},
		Demand:    []plan.Demand{{Function: "a", RPS: 18, SLOMS: 25}, {Function: "b", RPS: 7}},
		Inventory: []plan.Device{{Node: "n", Index: 0, MemMiB: 5000, Model: "V100", UsedMemMiB: 1000}},
	}
	p := plan.Plan{
		Version: 1, Model: plan.ModelRect, GPUsUsed: 1, Bound: 1,
		GPUs: []plan.GPU{{Node: "n", Index: 0, MemMiB: 5000, Instances: []plan.Instance{
			{ID: "a-0", Function: "a", SMPct: 50, QuotaRequest: 0.4, QuotaLimit: 0.4, Batch: 1, RPS: 10, MemMiB: 1000, X: at(0), Y: at(0)},
			{ID: "a-1", Function: "a", SMPct: 50, QuotaRequest: 0.4, QuotaLimit: 0.9, Batch: 1, RPS: 8, MemMiB: 1000, X: at(0.4), Y: at(0)},
			{ID: "b-0", Function: "b", SMPct: 50, QuotaRequest: 1, QuotaLimit: 1, Batch: 2, RPS: 5, MemMiB: 2000, X: at(0), Y: at(50)},
		}}},
		Demand:   []plan.Served{{Function: "a", RPS: 18, ServedRPS: 18}, {Function: "b", RPS: 7, ServedRPS: 5}},
		Unplaced: []plan.Unplaced{{Function: "b", RPS: 2, Reason: "the GPU is full"}},
	}
	return p, in
}

func TestValidPlanHasNoViolations(t *testing.T) {
	p, in := good()
	for what, in := range map[string]Inputs{"all": in, "nothing": {}, "profile": {Profile: in.Profile}} {
		if got := Plan(p, in); got == nil || len(got) > 0 {
			t.Errorf("inputs %s: got violations %v, want none", what, got)
		}
	}
}

// TestPlanWithoutTimetable checks the model none: there are no rectangles, and the requests on a GPU sum to
// at most the whole GPU.
func TestPlanWithoutTimetable(t *testing.T) {
	p, in := good()
	p.Model = plan.ModelNone
	for i := range p.GPUs[0].Instances {
		p.GPUs[0].Instances[i].X, p.GPUs[0].Instances[i].Y = nil, nil
	}
	if got := Plan(p, in); len(got) > 0 {
		t.Errorf("90%% requested: got violations %v, want none", got)
	}
	p.GPUs[0].Instances[1].QuotaRequest = 0.7
	if got := Plan(p, Inputs{}); len(got) != 1 || got[0].Rule != RuleInside || got[0].GPU != "n/0" {
		t.Errorf("105%% requested: got %v, want one violation of %s on n/0", got, RuleInside)
	}
	p, in = good()
	p.Model, p.GPUs[0].Schedule = plan.ModelNone, []plan.Interval{{Duration: 1, Instances: []string{"a-0"}}}
	if got := Plan(p, in); len(got) != 1 || got[0].Rule != RuleSchedule {
		t.Errorf("model none with a schedule: got %v, want one violation of %s", got, RuleSchedule)
	}
}

func TestEveryRule(t *testing.T) {
	for what, c := range map[string]struct {
		spoil func(*plan.Plan, *Inputs)
		rule  string
		ids   []string
	}{
		"window":        {func(p *plan.Plan, _ *Inputs) { p.GPUs[0].Instances[1].X = at(0.7) }, RuleInside, []string{"a-1"}},
		"negative x":    {func(p *plan.Plan, _ *Inputs) { p.GPUs[0].Instances[0].X = at(-0.1) }, RuleInside, []string{"a-0"}},
		"above":         {func(p *plan.Plan, _ *Inputs) { p.GPUs[0].Instances[2].Y = at(51) }, RuleInside, []string{"b-0"}},
		"SM":            {func(p *plan.Plan, _ *Inputs) { p.GPUs[0].Instances[0].SMPct = 120 }, RuleInside, []string{"a-0"}},
		"quota 0":       {func(p *plan.Plan, _ *Inputs) { p.GPUs[0].Instances[0].QuotaRequest = 0 }, RuleInside, []string{"a-0"}},
		"limit":         {func(p *plan.Plan, _ *Inputs) { p.GPUs[0].Instances[1].QuotaLimit = 0.3 }, RuleInside, []string{"a-1"}},
		"limit above 1": {func(p *plan.Plan, _ *Inputs) { p.GPUs[0].Instances[1].QuotaLimit = 1.1 }, RuleInside, []string{"a-1"}},
		"negative rps":  {func(p *plan.Plan, _ *Inputs) { p.GPUs[0].Instances[1].RPS = -1 }, RuleInside, []string{"a-1"}},
		"overlap in x":  {func(p *plan.Plan, _ *Inputs) { p.GPUs[0].Instances[1].X = at(0.399) }, RuleOverlap, []string{"a-0", "a-1"}},
		"overlap in y":  {func(p *plan.Plan, _ *Inputs) { p.GPUs[0].Instances[2].Y = at(49.9) }, RuleOverlap, []string{"a-0", "b-0"}},
		"memory":        {func(p *plan.Plan, _ *Inputs) { p.GPUs[0].Instances[2].MemMiB = 2100 }, RuleMemory, []string{"a-0", "a-1", "b-0"}},
		"less memory":   {func(_ *plan.Plan, in *Inputs) { in.Inventory[0].MemMiB = 4500 }, RuleMemory, nil},
		"memory in use": {func(_ *plan.Plan, in *Inputs) { in.Inventory[0].UsedMemMiB = 1500 }, RuleMemory, []string{"a-0", "a-1", "b-0"}},
		"memory of gpu_mem": {func(_ *plan.Plan, in *Inputs) {
			in.Functions = []function.Function{{Name: "b", GPUMem: 2100 * gpu.MiB}}
		}, RuleMemory, []string{"a-0", "a-1", "b-0"}},
		"memory of a row":     {func(p *plan.Plan, _ *Inputs) { p.GPUs[0].Instances[2].MemMiB = 1900 }, RuleMemory, []string{"b-0"}},
		"models":              {func(p *plan.Plan, _ *Inputs) { p.GPUs[0].Models = []plan.Model{{Name: "m", MemMiB: 98}} }, RuleMemory, []string{"a-0", "a-1", "b-0"}},
		"model twice":         {func(p *plan.Plan, _ *Inputs) { p.GPUs[0].Models = []plan.Model{{Name: "m"}, {Name: "m"}} }, RuleMemory, nil},
		"no id":               {func(p *plan.Plan, _ *Inputs) { p.GPUs[0].Instances[1].ID = "../x" }, RuleID, []string{"../x"}},
		"same id":             {func(p *plan.Plan, _ *Inputs) { p.GPUs[0].Instances[1].ID = "a-0" }, RuleID, []string{"a-0"}},
		"GPU twice":           {func(p *plan.Plan, _ *Inputs) { p.GPUs = append(p.GPUs, plan.GPU{Node: "n"}) }, RuleGPU, nil},
		"unknown GPU":         {func(p *plan.Plan, _ *Inputs) { p.GPUs[0].Index = 7 }, RuleGPU, nil},
		"no row":              {func(p *plan.Plan, _ *Inputs) { p.GPUs[0].Instances[0].Batch = 4 }, RuleProfile, []string{"a-0"}},
		"quota":               {func(p *plan.Plan, _ *Inputs) { p.GPUs[0].Instances[0].QuotaRequest = 0.39 }, RuleProfile, []string{"a-0"}},
		"other model":         {func(_ *plan.Plan, in *Inputs) { in.Inventory[0].Model = "T4" }, RuleProfile, []string{"a-0"}},
		"throughput":          {func(p *plan.Plan, _ *Inputs) { p.GPUs[0].Instances[0].RPS = 11 }, RuleProfile, []string{"a-0"}},
		"objective":           {func(_ *plan.Plan, in *Inputs) { in.Demand[0].SLOMS = 19 }, RuleSLO, []string{"a-0"}},
		"served":              {func(p *plan.Plan, _ *Inputs) { p.Demand[0].ServedRPS = 20 }, RuleDemand, nil},
		"not served":          {func(p *plan.Plan, _ *Inputs) { p.Demand[0].RPS = 19 }, RuleDemand, nil},
		"demand twice":        {func(p *plan.Plan, _ *Inputs) { p.Demand = append(p.Demand, p.Demand[0]) }, RuleDemand, nil},
		"other demand":        {func(_ *plan.Plan, in *Inputs) { in.Demand[1].RPS = 8 }, RuleDemand, nil},
		"demand absent":       {func(_ *plan.Plan, in *Inputs) { in.Demand = append(in.Demand, plan.Demand{Function: "c", RPS: 1}) }, RuleDemand, nil},
		"too much unplaced":   {func(p *plan.Plan, _ *Inputs) { p.Unplaced[0].RPS = 3 }, RuleUnplaced, nil},
		"nothing unplaced":    {func(p *plan.Plan, _ *Inputs) { p.Unplaced[0].RPS = 0 }, RuleUnplaced, nil},
		"no reason":           {func(p *plan.Plan, _ *Inputs) { p.Unplaced[0].Reason = "" }, RuleUnplaced, nil},
		"unplaced twice":      {func(p *plan.Plan, _ *Inputs) { p.Unplaced = append(p.Unplaced, p.Unplaced[0]) }, RuleUnplaced, nil},
		"unplaced not wanted": {func(p *plan.Plan, _ *Inputs) { p.Unplaced[0].Function = "z" }, RuleUnplaced, nil},
		"count":               {func(p *plan.Plan, _ *Inputs) { p.GPUsUsed = 2 }, RuleCount, nil},
		"bound":               {func(p *plan.Plan, _ *Inputs) { p.Bound, p.Unplaced, p.Demand[1].RPS = 2, nil, 5 }, RuleCount, nil},
		"schedule":            {func(p *plan.Plan, _ *Inputs) { p.GPUs[0].Schedule = []plan.Interval{{Duration: 1}} }, RuleSchedule, nil},
	} {
		t.Run(what, func(t *testing.T) {
			p, in := good()
			c.spoil(&p, &in)
			found := Plan(p, in)
			if !slices.ContainsFunc(found, func(v Violation) bool {
				return v.Rule == c.rule && v.Message != "" && (c.ids == nil || slices.Equal(slices.Sorted(slices.Values(v.Instances)), c.ids))
			}) {
				t.Errorf("got %+v, want rule %s of %v", found, c.rule, c.ids)
			}
		})
	}
}

func TestInstanceMaySpanGPUs(t *testing.T) {
	p, _ := good()
	second := p.GPUs[0]
	second.Index, second.Instances = 1, slices.Clone(second.Instances[:1])
	p.GPUs = append(p.GPUs, second)
	p.GPUsUsed = 2
	if got := Plan(p, Inputs{}); len(got) > 0 {
		t.Errorf("got %v, want none", got)
	}
	second.Instances[0].SMPct = 40
	if got := Plan(p, Inputs{}); len(got) != 1 || got[0].Rule != RuleID || got[0].GPU != "n/1" {
		t.Errorf("parts with different SM shares: got %v, want one violation of %s on n/1", got, RuleID)
	}
}

func tokenPlan() plan.Plan {
	instance := func(id string, sm, quota float64) plan.Instance {
		return plan.Instance{ID: id, Function: "a", SMPct: sm, QuotaRequest: quota, QuotaLimit: 1, Batch: 1, RPS: 1}
	}
	return plan.Plan{Version: 1, Model: plan.ModelTokens, GPUsUsed: 1, Bound: 1,
		GPUs: []plan.GPU{{Node: "n", Instances: []plan.Instance{instance("a-0", 60, 0.5), instance("a-1", 60, 0.5), instance("a-2", 40, 0.9)},
			Schedule: []plan.Interval{{Duration: 0.5, Instances: []string{"a-0", "a-2"}}, {Duration: 0.5, Instances: []string{"a-1", "a-2"}}}}},
		Demand: []plan.Served{{Function: "a", RPS: 3, ServedRPS: 3}},
	}
}

func TestSchedule(t *testing.T) {
	if got := Plan(tokenPlan(), Inputs{}); len(got) > 0 {
		t.Errorf("got %v, want none", got)
	}
	for what, spoil := range map[string]func(g *plan.GPU){
		"too long":     func(g *plan.GPU) { g.Schedule[0].Duration = 0.6 },
		"too short":    func(g *plan.GPU) { g.Schedule[0].Duration = 0.4 },
		"negative":     func(g *plan.GPU) { g.Schedule = append(g.Schedule, plan.Interval{Duration: -0.1}) },
		"too many SMs": func(g *plan.GPU) { g.Instances[0].SMPct = 61 },
		"unknown":      func(g *plan.GPU) { g.Schedule[0].Instances[1] = "b-0" },
		"twice":        func(g *plan.GPU) { g.Schedule[0].Instances = []string{"a-0", "a-0"} },
		"none":         func(g *plan.GPU) { g.Schedule = nil },
		"a place":      func(g *plan.GPU) { g.Instances[0].X = at(0) },
	} {
		t.Run(what, func(t *testing.T) {
			p := tokenPlan()
			spoil(&p.GPUs[0])
			if got := Plan(p, Inputs{}); len(got) == 0 || got[0].Rule != RuleSchedule {
				t.Errorf("got %v, want a violation of %s", got, RuleSchedule)
			}
		})
	}
}
