package place

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
	"github.com/gfaas/gfaas/pkg/policy/place/online"
	"github.com/gfaas/gfaas/pkg/policy/place/verify"
	"github.com/gfaas/gfaas/pkg/profile"
)

// FaST-GShare, section 5.4: four ResNet, two RNNT and two BERT on one GPU.
func TestPaperExampleFitsOneGPU(t *testing.T) {
	p := fast(t, Input{
		Profile: []profile.Row{row("resnet", figures{sm: 12, quota: 0.4, rps: 10}), row("rnnt", figures{sm: 24, quota: 0.4, rps: 10}), row("bert", figures{sm: 50, quota: 0.6, rps: 10})},
		Demand:  []plan.Demand{{Function: "resnet", RPS: 40}, {Function: "rnnt", RPS: 20}, {Function: "bert", RPS: 20}},
	})
	if p.GPUsUsed != 1 || len(p.GPUs[0].Instances) != 8 {
		t.Errorf("got %d GPUs: %+v, want 1 with 8 instances", p.GPUsUsed, p.GPUs)
	}
}

// fast plans with the default options and verifies the plan.
func fast(t *testing.T, in Input) plan.Plan {
	t.Helper()
	p, err := Fast(in, Options{TieBreak: LargerQuota, Order: Largest})
	if err != nil {
		t.Fatal(err)
	}
	if found := verify.Plan(p, verify.Inputs{Profile: in.Profile, Demand: in.Demand, Inventory: in.Devices}); len(found) > 0 {
		t.Fatalf("violations: got %+v, want none", found)
	}
	return p
}

func TestUnplaced(t *testing.T) {
	one := []plan.Device{{Node: "n", MemMiB: 1500, Model: "V100"}}
	slow := row("f", figures{sm: 100, quota: 1, rps: 50})
	slow.P95MS = 11.3
	nothing := row("f", figures{sm: 100, quota: 1})
	big := row("f", figures{sm: 10, quota: 0.5, rps: 10})
	big.GPUMemMiB = 20000
	other := row("f", figures{sm: 10, quota: 0.5, rps: 10})
	other.GPU = "A100"
	small := row("f", figures{sm: 60, quota: 0.6, rps: 10})
	batched := row("f", figures{sm: 60, quota: 0.6, rps: 10})
	batched.Batch = 2
	for what, c := range map[string]struct {
		rows    []profile.Row
		devices []plan.Device
		want    string
	}{
		"no row":       {nil, nil, "not-in-profile"},
		"SLO":          {[]profile.Row{slow}, nil, "slo-too-tight; slo_ms=10.5; best_p95_ms=11.3; sm_pct=100; quota=1; batch=1"},
		"sustains":     {[]profile.Row{nothing}, nil, "no-throughput"},
		"too large":    {[]profile.Row{big}, one, "gpu-too-small; needed_mib=20000; free_mib=1500"},
		"only batches": {[]profile.Row{batched}, nil, "only-batches"},
		"model":        {[]profile.Row{other}, one, "no-gpu-of-model; measured=A100; inventory=V100"},
		"no GPU":       {[]profile.Row{small}, []plan.Device{}, "no-gpu"},
		"memory":       {[]profile.Row{row("f", figures{sm: 10, quota: 0.5, rps: 10})}, one, "no-memory; gpus=1; mem_mib=1000; sm_pct=10; quota=0.5; batch=1"},
		"no rectangle": {[]profile.Row{small}, []plan.Device{{Node: "n"}, {Node: "n", Index: 1}}, "gpus-full; gpus=2; sm_pct=60; quota=0.6; batch=1"},
	} {
		t.Run(what, func(t *testing.T) {
			p := fast(t, Input{Profile: c.rows, Devices: c.devices, Demand: []plan.Demand{{Function: "f", RPS: 25, SLOMS: 10.5}}, Functions: []function.Function{{Name: "f", Inflight: 1}}})
			if len(p.Unplaced) != 1 || p.Unplaced[0].Reason != c.want {
				t.Errorf("got %+v, want %s", p.Unplaced, c.want)
			}
		})
	}
}

