package place

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/verify"
	"github.com/gfaas/gfaas/pkg/profile"
)

// Without the limit, twenty instances that each need a twentieth share a GPU.
func TestAtMost(t *testing.T) {
	small, large := row("f", figures{sm: 5, quota: 1, rps: 10}), row("f", figures{sm: 50, quota: 1, rps: 60})
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
		p, err := AtMost(in, c.most, withOwnWeights, joint)
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
		if p.GPUsUsed != c.gpus || p.Bound != c.bound || maxPerGPU(p) > c.most || count > c.instances || most != c.largestInstance {
			t.Errorf("at most %d instances per GPU of %v MiB: got %d GPUs, bound %d (%s), %d instances, the largest of %v MiB; want %+v", c.most, c.mem, p.GPUsUsed, p.Bound, p.BoundMethod, count, most, c)
		}
	}
	in.MemMiB, in.Devices, in.Profile = 0, []plan.Device{{Node: "n"}}, in.Profile[:1]
	p, err := AtMost(in, 2, withOwnWeights, joint)
	if want := "no-slot; gpus=1; sm_pct=5; quota=1; batch=1; max_per_gpu=2"; err != nil || len(p.Unplaced) != 1 || p.Unplaced[0].Reason != want {
		t.Errorf("two instances on the only GPU: got %v and unplaced %+v, want %s", err, p.Unplaced, want)
	}
}

// The size of a place on a small GPU does not depend on a larger GPU.
func TestAtMostOfSizes(t *testing.T) {
	small, slow := row("f", figures{sm: 10, quota: 0.2, rps: 10}), row("slow", figures{sm: 10, quota: 0.2, rps: 10})
	small.GPUMemMiB, slow.GPUMemMiB = 1000, 1000
	in := Input{Profile: []profile.Row{small, slow}, Devices: []plan.Device{
		{Node: "n", Index: 0, MemMiB: 81920}, {Node: "n", Index: 1, MemMiB: 8192},
		{Node: "n", Index: 2, MemMiB: 16384, UsedMemMiB: 12000}, {Node: "n", Index: 3, MemMiB: 8192},
	}}
	joint := func(in Input) (plan.Plan, error) {
		p, _, err := Joint(in, JointOptions{Model: plan.ModelRect})
		return p, err
	}
	for _, c := range []struct {
		rps, served float64
		gpus        int
		reasons     []string
	}{
		{160, 160, 4, nil},
		{170, 160, 4, []string{"no-memory; gpus=4; mem_mib=1000; sm_pct=10; quota=0.2; batch=1; max_per_gpu=4"}},
	} {
		in.Demand = []plan.Demand{{Function: "f", RPS: c.rps}, {Function: "slow", RPS: 1, SLOMS: slow.P95MS / 2}}
		p, err := AtMost(in, 4, withOwnWeights, joint)
		if err != nil {
			t.Fatal(err)
		}
		reasons := append(slices.Clone(c.reasons), fmt.Sprintf("slo-too-tight; slo_ms=%v; best_p95_ms=%v; sm_pct=10; quota=0.2; batch=1", slow.P95MS/2, slow.P95MS))
		var got []string
		for _, u := range p.Unplaced {
			got = append(got, u.Reason)
		}
		if p.GPUsUsed != c.gpus || p.Bound != c.gpus && c.served == c.rps || p.Demand[0].ServedRPS != c.served || maxPerGPU(p) > 4 || !slices.Equal(got, reasons) {
			t.Errorf("%v requests a second: got %d GPUs, bound %d, %v served, reasons %q; want %+v and %q", c.rps, p.GPUsUsed, p.Bound, p.Demand[0].ServedRPS, got, c, reasons)
		}
		for _, g := range p.GPUs {
			if i := slices.IndexFunc(in.Devices, func(d plan.Device) bool { return d.Index == g.Index }); g.MemMiB != in.Devices[i].MemMiB || g.Instances[0].MemMiB != 1000 {
				t.Errorf("memory of GPU %d and its first instance: got %v and %v MiB, want %v and 1000", g.Index, g.MemMiB, g.Instances[0].MemMiB, in.Devices[i].MemMiB)
			}
		}
	}
	in.Profile[1].GPU, in.Devices[1].Model, in.MemMiB = "old", "new", 0
	for i := range in.Devices {
		in.Devices[i].Model, in.Devices[i].MemMiB, in.Devices[i].UsedMemMiB = "new", 0, 0
	}
	in.Demand[1].SLOMS = 0
	p, err := AtMost(in, 4, withOwnWeights, joint)
	if want := "no-gpu-of-model; measured=old; inventory=new"; err != nil || len(p.Unplaced) != 2 || p.Unplaced[1].Reason != want {
		t.Errorf("on a GPU of another model: got %v and unplaced %+v, want %q", err, p.Unplaced, want)
	}
}

// For any input, a plan is valid, keeps the limit of instances and uses no fewer GPUs than its bound.
func TestAtMostVerifies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawJoint(t)
		o := JointOptions{Model: rapid.SampledFrom([]string{plan.ModelRect, plan.ModelTokens}).Draw(t, "model"), ShareModels: rapid.Bool().Draw(t, "share"), Work: 20_000}
		most := rapid.IntRange(1, 6).Draw(t, "most")
		planner := func(in Input) (plan.Plan, error) { p, _, err := Joint(in, o); return p, err }
		p, err := AtMost(in, most, o.ShareModels, planner)
		if err != nil {
			return // more than maxInstances
		}
		if found := verify.Plan(p, verify.Inputs{Profile: in.Profile, Demand: in.Demand, Inventory: in.Devices, Functions: in.Functions}); len(found) > 0 {
			t.Fatalf("violations: got %+v, want none", found)
		}
		if maxPerGPU(p) > most {
			t.Fatalf("instances on a GPU: got %d, want at most %d", maxPerGPU(p), most)
		}
		free, err := planner(in)
		if err == nil && len(p.Unplaced) == 0 && p.GPUsUsed < free.Bound {
			t.Fatalf("GPUs with the limit: got %d, want at least %d, the bound without the limit", p.GPUsUsed, free.Bound)
		}
	})
}
