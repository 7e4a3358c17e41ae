package place

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/online"
	"github.com/gfaas/gfaas/pkg/policy/place/verify"
	"github.com/gfaas/gfaas/pkg/profile"
)

// dilu plans with the paper's parameters and verifies the plan.
func dilu(t testing.TB, in Input, order Order) plan.Plan {
	t.Helper()
	p, err := Dilu(in, Options{Dilu: online.DiluDefaults(), Order: order})
	if err != nil {
		t.Fatal(err)
	}
	if found := verify.Plan(p, verify.Inputs{Profile: in.Profile, Demand: in.Demand, Inventory: in.Devices, Functions: in.Functions}); len(found) > 0 {
		t.Fatalf("violations: got %+v, want none", found)
	}
	return p
}

// TestDiluFillsByRequestsAndLimits checks the limit of 1.5 on the sum of limits, which are twice the
// requests: three instances of 24% share a GPU (1.44), a fourth does not fit.
func TestDiluFillsByRequestsAndLimits(t *testing.T) {
	in := Input{Profile: []profile.Row{row("f", figures{sm: 24, quota: 1, rps: 10}), row("f", figures{sm: 50, quota: 1, rps: 12}), row("f", figures{sm: 24, quota: 0.5, rps: 9})}, Demand: []plan.Demand{{Function: "f", RPS: 40}}}
	p := dilu(t, in, Arrival)
	if p.GPUsUsed != 2 || len(p.GPUs[0].Instances) != 3 || p.GPUs[0].Instances[2].SMPct != 24 || *p.GPUs[0].Instances[2].Y != 48 {
		t.Errorf("got %+v, want 2 GPUs, of which the first has 3 instances of 24%% SMs, the third at y 48", p)
	}
	if p.Algorithm != "dilu" || p.Demand[0].ServedRPS != 40 {
		t.Errorf("got algorithm %q and demand %+v, want dilu and 40 requests a second served", p.Algorithm, p.Demand)
	}
}

// TestDiluUsesAllQuotas checks that the row with the most throughput per SM counts whatever its quota is: an instance of
// 12% serves 30 requests/s in 40% of the time, 2.5 for each percent of the SMs, and one of 50% serves 2 for each. It also
// checks that rows with smaller quotas are used when there is no room for the best.
func TestDiluUsesAllQuotas(t *testing.T) {
	in := Input{Profile: []profile.Row{row("f", figures{sm: 50, quota: 1, rps: 100}), row("f", figures{sm: 12, quota: 0.4, rps: 30}), row("f", figures{sm: 50, quota: 0.4, rps: 40})}, Demand: []plan.Demand{{Function: "f", RPS: 120}}}
	p := dilu(t, in, Arrival)
	if p.GPUsUsed != 1 || len(p.GPUs[0].Instances) != 4 || p.GPUs[0].Instances[0].SMPct != 12 || p.GPUs[0].Instances[0].QuotaRequest != 0.4 {
		t.Errorf("got %+v, want four instances of 12%% at a quota of 0.4 on one GPU", p.GPUs)
	}
	in = Input{Profile: []profile.Row{row("f", figures{sm: 60, quota: 1, rps: 100}), row("f", figures{sm: 20, quota: 0.4, rps: 10})}, Demand: []plan.Demand{{Function: "f", RPS: 110}}, Devices: []plan.Device{{Node: "n"}}}
	if p = dilu(t, in, Arrival); len(p.Unplaced) != 0 || len(p.GPUs[0].Instances) != 2 || p.GPUs[0].Instances[1].SMPct != 20 {
		t.Errorf("one GPU: got %+v and unplaced %+v, want instances of 60%% and 20%%", p.GPUs, p.Unplaced)
	}
}

func TestDiluTakesFunctionsInOrder(t *testing.T) {
	// Only γ limits here: 0.5 + 1, then 0.5 + 0.5 + 0.5.
	in := Input{Profile: []profile.Row{row("small", figures{sm: 25, quota: 1, rps: 10}), row("large", figures{sm: 70, quota: 1, rps: 10})}, Devices: []plan.Device{{Node: "n"}},
		Demand: []plan.Demand{{Function: "small", RPS: 30}, {Function: "large", RPS: 10}}}
	p := dilu(t, in, Arrival)
	if len(p.Unplaced) != 1 || p.Unplaced[0].Function != "large" ||
		p.Unplaced[0].Reason != "no-node-fits; gpus=1; sm_request=0.7; sm_limit=1" {
		t.Errorf("in the order of arrival: got unplaced %+v, want large, for no-node-fits; gpus=1; sm_request=0.7; sm_limit=1", p.Unplaced)
	}
	if p = dilu(t, in, Largest); len(p.Unplaced) != 1 || p.Unplaced[0].Function != "small" || p.Unplaced[0].RPS != 20 {
		t.Errorf("largest first: got unplaced %+v, want small with 20 requests a second", p.Unplaced)
	}
}