// The reason names the GPUs that are too small for every configuration, with every planner.
func TestReasonOfSmallGPUs(t *testing.T) {
	f, larger, g := row("f", figures{sm: 60, quota: 0.6, rps: 10}), row("f", figures{sm: 100, quota: 0.6, rps: 12}), row("g", figures{sm: 60, quota: 0.6, rps: 10})
	f.GPUMemMiB, larger.GPUMemMiB, g.GPUMemMiB = 30000, 31000, 100
	in := Input{
		Profile: []profile.Row{f, larger, g},
		Devices: []plan.Device{{Node: "n", MemMiB: 24576}, {Node: "n", Index: 1, MemMiB: 81920}, {Node: "n", Index: 2, MemMiB: 40960, UsedMemMiB: 20000}},
		Demand:  []plan.Demand{{Function: "f", RPS: 100}, {Function: "g", RPS: 20}},
	}
	joint := func(in Input) (plan.Plan, error) {
		p, _, err := Joint(in, JointOptions{Model: plan.ModelRect})
		return p, err
	}
	const want = "gpus-full; gpus=3; too_small=2; needed_mib=30000; sm_pct=60; quota=0.6; batch=1"
	for name, planner := range map[string]Planner{
		"fast": fastPlanner, "joint": joint,
		"incremental": func(in Input) (plan.Plan, error) {
			made, err := Incremental(plan.Plan{Version: plan.Version, Model: plan.ModelRect}, in, IncrementalOptions{TieBreak: LargerQuota, Threshold: maxrect.DefaultThreshold}, fastPlanner)
			return made.Plan, err
		},
	} {
		p, err := planner(in)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(p.Unplaced) != 1 || p.Unplaced[0].Reason != want {
			t.Errorf("%s: %+v, want %s", name, p.Unplaced, want)
		}
	}
	padded := []plan.Unplaced{{Function: "f", Reason: "gpus-full; gpus=3; too_small=3; needed_mib=81920; sm_pct=60; quota=0.6; batch=1"}}
	if in.restateReasons(padded, in.withPaddedMemory(1, 81920, false)); padded[0].Reason != want {
		t.Errorf("of padded memory: %+v, want %s", padded, want)
	}
}

// TestBatchesReachInstances checks that a plan uses rows with a batch above 1 only if the function is unknown or gets
// batches, that verify names such an instance of another function, and that a running one stops.
func TestBatchesReachInstances(t *testing.T) {
	batched := row("f", figures{sm: 50, quota: 1, rps: 100})
	batched.Batch = 8
	single := row("f", figures{sm: 50, quota: 1, rps: 20})
	in := Input{Profile: []profile.Row{batched, single}, Demand: []plan.Demand{{Function: "f", RPS: 80}}}
	joint := func(in Input) (plan.Plan, error) {
		p, _, err := Joint(in, JointOptions{Model: plan.ModelRect})
		return p, err
	}
	dilu := func(in Input) (plan.Plan, error) {
		return Dilu(in, Options{Dilu: online.DiluDefaults(), Order: Arrival})
	}
	for name, c := range map[string]struct {
		functions []function.Function
		batch     int
	}{
		"unknown":          {nil, 8},
		"one call":         {[]function.Function{{Name: "f", Inflight: 1}}, 1},
		"several calls":    {[]function.Function{{Name: "f", Inflight: 2}}, 8},
		"batcher":          {[]function.Function{{Name: "f", Inflight: 1, Batcher: &function.DefaultBatcher}}, 8},
		"training":         {[]function.Function{{Name: "f", Inflight: 1, Kind: function.Training}}, 8},
		"another function": {[]function.Function{{Name: "g", Inflight: 1}}, 8},
	} {
		in.Functions = c.functions
		for algorithm, planner := range map[string]Planner{"fast": fastPlanner, "joint": joint, "dilu": dilu} {
			p, err := planner(in)
			if err != nil {
				t.Fatalf("%s, %s: %v", name, algorithm, err)
			}
			for _, g := range p.GPUs {
				for _, i := range g.Instances {
					if i.Batch != c.batch {
						t.Errorf("%s, %s: %s has batch %d, want %d", name, algorithm, i.ID, i.Batch, c.batch)
					}
				}
			}
			if p.Demand[0].ServedRPS < 80 {
				t.Errorf("%s, %s: got %+v, want 80 requests/s served", name, algorithm, p.Demand)
			}
			if found := verify.Plan(p, verify.Inputs{Profile: in.Profile, Demand: in.Demand, Functions: in.Functions}); len(found) > 0 {
				t.Errorf("%s, %s: violations %+v, want none", name, algorithm, found)
			}
		}
	}

	in.Functions = nil
	p := fast(t, in)
	in.Functions = []function.Function{{Name: "f", Inflight: 1}}
	if found := verify.Plan(p, verify.Inputs{Profile: in.Profile, Demand: in.Demand, Functions: in.Functions}); len(found) != 1 || found[0].Rule != verify.RuleProfile {
		t.Errorf("violations of a batch that reaches no instance: got %+v, want one of the rule profile", found)
	}
	revised, why := incrementally(t, p, in, IncrementalOptions{TieBreak: LargerQuota, Threshold: maxrect.DefaultThreshold}, fastPlanner)
	if got := why["f-0"].String(); got != "no-batches; sm_pct=50; quota=1; batch=8" || revised.GPUs[0].Instances[0].Batch != 1 {
		t.Errorf("a running instance: got %q and the plan %+v, want no-batches and instances with batch 1", got, revised.GPUs)
	}
}

