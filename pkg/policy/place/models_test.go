package place

import (
	"testing"

	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/online"
	"github.com/gfaas/gfaas/pkg/policy/place/verify"
	"github.com/gfaas/gfaas/pkg/profile"
)

// TestInstancesHaveRowsOfGPUModel checks for all planners that an instance has the figures of the row for
// its GPU's model, and that the plan names the model.
func TestInstancesHaveRowsOfGPUModel(t *testing.T) {
	rowOn := func(model string, rps, mem, weights float64) profile.Row {
		r := row("f", figures{sm: 50, quota: 1, rps: rps})
		r.GPU, r.GPUMemMiB, r.ModelMemMiB = model, mem, weights
		return r
	}
	rows := []profile.Row{rowOn("", 25, 2000, 400), rowOn("V100", 10, 4000, 900), rowOn("A100", 100, 1000, 300)}
	type figures struct{ rps, mem, weights float64 }
	want := map[string]figures{"V100": {10, 4000, 900}, "A100": {100, 1000, 300}, "T4": {25, 2000, 400}}
	input := func() Input {
		return Input{Profile: rows, Demand: []plan.Demand{{Function: "f", RPS: 270}}, Devices: []plan.Device{
			{Node: "a", MemMiB: 16384, Model: "V100"}, {Node: "b", MemMiB: 16384, Model: "A100"}, {Node: "c", MemMiB: 16384, Model: "T4"},
		}}
	}
	joint := func(in Input) (plan.Plan, error) {
		p, _, err := Joint(in, JointOptions{Model: plan.ModelRect})
		return p, err
	}
	jointShared := func(in Input) (plan.Plan, error) {
		p, _, err := Joint(in, JointOptions{Model: plan.ModelRect, ShareModels: true})
		return p, err
	}
	// incremental plans for a part of the demand first, and extends that plan.
	incremental := func(o IncrementalOptions, planner Planner) Planner {
		return func(in Input) (plan.Plan, error) {
			smaller := in
			smaller.Demand = []plan.Demand{{Function: "f", RPS: 100}}
			current, err := planner(smaller)
			if err != nil {
				return current, err
			}
			made, err := Incremental(current, in, o, planner)
			return made.Plan, err
		}
	}
	for name, c := range map[string]struct {
		planner Planner
		shared  bool
	}{
		"joint":             {joint, false},
		"fast":              {func(in Input) (plan.Plan, error) { return Fast(in, Options{}) }, false},
		"dilu":              {func(in Input) (plan.Plan, error) { return Dilu(in, Options{Dilu: online.DiluDefaults()}) }, false},
		"at most 2 per GPU": {func(in Input) (plan.Plan, error) { return AtMost(in, 2, withOwnWeights, joint) }, false},
		"at most 1 per GPU": {func(in Input) (plan.Plan, error) {
			in.Demand = []plan.Demand{{Function: "f", RPS: 135}}
			return AtMost(in, 1, withOwnWeights, joint)
		}, false},
		"incremental": {incremental(IncrementalOptions{}, joint), false},
		"shared":      {jointShared, true},
		"shared, fast": {func(in Input) (plan.Plan, error) {
			return Fast(in, Options{JointOptions: JointOptions{ShareModels: true}})
		}, true},
		"shared, incremental":       {incremental(IncrementalOptions{ShareModels: true}, jointShared), true},
		"shared, at most 2 per GPU": {func(in Input) (plan.Plan, error) { return AtMost(in, 2, withSharedWeights, jointShared) }, true},
	} {
		in := input()
		p, err := c.planner(in)
		if err != nil || len(p.GPUs) != 3 {
			t.Errorf("%s: got %d GPUs and error %v, want 3 GPUs", name, len(p.GPUs), err)
			continue
		}
		for _, g := range p.GPUs {
			f := want[g.Model]
			if model := map[string]string{"a": "V100", "b": "A100", "c": "T4"}[g.Node]; g.Model != model {
				t.Errorf("%s: got model %q for the GPU of node %s, want %q", name, g.Model, g.Node, model)
			}
			if c.shared {
				f.mem -= f.weights
				if len(g.Models) != 1 || g.Models[0].MemMiB != f.weights {
					t.Errorf("%s: got weights %+v on the %s, want one model of %v MiB", name, g.Models, g.Model, f.weights)
				}
			}
			for _, i := range g.Instances {
				if i.RPS != f.rps || i.MemMiB != f.mem {
					t.Errorf("%s: %s on %s: got %v requests a second and %v MiB, want %+v", name, i.ID, g.Model, i.RPS, i.MemMiB, f)
				}
			}
		}
		if faults := verify.Plan(p, verify.Inputs{Profile: rows, Inventory: in.Devices}); len(faults) > 0 {
			t.Errorf("%s: got violations %+v, want none", name, faults)
		}
		// Without an inventory, the number of GPUs is unlimited and all are of the given model.
		in.Devices, in.MemMiB, in.Model = nil, 16384, "A100"
		if p, err = c.planner(in); err != nil {
			t.Errorf("%s without an inventory: %v", name, err)
		}
		for _, g := range p.GPUs {
			if g.Model != "A100" || g.Instances[0].RPS != 100 {
				t.Errorf("%s: without an inventory: got a GPU of model %q with an instance for %v requests/s, want A100 and 100", name, g.Model, g.Instances[0].RPS)
			}
		}
	}
}

// TestSharedWeightsOfDominatedConfiguration checks that fast does not use a configuration whose weights are larger than
// those that the plan keeps on the GPU. Of two configurations that cover the remainder, fast prefers the one with less
// throughput, even if the other needs no more of anything.
func TestSharedWeightsOfDominatedConfiguration(t *testing.T) {
	small, large := row("f", figures{sm: 12, quota: 0.3, rps: 0.37}), row("f", figures{sm: 12, quota: 0.3, rps: 0.33})
	small.GPUMemMiB, small.ModelMemMiB = 3, 3
	large.GPUMemMiB, large.ModelMemMiB, large.Batch = 649, 649, 2
	in := Input{Profile: []profile.Row{small, large}, Demand: []plan.Demand{{Function: "f", RPS: 0.16}}, MemMiB: 16384}
	p, err := Fast(in, Options{JointOptions: JointOptions{ShareModels: true}})
	if err != nil {
		t.Fatal(err)
	}
	if found := verify.Plan(p, verify.Inputs{Profile: in.Profile, Demand: in.Demand}); len(found) > 0 {
		t.Errorf("got %+v, want a valid plan", found)
	}
}
