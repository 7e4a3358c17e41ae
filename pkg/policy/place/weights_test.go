package place

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/verify"
	"github.com/gfaas/gfaas/pkg/profile"
)

// TestWeightsOfTenants checks for all planners that shared weights count once per tenant, in whole
// granules. If all fits exactly, the plan uses one GPU and is valid; with one MiB less, it uses two.
func TestWeightsOfTenants(t *testing.T) {
	type fn struct{ tenant, model string }
	for _, c := range []struct {
		name      string
		functions []fn
		weights   float64
		need      float64
		models    []plan.Model
	}{
		{"one tenant", []fn{{"a", "m"}, {"a", "m"}}, 100, 300, []plan.Model{{Name: "m", Tenant: "a", MemMiB: 100}}},
		{"the default one", []fn{{"default", "m"}, {"", "m"}}, 100, 300, []plan.Model{{Name: "m", MemMiB: 100}}},
		{"two tenants", []fn{{"a", "m"}, {"b", "m"}}, 100, 400, []plan.Model{{Name: "m", Tenant: "a", MemMiB: 100}, {Name: "m", Tenant: "b", MemMiB: 100}}},
		{"two and the default", []fn{{"a", "m"}, {"b", "m"}, {"default", "m"}}, 100, 600, []plan.Model{{Name: "m", MemMiB: 100}, {Name: "m", Tenant: "a", MemMiB: 100}, {Name: "m", Tenant: "b", MemMiB: 100}}},
		{"two models", []fn{{"a", "m"}, {"a", "n"}}, 100, 400, []plan.Model{{Name: "m", Tenant: "a", MemMiB: 100}, {Name: "n", Tenant: "a", MemMiB: 100}}},
		{"granules", []fn{{"", "m"}, {"", "m"}}, 99, 302, []plan.Model{{Name: "m", MemMiB: 100}}},
		{"granules of two", []fn{{"a", "m"}, {"b", "m"}}, 0.5, 403, []plan.Model{{Name: "m", Tenant: "a", MemMiB: 2}, {Name: "m", Tenant: "b", MemMiB: 2}}},
	} {
		in := Input{}
		for i, f := range c.functions {
			name := fmt.Sprintf("f%d", i)
			r := row(name, figures{sm: 10, quota: 1, rps: 10})
			r.GPUMemMiB, r.ModelMemMiB = 200, c.weights
			in.Profile = append(in.Profile, r)
			in.Demand = append(in.Demand, plan.Demand{Function: name, RPS: 10})
			in.Functions = append(in.Functions, function.Function{Name: name, Tenant: f.tenant, Model: &function.Model{Name: f.model}})
		}
		for name, planner := range planners(withSharedWeights) {
			for less := range 2 {
				in.MemMiB = c.need - float64(less)
				p, err := planner(in)
				if err != nil || p.GPUsUsed != 1+less || len(p.Unplaced) > 0 {
					t.Errorf("%s, %s: with %v MiB: got %d GPUs, unplaced %v, %v; want %d GPUs", c.name, name, in.MemMiB, p.GPUsUsed, p.Unplaced, err, 1+less)
					continue
				}
				inputs := verify.Inputs{Profile: in.Profile, Demand: in.Demand, Functions: in.Functions}
				if wrong := verify.Plan(p, inputs); len(wrong) > 0 {
					t.Errorf("%s, %s: got violations %+v, want none", c.name, name, wrong)
				}
				if less > 0 {
					continue
				}
				got := slices.Clone(p.GPUs[0].Models)
				slices.SortFunc(got, func(a, b plan.Model) int { return compare(a, b) })
				if !slices.Equal(got, c.models) {
					t.Errorf("%s, %s: models on the GPU: got %+v, want %+v", c.name, name, got, c.models)
				}
				// With one MiB less, the same plan is invalid, and so is a plan with one model for all tenants.
				p.GPUs[0].MemMiB--
				if !breaks(p, inputs, verify.RuleMemory) {
					t.Errorf("%s, %s: plan on GPUs of %v MiB: got no violation, want one of %s", c.name, name, p.GPUs[0].MemMiB, verify.RuleMemory)
				}
				for i := range p.GPUs[0].Models {
					p.GPUs[0].Models[i].Tenant = ""
				}
				p.GPUs[0].Models = slices.CompactFunc(p.GPUs[0].Models, plan.Model.Is)
				if !breaks(p, inputs, verify.RuleMemory) {
					t.Errorf("%s, %s: models without tenants on GPUs of %v MiB: got no violation, want one of %s", c.name, name, p.GPUs[0].MemMiB, verify.RuleMemory)
				}
				if p.GPUs[0].MemMiB++; breaks(p, inputs, verify.RuleMemory) {
					t.Errorf("%s, %s: models without tenants: got a violation of %s, want none", c.name, name, verify.RuleMemory)
				}
			}
		}
	}
}

func breaks(p plan.Plan, in verify.Inputs, rule string) bool {
	return slices.ContainsFunc(verify.Plan(p, in), func(v verify.Violation) bool { return v.Rule == rule })
}

func compare(a, b plan.Model) int {
	if a.Name+"/"+a.Tenant < b.Name+"/"+b.Tenant {
		return -1
	}
	return 1
}

// TestWeightsOfRows checks that a model is as large as the largest weights of its configurations on the
// GPU.
func TestWeightsOfRows(t *testing.T) {
	a, b := row("a", figures{sm: 10, quota: 1, rps: 10}), row("b", figures{sm: 10, quota: 1, rps: 10})
	a.GPUMemMiB, a.ModelMemMiB, b.GPUMemMiB, b.ModelMemMiB = 200, 31, 200, 33
	in := Input{Profile: []profile.Row{a, b}, Demand: []plan.Demand{{Function: "a", RPS: 10}, {Function: "b", RPS: 10}}, MemMiB: 169 + 167 + 34}
	for _, f := range []string{"a", "b"} {
		in.Functions = append(in.Functions, function.Function{Name: f, Model: &function.Model{Name: "m"}})
	}
	for name, planner := range planners(withSharedWeights) {
		p, err := planner(in)
		if name == "incremental" { // it does not resize running instances
			const reason = "weights-too-large; model=m"
			if err != nil || len(p.Unplaced) != 1 || p.Unplaced[0].Reason != reason {
				t.Errorf("%s: got %v and unplaced %+v, want one with the reason %s", name, err, p.Unplaced, reason)
			}
			continue
		}
		if err != nil || p.GPUsUsed != 1 || !slices.Equal(p.GPUs[0].Models, []plan.Model{{Name: "m", MemMiB: 34}}) {
			t.Errorf("%s: got %v and %+v, want 1 GPU with the model m of 34 MiB", name, err, p)
		}
	}
}