// Random arrivals need more GPUs than steady ones, and the bound is for random arrivals.
func TestRandomArrivals(t *testing.T) {
	in := Input{Profile: []profile.Row{row("f", figures{sm: 100, quota: 1, rps: 100})}, Demand: []plan.Demand{{Function: "f", RPS: 160, SLOMS: 40}}}
	in.Profile[0].P95MS = 10
	steady := fast(t, in)
	in.Poisson = true
	p := fast(t, in)
	if steady.GPUsUsed != 2 || p.GPUsUsed != 3 || p.Bound != 3 || p.Arrivals != plan.ArrivalsPoisson || p.GPUs[0].Instances[0].RPS > 63 {
		t.Errorf("Poisson arrivals: got %+v and %d GPUs for steady ones, want 3 GPUs, bound 3 and at most 63 requests a second per instance, and 2 GPUs for steady ones", p, steady.GPUsUsed)
	}
	// An instance that takes one call at a time idles between two calls.
	in.HandOverMS = 10
	if p = fast(t, in); p.GPUsUsed != 3 || p.HandOverMS("f") != 0 {
		t.Errorf("function without settings: got %d GPUs, hand-over %v; want 3, 0", p.GPUsUsed, p.HandOverMS("f"))
	}
	in.Functions = []function.Function{{Name: "f", Inflight: 2}}
	if p = fast(t, in); p.GPUsUsed != 3 || p.HandOverMS("f") != 0 {
		t.Errorf("function with 2 calls in flight per instance: got %d GPUs, hand-over %v; want 3, 0", p.GPUsUsed, p.HandOverMS("f"))
	}
	in.Functions[0].Inflight, in.Functions[0].Kind = 1, function.Training
	if p = fast(t, in); p.GPUsUsed != 3 || p.HandOverMS("f") != 0 {
		t.Errorf("training function: got %d GPUs, hand-over %v; want 3, 0", p.GPUsUsed, p.HandOverMS("f"))
	}
	in.Functions[0].Kind = function.DefaultKind
	if p = fast(t, in); p.GPUsUsed < 6 || p.HandOverMS("f") != 10 {
		t.Errorf("function with 1 call in flight per instance: got %d GPUs, hand-over %v; want at least 6, 10", p.GPUsUsed, p.HandOverMS("f"))
	}
	if wrong := verify.Plan(p, verify.Inputs{Profile: in.Profile, Demand: in.Demand}); len(wrong) > 0 {
		t.Errorf("violations: got %v, want none", wrong)
	}
	alone := in
	alone.Poisson = false
	if p := fast(t, alone); p.GPUsUsed != steady.GPUsUsed || p.GPUs[0].Instances[0].RPS != steady.GPUs[0].Instances[0].RPS || p.HandOverMS("f") != 10 {
		t.Errorf("function with 1 call in flight and steady arrivals: got %+v, want %+v with a hand-over of 10 ms", p, steady)
	} else if wrong := verify.Plan(p, verify.Inputs{Profile: in.Profile, Demand: in.Demand}); len(wrong) > 0 {
		t.Errorf("violations with steady arrivals: got %v, want none", wrong)
	}
	p.Demand[0].HandOverMS = 20
	if wrong := verify.Plan(p, verify.Inputs{Profile: in.Profile, Demand: in.Demand}); len(wrong) == 0 {
		t.Error("plan for half of the hand-over: got no violation, want one")
	}
	in.Functions, in.HandOverMS = nil, 0
	in.Headroom = 0.5
	if p = fast(t, in); p.GPUsUsed != 6 || p.Headroom != 0.5 {
		t.Errorf("with a headroom of 0.5: got %d GPUs, headroom %v; want 6, 0.5", p.GPUsUsed, p.Headroom)
	}
	in.Demand[0].SLOMS, in.Profile[0].Quota = 20, 0.5
	want := "slo-too-tight-at-rest; slo_ms=20; idle_ms=55; sm_pct=100; quota=0.5; batch=1"
	if p = fast(t, in); len(p.Unplaced) != 1 || p.Unplaced[0].Reason != want {
		t.Errorf("configuration with a quota of 0.5: got unplaced %+v, want %s", p.Unplaced, want)
	}
}