func TestDiluUsesOtherRowsWhereTheBestHasNoGPU(t *testing.T) {
	a, v := row("f", figures{sm: 50, quota: 1, rps: 100}), row("f", figures{sm: 50, quota: 1, rps: 40})
	a.GPU, v.GPU = "A100", "V100"
	p := dilu(t, Input{Profile: []profile.Row{a, v}, Demand: []plan.Demand{{Function: "f", RPS: 140}},
		Devices: []plan.Device{{Node: "n", Model: "V100"}, {Node: "n", Index: 1, Model: "A100"}}}, Arrival)
	if len(p.Unplaced) > 0 || p.Demand[0].ServedRPS != 140 || p.GPUsUsed != 2 {
		t.Errorf("got %+v, want 140 requests a second on 2 GPUs", p)
	}
}

// TestDiluSpansGPUsOfANode checks that an instance of several GPUs is on one node, and that an elastic
// fleet prefers GPUs in use.
func TestDiluSpansGPUsOfANode(t *testing.T) {
	in := Input{Profile: []profile.Row{row("small", figures{sm: 60, quota: 1, rps: 10}), row("wide", figures{sm: 20, quota: 1, rps: 10})}, Functions: []function.Function{{Name: "wide", GPUs: 3}},
		Demand: []plan.Demand{{Function: "small", RPS: 20}, {Function: "wide", RPS: 10}}}
	if p := dilu(t, in, Arrival); p.GPUsUsed != 3 || len(p.GPUs[1].Instances) != 2 || p.GPUs[2].Instances[0].ID != "wide-0" {
		t.Errorf("elastic number of GPUs: got %+v, want 3 GPUs, 2 instances on the second and wide-0 on the third", p.GPUs)
	}
	for i := range 5 {
		in.Devices = append(in.Devices, plan.Device{Node: string(rune('a' + i%2)), Index: i / 2})
	}
	if p := dilu(t, in, Arrival); p.GPUsUsed != 5 || p.GPUs[2].Node != "a" || p.GPUs[2].Instances[0].ID != "wide-0" || len(p.Unplaced) > 0 {
		t.Errorf("five GPUs: got %+v, want small on node b and wide-0 on the three GPUs of node a", p.GPUs)
	}
	in.Functions[0].GPUs = 4
	if p := dilu(t, in, Arrival); len(p.Unplaced) != 1 || p.Unplaced[0].Reason != "node-too-small; gpus=4; largest_node=3" {
		t.Errorf("instance of 4 GPUs: got unplaced %+v, want node-too-small; gpus=4; largest_node=3", p.Unplaced)
	}
}

