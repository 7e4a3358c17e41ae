package place

import (
	"testing"

	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/online"
	"github.com/gfaas/gfaas/pkg/policy/place/verify"
	"github.com/gfaas/gfaas/pkg/profile"
)

// TestRowsOfModel: whatever plans, an instance has the figures of the row for its own
// GPU's model, and the plan names the model.
func TestRowsOfModel(t *testing.T) {
	on := func(model string, rps, mem, weights float64) profile.Row {
		r := row("f", 50, 1, rps)
		r.GPU, r.GPUMemMiB, r.ModelMemMiB = model, mem, weights
		return r
	}
	rows := []profile.Row{on("", 25, 2000, 400), on("V100", 10, 4000, 900), on("A100", 100, 1000, 300)}
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
	more := func(o IncrementalOptions, planner Planner) Planner {
		return func(in Input) (plan.Plan, error) {
			few := in
			few.Demand = []plan.Demand{{Function: "f", RPS: 100}}
			current, err := planner(few)
			if err != nil {
				return current, err
			}
			p, _, err := Incremental(current, in, o, planner)
			return p, err
		}
	}
	for name, c := range map[string]struct {
		planner Planner
		shared  bool
	}{
		"joint":  {joint, false},
		"fast":   {func(in Input) (plan.Plan, error) { return Fast(in, FastOptions{}) }, false},
		"dilu":   {func(in Input) (plan.Plan, error) { return Dilu(in, DiluOptions{DiluOptions: online.DiluDefaults()}) }, false},
		"atmost": {func(in Input) (plan.Plan, error) { return AtMost(in, 2, false, joint) }, false},
		"one each": {func(in Input) (plan.Plan, error) {
			in.Demand = []plan.Demand{{Function: "f", RPS: 135}}
			return AtMost(in, 1, false, joint)
		}, false},
		"incremental":         {more(IncrementalOptions{}, joint), false},
		"shared":              {jointShared, true},
		"shared, fast":        {func(in Input) (plan.Plan, error) { return Fast(in, FastOptions{ShareModels: true}) }, true},
		"shared, incremental": {more(IncrementalOptions{ShareModels: true}, jointShared), true},
		"shared, at most":     {func(in Input) (plan.Plan, error) { return AtMost(in, 2, true, jointShared) }, true},
	} {
		in := input()
		p, err := c.planner(in)
		if err != nil || len(p.GPUs) != 3 {
			t.Errorf("%s: %d GPUs, %v", name, len(p.GPUs), err)
			continue
		}
		for _, g := range p.GPUs {
			f := want[g.Model]
			if model := map[string]string{"a": "V100", "b": "A100", "c": "T4"}[g.Node]; g.Model != model {
				t.Errorf("%s: %s is %q, want %q", name, g.Node, g.Model, model)
			}
			if c.shared {
				f.mem -= f.weights
				if len(g.Models) != 1 || g.Models[0].MemMiB != f.weights {
					t.Errorf("%s: %s keeps %+v, want %v MiB", name, g.Model, g.Models, f.weights)
				}
			}
			for _, i := range g.Instances {
				if i.RPS != f.rps || i.MemMiB != f.mem {
					t.Errorf("%s: %s on %s has %v requests a second and %v MiB, want %+v", name, i.ID, g.Model, i.RPS, i.MemMiB, f)
				}
			}
		}
		if wrong := verify.Plan(p, verify.Inputs{Profile: rows, Inventory: in.Devices}); len(wrong) > 0 {
			t.Errorf("%s: %+v", name, wrong)
		}
		// As many GPUs as it takes are all of the one model that is named.
		in.Devices, in.MemMiB, in.Model = nil, 16384, "A100"
		if p, err = c.planner(in); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, g := range p.GPUs {
			if g.Model != "A100" || g.Instances[0].RPS != 100 {
				t.Errorf("%s: %q with %v requests a second, want A100 with 100", name, g.Model, g.Instances[0].RPS)
			}
		}
	}
}