func TestUnplacedFunctionDoesNotStopOthers(t *testing.T) {
	p := fast(t, Input{Profile: grid("f"), Demand: []plan.Demand{{Function: "g", RPS: 1}, {Function: "f", RPS: 30}}})
	if p.GPUsUsed != 1 || p.Bound != 1 || p.Demand[1].ServedRPS < 30 || len(p.Unplaced) != 1 {
		t.Errorf("got %+v, want 1 GPU, bound 1, f served and g unplaced", p)
	}
}

func TestOtherConfigurationsFillRemainingRoom(t *testing.T) {
	// 100 × 1 sustains most, but only one GPU is empty. The rest must use rectangles
	// on the GPU of the first function.
	rows := []profile.Row{row("a", figures{sm: 60, quota: 1, rps: 60}), row("b", figures{sm: 50, quota: 1, rps: 50}), row("b", figures{sm: 40, quota: 0.5, rps: 19}), row("b", figures{sm: 20, quota: 0.5, rps: 9})}
	p := fast(t, Input{Profile: rows, Devices: []plan.Device{{Node: "n"}}, Demand: []plan.Demand{{Function: "a", RPS: 60}, {Function: "b", RPS: 50}}})
	if p.Demand[1].ServedRPS != 38 || len(p.Unplaced) != 1 || p.Unplaced[0].RPS != 12 {
		t.Errorf("got demand %+v, unplaced %+v; want 38 requests a second of b served and 12 unplaced", p.Demand, p.Unplaced)
	}
}

func TestMemoryOnlyCountsWhereItIsLimited(t *testing.T) {
	in := Input{Profile: []profile.Row{row("f", figures{sm: 20, quota: 0.5, rps: 10})}, Demand: []plan.Demand{{Function: "f", RPS: 100}}}
	p := fast(t, in)
	if p.GPUsUsed != 1 || p.GPUs[0].MemMiB != 0 || p.GPUs[0].Instances[0].MemMiB != 0 {
		t.Errorf("without a memory limit: got %+v, want 1 GPU and no memory sizes", p)
	}
	in.MemMiB = 4000
	if p = fast(t, in); p.GPUsUsed != 3 || p.Bound != 3 || p.BoundMethod != boundMemory || p.GPUs[0].Instances[0].MemMiB != 1000 {
		t.Errorf("with 4000 MiB a GPU: got %+v, want 3 GPUs, bound 3 by %s, instances of 1000 MiB", p, boundMemory)
	}
}