// TestDiluStatesLimits checks the limits in plans: those that a row states, or else twice the request, or the
// share at which training is within 2% of exclusive. Other algorithms give limits only to rows that state them.
func TestDiluStatesLimits(t *testing.T) {
	both, one := row("both", figures{sm: 20, quota: 0.5, rps: 10}), row("one", figures{sm: 20, quota: 0.5, rps: 10})
	both.SMLimitPct, both.QuotaLimit, one.QuotaLimit = 30, 0.75, 0.75
	in := Input{
		Profile: []profile.Row{
			both, one, row("half", figures{sm: 20, quota: 0.5, rps: 10}), row("wide", figures{sm: 80, quota: 0.5, rps: 10}),
			row("train", figures{sm: 20, quota: 1, rps: 10}), row("train", figures{sm: 60, quota: 1, rps: 19.7}), row("train", figures{sm: 100, quota: 1, rps: 20}),
			// Rows of one function with and without limits.
			row("mixed", figures{sm: 20, quota: 0.5, rps: 10}), func() profile.Row {
				r := row("mixed", figures{sm: 40, quota: 0.5, rps: 10})
				r.SMLimitPct = 50
				return r
			}(),
		},
		Functions: []function.Function{{Name: "train", Kind: "training"}},
	}
	for _, name := range []string{"both", "one", "half", "wide", "train", "mixed"} {
		in.Demand = append(in.Demand, plan.Demand{Function: name, RPS: 5})
	}
	type limits struct{ sm, quota float64 }
	for algorithm, want := range map[string]map[string]limits{
		"dilu":  {"both": {30, 0.75}, "one": {0, 0.75}, "half": {40, 0.5}, "wide": {100, 0.8}, "train": {60, 1}, "mixed": {40, 0.5}},
		"joint": {"both": {30, 0.75}, "one": {0, 0.75}, "half": {0, 0.5}, "wide": {0, 0.5}, "train": {0, 1}, "mixed": {0, 0.5}},
	} {
		kind := kinds[slices.IndexFunc(kinds, func(k Kind) bool { return k.Name == algorithm })]
		p, _, err := kind.Plan(in, DefaultOptions())
		if err != nil {
			t.Fatal(err)
		}
		if found := verify.Plan(p, verify.Inputs{Profile: in.Profile, Demand: in.Demand}); len(found) > 0 {
			t.Errorf("%s: violations: got %+v, want none", algorithm, found)
		}
		planned := 0
		for _, g := range p.GPUs {
			for _, i := range g.Instances {
				planned++
				if got := (limits{i.SMLimitPct, i.QuotaLimit}); got != want[i.Function] {
					t.Errorf("%s: %s: got limits %+v, want %+v", algorithm, i.ID, got, want[i.Function])
				}
			}
		}
		if planned != len(want) {
			t.Errorf("%s: got %d instances, want %d", algorithm, planned, len(want))
		}
		if algorithm != "dilu" {
			continue
		}
		// An instance that a changed plan starts has limits, too.
		in.Demand[2].RPS = 15
		changed, err := Incremental(p, kind.WithLimits(in), IncrementalOptions{}, func(in Input) (plan.Plan, error) { p, _, err := kind.Plan(in, DefaultOptions()); return p, err })
		if err != nil {
			t.Fatal(err)
		}
		started := 0
		for _, g := range changed.Plan.GPUs {
			for _, i := range g.Instances {
				if i.Function == "half" && changed.Reasons[i.ID].Code != "" {
					started++
					if i.SMLimitPct != 40 || i.QuotaLimit != 0.5 {
						t.Errorf("started by the change: got %+v, want limits of 40%% and 0.5", i)
					}
				}
			}
		}
		if started != 1 {
			t.Errorf("instances started by the change: got %d, want 1", started)
		}
		in.Demand[2].RPS = 5
	}
}

func TestDiluTooManyInstances(t *testing.T) {
	_, err := Dilu(Input{Profile: []profile.Row{row("f", figures{sm: 1, quota: 1, rps: 1e-6})}, Demand: []plan.Demand{{Function: "f", RPS: 1e12}}},
		Options{Dilu: online.DiluDefaults(), Order: Arrival})
	if err == nil || !strings.Contains(err.Error(), "f: 1000000000000 requests/s need more than 5000000 instances") {
		t.Errorf("got error %v, want f: 1000000000000 requests/s need more than 5000000 instances", err)
	}
}

// TestDiluPlansVerify checks that plans for random inputs are valid, and serve everything if GPUs are
// unlimited and an instance fits a GPU.
func TestDiluPlansVerify(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		in := Input{MemMiB: rapid.SampledFrom([]float64{0, 16384}).Draw(rt, "mem")}
		for _, f := range []string{"a", "b", "c"} {
			in.Profile = append(in.Profile, drawRows(rt, f)...)
			in.Demand = append(in.Demand, plan.Demand{Function: f, RPS: float64(rapid.IntRange(1, 200).Draw(rt, "rps"))})
		}
		for i := range rapid.IntRange(0, 3).Draw(rt, "GPUs") {
			in.Devices = append(in.Devices, plan.Device{Node: "n", Index: i, MemMiB: in.MemMiB})
		}
		p := dilu(t, in, rapid.SampledFrom([]Order{Arrival, Largest}).Draw(rt, "order"))
		if in.Devices == nil && len(p.Unplaced) > 0 {
			for _, u := range p.Unplaced {
				if code, _, _ := strings.Cut(u.Reason, ";"); code != string(notInProfile) && code != string(noThroughput) && code != string(gpuTooSmall) {
					rt.Errorf("unplaced with an elastic number of GPUs: got %+v, want only %s, %s and %s", u, notInProfile, noThroughput, gpuTooSmall)
				}
			}
		}
		if p.GPUsUsed < p.Bound && len(p.Unplaced) == 0 {
			rt.Errorf("GPUs used: got %d, want at least the bound %d", p.GPUsUsed, p.Bound)
		}
	})
}
