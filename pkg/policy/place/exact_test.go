package place

import (
	"fmt"
	"testing"

	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/online"
	"github.com/gfaas/gfaas/pkg/policy/place/verify"
	"github.com/gfaas/gfaas/pkg/profile"
)

// Values of the argument shared of AtMost and planners.
const (
	withSharedWeights = true
	withOwnWeights    = false
)

// planners returns all planners by name, or all that can share weights if shared is true.
func planners(shared bool) map[string]Planner {
	jointly := func(model string) Planner {
		return func(in Input) (plan.Plan, error) {
			p, _, err := Joint(in, JointOptions{Model: model, ShareModels: shared, Work: 100_000})
			return p, err
		}
	}
	all := map[string]Planner{
		"joint":  jointly(plan.ModelRect),
		"tokens": jointly(plan.ModelTokens),
		"fast": func(in Input) (plan.Plan, error) {
			return Fast(in, Options{JointOptions: JointOptions{ShareModels: shared}})
		},
		"incremental": func(in Input) (plan.Plan, error) {
			few := in
			few.Demand = []plan.Demand{{Function: in.Demand[0].Function, RPS: 1}}
			current, err := jointly(plan.ModelRect)(few)
			if err != nil {
				return current, err
			}
			made, err := Incremental(current, in, IncrementalOptions{ShareModels: shared}, jointly(plan.ModelRect))
			return made.Plan, err
		},
	}
	if !shared {
		all["dilu"] = func(in Input) (plan.Plan, error) { return Dilu(in, Options{Dilu: online.DiluDefaults()}) }
	}
	return all
}

// TestExactMemory checks that instances whose memory sums to exactly that of a GPU fit it, even if their
// sizes are not whole bytes, and that one more instance does not.
func TestExactMemory(t *testing.T) {
	for _, c := range []struct {
		mem       float64 // of an instance, in MiB
		instances int
		gpu, used float64
	}{
		{0.1, 10, 1, 0},
		{204.8, 5, 1024, 0},
		{1. / 3, 3, 1, 0},
		{100.0000005, 30, 3000.000015, 0},
		{0.7, 10, 7, 0},
		{0.1, 3, 0.3, 0},
		{0.1, 3, 10.3, 10},
		{1.1, 3, 10, 6.7},
		{0.3, 9, 2.9, 0.2},
		{1000, 16, 16000, 0},
	} {
		one := row("f", figures{sm: 1, quota: 1, rps: 1})
		one.GPUMemMiB = c.mem
		for _, more := range []int{0, 1} {
			in := Input{Profile: []profile.Row{one}, Demand: []plan.Demand{{Function: "f", RPS: float64(c.instances + more)}}, MemMiB: c.gpu}
			if c.used > 0 {
				in.Devices = []plan.Device{{Node: "n", MemMiB: c.gpu, UsedMemMiB: c.used}, {Node: "n", Index: 1, MemMiB: c.gpu, UsedMemMiB: c.used}}
			}
			for name, planner := range planners(withOwnWeights) {
				p, err := planner(in)
				if err != nil || p.GPUsUsed != 1+more || p.Bound != 1+more || len(p.Unplaced) > 0 {
					t.Errorf("%s: %v instances of %v MiB on GPUs of %v MiB, less %v MiB: got %d GPUs, bound %d (%s), unplaced %v, %v; want %d GPUs", name, in.Demand[0].RPS, c.mem, c.gpu, c.used, p.GPUsUsed, p.Bound, p.BoundMethod, p.Unplaced, err, 1+more)
				}
				if wrong := verify.Plan(p, verify.Inputs{Profile: in.Profile, Demand: in.Demand, Inventory: in.Devices}); len(wrong) > 0 {
					t.Errorf("%s: %v instances of %v MiB on GPUs of %v MiB: got violations %+v, want none", name, in.Demand[0].RPS, c.mem, c.gpu, wrong)
				}
			}
		}
	}
}

// TestAtMostFillsGPUs checks that a GPU hosts the allowed number of instances even if that does not divide
// its memory evenly.
func TestAtMostFillsGPUs(t *testing.T) {
	one := row("f", figures{sm: 1, quota: 1, rps: 1})
	one.GPUMemMiB = 1
	for _, mem := range []float64{1024, 8192, 16384, 81559, 100.1} {
		for _, most := range []int{1, 2, 3, 5, 6, 7, 11, 13, 23, 48, 49, 60} {
			for _, more := range []int{0, 1} {
				t.Run(fmt.Sprintf("%v/%d/%d", mem, most, more), func(t *testing.T) {
					in := Input{Profile: []profile.Row{one}, Demand: []plan.Demand{{Function: "f", RPS: float64(most + more)}}, MemMiB: mem}
					p, err := AtMost(in, most, withOwnWeights, planners(withOwnWeights)["fast"])
					if err != nil || p.GPUsUsed != 1+more || p.Bound != 1+more || maxPerGPU(p) != most {
						t.Errorf("%d instances: got %d GPUs, bound %d (%s), at most %d on a GPU, %v; want %d GPUs", most+more, p.GPUsUsed, p.Bound, p.BoundMethod, maxPerGPU(p), err, 1+more)
					}
				})
			}
		}
	}
}