func TestRowsGoToGPUsOfTheirModel(t *testing.T) {
	a, v := row("f", figures{sm: 50, quota: 1, rps: 100}), row("f", figures{sm: 50, quota: 1, rps: 40})
	a.GPU, v.GPU = "A100", "V100"
	p := fast(t, Input{Profile: []profile.Row{a, v}, Demand: []plan.Demand{{Function: "f", RPS: 270}},
		Devices: []plan.Device{{Node: "n", Model: "V100"}, {Node: "n", Index: 1, Model: "A100"}}})
	if len(p.Unplaced) > 0 || p.Demand[0].ServedRPS != 280 || p.GPUsUsed != 2 {
		t.Errorf("got %+v, want 280 requests a second served on 2 GPUs", p)
	}
}

func TestTooManyInstancesIsAnError(t *testing.T) {
	_, err := Fast(Input{Profile: []profile.Row{row("f", figures{sm: 1, quota: 1, rps: 1e-6})}, Demand: []plan.Demand{{Function: "f", RPS: 1e12}}}, Options{})
	if err == nil || !strings.Contains(err.Error(), "f: 1000000000000 requests/s need more than") {
		t.Errorf("got error %v, want f: 1000000000000 requests/s need more than …", err)
	}
}

// drawRows draws a random profile of a function, either with FaST's shares or with arbitrary ones.
func drawRows(t *rapid.T, function string) []profile.Row {
	n := rapid.IntRange(1, 6).Draw(t, function+" rows")
	var rows []profile.Row
	for i := range n {
		r := row(function, figures{sm: rapid.SampledFrom([]float64{6, 12, 24, 50, 60, 80, 100, 33.3333}).Draw(t, "sm"), quota: rapid.SampledFrom([]float64{0.2, 0.4, 0.6, 0.8, 1, 1.0 / 3}).Draw(t, "quota"), rps: rapid.Float64Range(1, 100).Draw(t, "rps")})
		r.Batch = i + 1
		r.P95MS = rapid.Float64Range(1, 100).Draw(t, "p95")
		r.GPUMemMiB = float64(rapid.IntRange(0, 3000).Draw(t, "mem"))
		rows = append(rows, r)
	}
	return rows
}

func drawInput(t *rapid.T) Input {
	var in Input
	for i := range rapid.IntRange(0, 4).Draw(t, "functions") {
		name := string(rune('a' + i))
		in.Profile = append(in.Profile, drawRows(t, name)...)
		d := plan.Demand{Function: name, RPS: rapid.Float64Range(0.1, 400).Draw(t, "demand")}
		if rapid.Bool().Draw(t, "has SLO") {
			d.SLOMS = rapid.Float64Range(1, 120).Draw(t, "SLO")
		}
		in.Demand = append(in.Demand, d)
	}
	in.Poisson = rapid.Bool().Draw(t, "poisson")
	switch rapid.IntRange(0, 3).Draw(t, "GPUs") {
	case 0:
		in.MemMiB = float64(rapid.IntRange(2000, 9000).Draw(t, "memory"))
	case 1:
		for i := range rapid.IntRange(0, 6).Draw(t, "devices") {
			mem := float64(rapid.IntRange(1, 9000).Draw(t, "device"))
			in.Devices = append(in.Devices, plan.Device{Node: "n", Index: i, MemMiB: mem, UsedMemMiB: min(mem, float64(rapid.IntRange(0, 2000).Draw(t, "used")))})
		}
	case 2:
		in.Devices = make([]plan.Device, 0)
		for i := range rapid.IntRange(0, 6).Draw(t, "GPUs") {
			in.Devices = append(in.Devices, plan.Device{Node: "n", Index: i})
		}
	}
	return in
}

func TestPlansVerifyAndKeepTheBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		o := Options{
			TieBreak: rapid.SampledFrom([]TieBreak{LargerQuota, SmallerQuota}).Draw(t, "tie"),
			Order:    rapid.SampledFrom([]Order{Largest, Arrival}).Draw(t, "order"),
		}
		p, err := Fast(in, o)
		if err != nil {
			t.Fatal(err)
		}
		if found := verify.Plan(p, verify.Inputs{Profile: in.Profile, Demand: in.Demand, Inventory: in.Devices}); len(found) > 0 {
			t.Fatalf("violations: got %+v, want none in\n%+v", found, p)
		}
		if len(p.Unplaced) == 0 && p.GPUsUsed < p.Bound {
			t.Fatalf("GPUs used: got %d, want at least the bound %d", p.GPUsUsed, p.Bound)
		}
		var once, twice bytes.Buffer
		again, _ := Fast(in, o)
		if p.WriteJSON(&once) != nil || again.WriteJSON(&twice) != nil || !bytes.Equal(once.Bytes(), twice.Bytes()) {
			t.Fatalf("plan of the same input: got\n%s\nwant\n%s", &twice, &once)
		}
	})
}

