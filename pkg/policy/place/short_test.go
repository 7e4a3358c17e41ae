package place

import (
	"fmt"
	"testing"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/online"
	"github.com/gfaas/gfaas/pkg/policy/place/verify"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/splitmix"
)

// TestJointServesMost checks that with too few GPUs, joint serves no fewer requests per second than dilu.
func TestJointServesMost(t *testing.T) {
	rng := splitmix.Source(1)
	short := 0
	for n := range 40 {
		in := Input{}
		for f := range 2 + rng.Below(4) {
			name := fmt.Sprintf("f%d", f)
			for range 1 + rng.Below(3) {
				r := row(name, figures{sm: float64(10 * (1 + rng.Below(10))), quota: 1, rps: float64(1 + rng.Below(100))})
				r.GPUMemMiB = float64(500 * (1 + rng.Below(8)))
				in.Profile = append(in.Profile, r)
			}
			in.Demand = append(in.Demand, plan.Demand{Function: name, RPS: float64(1 + rng.Below(400))})
			in.Functions = append(in.Functions, function.Function{Name: name, GPUs: 1 + rng.Below(2)*rng.Below(3)})
		}
		for i := range 3 + rng.Below(4) {
			in.Devices = append(in.Devices, plan.Device{Node: fmt.Sprintf("n%d", i/3), Index: i % 3, MemMiB: 8000})
		}
		in.Profile = profile.SplitByModel(in.Profile, nil)
		model := []string{plan.ModelRect, plan.ModelTokens}[n%2]
		joint, _, err := Joint(in, JointOptions{Model: model, Work: 300_000})
		if err != nil {
			t.Fatal(err)
		}
		dilu, err := Dilu(in, Options{Dilu: online.DiluDefaults(), Order: Arrival})
		if err != nil {
			t.Fatal(err)
		}
		served := func(p plan.Plan) (sum float64) {
			for _, d := range p.Demand {
				sum += min(d.RPS, d.ServedRPS)
			}
			return sum
		}
		if len(joint.Unplaced) > 0 {
			short++
		}
		if wrong := verify.Plan(joint, verify.Inputs{Profile: in.Profile, Demand: in.Demand, Inventory: in.Devices, Functions: in.Functions}); len(wrong) > 0 {
			t.Errorf("case %d: got violations %+v, want none", n, wrong)
		}
		if a, b := served(joint), served(dilu); a < b-1e-6 {
			t.Errorf("case %d: got %v requests a second served by joint, want at least %v, as by dilu", n, a, b)
		}
	}
	if short < 10 {
		t.Errorf("cases with too few GPUs: got %d, want at least 10", short)
	}
}
