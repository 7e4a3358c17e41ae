package place

import (
	"fmt"
	"testing"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/verify"
	"github.com/gfaas/gfaas/pkg/splitmix"
)

// TestJointOfUnevenGPUs plans for GPUs of which other programs use some memory. The plan is nearly as good
// as for equal GPUs, even if there is no time for the linear program.
func TestJointOfUnevenGPUs(t *testing.T) {
	rng := splitmix.Source(1)
	draw := func(from, to float64) float64 { return from + (to-from)*rng.Unit() }
	var in Input
	for i := range 150 {
		name, rate, mem := fmt.Sprint("f", i), draw(1, 4), draw(500, 6000)
		for _, sm := range []float64{6, 12, 24, 50} {
			for _, quota := range []float64{0.2, 0.4, 1} {
				r := row(name, figures{sm: sm, quota: quota, rps: rate * sm * quota})
				r.GPUMemMiB = mem
				in.Profile = append(in.Profile, r)
			}
		}
		in.Demand = append(in.Demand, plan.Demand{Function: name, RPS: draw(5, 60)})
	}
	for i := range 120 {
		in.Devices = append(in.Devices, plan.Device{Node: fmt.Sprint("n", i/8), Index: i % 8, MemMiB: 40960, UsedMemMiB: float64(i*i%9) * 1000})
	}
	for _, model := range []string{plan.ModelRect, plan.ModelTokens} {
		p, _, err := Joint(in, JointOptions{Model: model, Expired: func() bool { return true }})
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Unplaced) > 0 || float64(p.GPUsUsed) > 1.15*float64(p.Bound) {
			t.Errorf("%s: got %d GPUs, bound %d (%s), %d unplaced; want at most 15%% more GPUs than the bound, and none unplaced", model, p.GPUsUsed, p.Bound, p.BoundMethod, len(p.Unplaced))
		}
		if found := verify.Plan(p, verify.Inputs{Profile: in.Profile, Demand: in.Demand, Inventory: in.Devices}); len(found) > 0 {
			t.Errorf("violations: got %+v, want none", found)
		}
		for _, g := range p.GPUs {
			if g.MemMiB != 40960 {
				t.Fatalf("memory of %s/%d: got %v MiB, want 40960", g.Node, g.Index, g.MemMiB)
			}
		}
	}
	in.Functions = []function.Function{{Name: "f0", GPUs: 2}}
	if got := in.uniformInputs(); got != nil {
		t.Errorf("uniform inputs of instances that span GPUs: got %d, want none", len(got))
	}
}