// The bound holds for every plan, here for the cheapest numbers of instances, found by trying all.
func TestBoundAgainstAllChoices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := drawRows(t, "f")
		rps := rapid.Float64Range(0.1, 120).Draw(t, "rps")
		in := Input{Profile: rows, Demand: []plan.Demand{{Function: "f", RPS: rps}}}
		bound, _ := in.bound(in.functionDemands())
		if least := leastArea(rows, rps); float64(bound) > least+1 {
			t.Fatalf("bound: got %d, want at most %v, since an area of %v serves the demand", bound, least+1, least)
		}
	})
}

// leastArea returns the least total area of instances that sustain rps.
func leastArea(rows []profile.Row, rps float64) float64 {
	if rps <= 0 {
		return 0
	}
	if len(rows) == 0 {
		return 1e9
	}
	least, r := 1e9, rows[0]
	for n := 0.0; ; n++ {
		rest := rps - n*r.ThroughputRPS
		least = min(least, n*r.SMPct/100*r.Quota+leastArea(rows[1:], rest))
		if rest <= 0 {
			return least
		}
	}
}

// Sharing weights of size 0 does not change the plan. The two options use the same heuristic with
// different code.
func TestFastSharedIsFast(t *testing.T) {
	for _, order := range []Order{Largest, Arrival} {
		in := Input{MemMiB: 16384, Demand: []plan.Demand{{Function: "a", RPS: 300}, {Function: "b", RPS: 90}}}
		for _, sm := range []float64{12, 24, 50} {
			in.Profile = append(in.Profile, row("a", figures{sm: sm, quota: 0.4, rps: 2*sm - 1}), row("b", figures{sm: sm, quota: 0.6, rps: sm / 4}))
		}
		plain, err := Fast(in, Options{TieBreak: LargerQuota, Order: order})
		if err != nil {
			t.Fatal(err)
		}
		shared, err := Fast(in, Options{TieBreak: LargerQuota, Order: order, JointOptions: JointOptions{ShareModels: true}})
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(plain.Demand, shared.Demand) || plain.GPUsUsed != shared.GPUsUsed || plain.Bound != shared.Bound {
			t.Errorf("%s: got the plan for shared models\n%+v\nwant the result of the plain plan\n%+v", order, shared, plain)
		}
	}
}

// TestOffersMatchScan checks that the cached offers give the same places as a scan of all GPUs.
func TestOffersMatchScan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := Input{MemMiB: rapid.SampledFrom([]float64{0, 10}).Draw(t, "mem")}
		for i := range rapid.IntRange(0, 5).Draw(t, "devices") {
			in.Devices = append(in.Devices, plan.Device{
				Node: "n", Index: i, Model: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "model"),
				MemMiB: rapid.Float64Range(0, 10).Draw(t, "has"),
			})
		}
		f := newFleet(in)
		for range rapid.IntRange(1, 12).Draw(t, "runs") {
			var row profile.Row
			row.Quota = rapid.SampledFrom([]float64{0.2, 0.4, 0.5, 1}).Draw(t, "quota")
			row.SMPct = rapid.SampledFrom([]float64{6, 25, 50, 60, 100}).Draw(t, "sm")
			row.GPU = rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "gpu")
			row.GPUMemMiB = rapid.Float64Range(0, 4).Draw(t, "needs")
			for range rapid.IntRange(1, 12).Draw(t, "instances") {
				want, wantOK := f.scan(footprintOf(row))
				got, ok := f.bestOffer(footprintOf(row))
				if got != want || ok != wantOK {
					t.Fatalf("offer for %+v: got %+v, %v; want %+v, %v, as a scan of all GPUs", row, got, ok, want, wantOK)
				}
				f.place("i", row)
			}
		}
	})
}
