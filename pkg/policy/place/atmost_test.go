package place

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/verify"
	"github.com/gfaas/gfaas/pkg/profile"
)

// Without the limit twenty instances of a twentieth share a GPU.
func TestAtMost(t *testing.T) {
	small, large := row("f", 5, 1, 10), row("f", 50, 1, 60)
	small.GPUMemMiB, large.GPUMemMiB = 100, 1500
	in := Input{Profile: []profile.Row{small, large}, Demand: []plan.Demand{{Function: "f", RPS: 200}}}
	joint := func(in Input) (plan.Plan, error) {
		p, _, err := Joint(in, JointOptions{Model: plan.ModelRect})
		return p, err
	}
	for _, c := range []struct {
		most            int
		mem             float64
		gpus, bound     int
		instances       int
		largestInstance float64
	}{
		{20, 0, 1, 1, 20, 0},
		{5, 0, 2, 2, 5, 0},
		{1, 0, 4, 4, 4, 0},
		{20, 4000, 1, 1, 20, 100},
		{5, 4000, 2, 2, 4, 1500},
		{5, 1000, 4, 4, 20, 100},
	} {
		in.MemMiB = c.mem
		p, err := AtMost(in, c.most, false, joint)
		if err != nil {
			t.Fatal(err)
		}
		count, most := 0, 0.0
		for _, g := range p.GPUs {
			count += len(g.Instances)
			for _, i := range g.Instances {
				most = max(most, i.MemMiB)
			}
		}
		if p.GPUsUsed != c.gpus || p.Bound != c.bound || crowd(p) > c.most || count > c.instances || most != c.largestInstance {
			t.Errorf("%d instances, %v MiB: %d GPUs, bound %d (%s), %d instances, the largest %v MiB; expected %+v", c.most, c.mem, p.GPUsUsed, p.Bound, p.BoundMethod, count, most, c)
		}
	}
	in.MemMiB, in.Devices, in.Profile = 0, []plan.Device{{Node: "n"}}, in.Profile[:1]
	p, err := AtMost(in, 2, false, joint)
	if want := "the GPU is full: sm_pct 5, quota 1, batch 1 has room but is one too many (a GPU hosts at most 2 instances)"; err != nil || len(p.Unplaced) != 1 || p.Unplaced[0].Reason != want {
		t.Errorf("two instances on the only GPU: %v, %+v, expected %s", err, p.Unplaced, want)
	}
}

// Whatever the input, a plan holds together, keeps the number and is no better
// than its bound.
func TestAtMostVerifies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawJoint(t)
		o := JointOptions{Model: rapid.SampledFrom([]string{plan.ModelRect, plan.ModelTokens}).Draw(t, "model"), ShareModels: rapid.Bool().Draw(t, "share"), Work: 200_000}
		most := rapid.IntRange(1, 6).Draw(t, "most")
		planner := func(in Input) (plan.Plan, error) { p, _, err := Joint(in, o); return p, err }
		p, err := AtMost(in, most, o.ShareModels, planner)
		if err != nil {
			return // more instances than can be counted
		}
		if found := verify.Plan(p, verify.Inputs{Profile: in.Profile, Demand: in.Demand, Inventory: in.Devices, Functions: in.Functions}); len(found) > 0 {
			t.Fatalf("%+v", found)
		}
		if crowd(p) > most {
			t.Fatalf("%d instances on a GPU, expected at most %d", crowd(p), most)
		}
		free, err := planner(in)
		if err == nil && len(p.Unplaced) == 0 && p.GPUsUsed < free.Bound {
			t.Fatalf("%d GPUs, without the limit at least %d", p.GPUsUsed, free.Bound)
		}
	})
}
