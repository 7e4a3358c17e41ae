package place

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/verify"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/splitmix"
)

// drawJoint returns a random input: profiles on FaST's grid with noise, a demand and perhaps an inventory.
func drawJoint(t *rapid.T) Input {
	var in Input
	models := []string{"", "A100", "V100"}
	seen := map[string]bool{}
	for f := range rapid.IntRange(1, 5).Draw(t, "functions") {
		name := fmt.Sprintf("f%d", f)
		for range rapid.IntRange(1, 12).Draw(t, "rows") {
			r := profile.Row{Function: name, GPU: rapid.SampledFrom(models).Draw(t, "model"), Config: profile.Config{
				SMPct: rapid.SampledFrom([]float64{6, 12, 24, 33.3, 50, 60, 80, 100}).Draw(t, "sm"),
				Quota: rapid.SampledFrom([]float64{0.2, 0.3, 1. / 3, 0.4, 0.6, 0.8, 1}).Draw(t, "quota"),
				Batch: 1 << rapid.IntRange(0, 3).Draw(t, "batch"),
			}}
			key := fmt.Sprint(r.Function, r.GPU, r.Config)
			if seen[key] {
				continue
			}
			seen[key] = true
			r.ThroughputRPS = r.SMPct / 100 * r.Quota * rapid.Float64Range(5, 50).Draw(t, "rps")
			r.P95MS = rapid.Float64Range(1, 100).Draw(t, "p95")
			r.GPUMemMiB = rapid.Float64Range(0, 6000).Draw(t, "mem")
			r.ModelMemMiB = r.GPUMemMiB * rapid.Float64Range(0, 1).Draw(t, "weights")
			if rapid.IntRange(0, 3).Draw(t, "measured") == 0 {
				r.GoodputKnown, r.SLOMS = true, rapid.SampledFrom([]float64{20, 60}).Draw(t, "for")
				r.GoodputRPS = r.ThroughputRPS * rapid.SampledFrom([]float64{0, 0.2, 0.8, 1}).Draw(t, "goodput")
			}
			in.Profile = append(in.Profile, r)
		}
		d := plan.Demand{Function: name, RPS: rapid.Float64Range(0.1, 300).Draw(t, "demand")}
		if rapid.Bool().Draw(t, "objective") {
			d.SLOMS = rapid.OneOf(rapid.Float64Range(1, 120), rapid.SampledFrom([]float64{20, 60})).Draw(t, "slo")
		}
		in.Demand = append(in.Demand, d)
		if rapid.IntRange(0, 3).Draw(t, "described") == 0 {
			fn := function.Function{Name: name, GPUs: rapid.IntRange(1, 3).Draw(t, "span")}
			if rapid.Bool().Draw(t, "named") {
				fn.Model = &function.Model{Name: "base"}
			}
			in.Functions = append(in.Functions, fn)
		}
	}
	in.Poisson = rapid.Bool().Draw(t, "poisson")
	if rapid.IntRange(0, 3).Draw(t, "leave") == 0 {
		in.Headroom = rapid.Float64Range(0, 0.9).Draw(t, "headroom")
	}
	if rapid.Bool().Draw(t, "limited") {
		in.MemMiB = rapid.Float64Range(2000, 20000).Draw(t, "gpu-mem")
	}
	if rapid.Bool().Draw(t, "inventory") {
		for i := range rapid.IntRange(1, 12).Draw(t, "gpus") {
			in.Devices = append(in.Devices, plan.Device{Node: rapid.SampledFrom([]string{"n", "m"}).Draw(t, "node"), Index: i, MemMiB: rapid.SampledFrom([]float64{8192, 16384}).Draw(t, "mem"),
				Model: rapid.SampledFrom(models).Draw(t, "model"), UsedMemMiB: rapid.Float64Range(0, 4000).Draw(t, "used")})
		}
	}
	return in
}

// TestSpendTime checks that planning continues while there are time and a gap, stops at the bound, and
// never makes a plan worse.
func TestSpendTime(t *testing.T) {
	in := Input{MemMiB: 8192}
	for f := range 12 {
		name := fmt.Sprintf("f%d", f)
		in.Demand = append(in.Demand, plan.Demand{Function: name, RPS: float64(20 + 7*f)})
		for _, sm := range []float64{6, 12, 24, 50, 100} {
			for _, quota := range []float64{0.2, 0.6, 1} {
				r := row(name, figures{sm: sm, quota: quota, rps: 100 * quota * sm / (sm + 10 + 3*float64(f))})
				r.GPUMemMiB = 1000 + 200*float64(f)
				in.Profile = append(in.Profile, r)
			}
		}
	}
	planUntil := func(limit int, untilExpired bool, rps float64) (p plan.Plan, n int) {
		in := in
		in.Demand = slices.Clone(in.Demand)
		for i := range in.Demand {
			in.Demand[i].RPS *= rps
		}
		p, _, err := Joint(in, JointOptions{Model: plan.ModelTokens, UntilExpired: untilExpired, Expired: func() bool { n++; return n > limit }})
		if err != nil {
			t.Fatal(err)
		}
		return p, n
	}
	first, n := planUntil(1<<30, false, 1)
	if first.GPUsUsed <= first.Bound {
		t.Fatalf("first plan: got %d GPUs, want more than the bound %d", first.GPUsUsed, first.Bound)
	}
	if p, spent := planUntil(2*n, true, 1); spent <= 2*n && p.GPUsUsed > p.Bound || p.GPUsUsed > first.GPUsUsed {
		t.Errorf("got %d GPUs after %d time checks, want the bound %d or more checks than %d, and at most %d GPUs", p.GPUsUsed, spent, p.Bound, 2*n, first.GPUsUsed)
	}
	if p, spent := planUntil(100_000, true, 0.01); p.GPUsUsed > p.Bound {
		t.Errorf("got %d GPUs after %d time checks, want the bound %d", p.GPUsUsed, spent, p.Bound)
	}
}

// TestFleetPlansVerify checks that plans for many functions are valid under both models, that tokens need
// no more GPUs than rectangles, and that both stay close to the bound.
func TestFleetPlansVerify(t *testing.T) {
	in := Input{MemMiB: 24 << 10}
	rng := splitmix.Source(1)
	for f := range 300 {
		name := fmt.Sprintf("f%d", f)
		in.Demand = append(in.Demand, plan.Demand{Function: name, RPS: 5 + 195*rng.Unit()})
		full, knee, mem := 50+400*rng.Unit(), 10+80*rng.Unit(), 500+5500*rng.Unit()
		for _, sm := range []float64{6, 12, 24, 50, 60, 80, 100} {
			for _, quota := range []float64{0.2, 0.4, 0.6, 0.8, 1} {
				r := row(name, figures{sm: sm, quota: quota, rps: full * quota * sm / (sm + knee)})
				r.GPUMemMiB = mem
				in.Profile = append(in.Profile, r)
			}
		}
	}
	used := map[string]int{}
	for _, model := range []string{plan.ModelRect, plan.ModelTokens} {
		p, _, err := Joint(in, JointOptions{Model: model})
		if err != nil {
			t.Fatal(err)
		}
		if found := verify.Plan(p, verify.Inputs{Profile: in.Profile, Demand: in.Demand}); len(found) > 0 || len(p.Unplaced) > 0 {
			t.Errorf("%s: got violations %+v, %d unplaced; want none", model, found, len(p.Unplaced))
		}
		if used[model] = p.GPUsUsed; float64(p.GPUsUsed) > 1.08*float64(p.Bound) {
			t.Errorf("%s: got %d GPUs, want at most 8%% more than the bound %d", model, p.GPUsUsed, p.Bound)
		}
	}
	if used[plan.ModelTokens] > used[plan.ModelRect] {
		t.Errorf("GPUs by model: got %v, want no more for tokens than for rectangles", used)
	}
}

// written returns a plan as JSON, and checks that it can be read again.
func written(t *rapid.T, p plan.Plan) string {
	var b bytes.Buffer
	if err := p.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	out := b.String()
	if _, err := plan.Read(&b, "p.json"); err != nil {
		t.Fatalf("read the written plan: %v\n%s", err, out)
	}
	return out
}

// TestSpanningPlans checks that plans of small instances that span GPUs are valid and use no fewer GPUs
// than the bound.
func TestSpanningPlans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := Input{}
		widest := 0
		for f := range rapid.IntRange(1, 4).Draw(t, "functions") {
			r := profile.Row{Function: fmt.Sprintf("f%d", f), ThroughputRPS: 1, P95MS: 1, GPUMemMiB: 100, ModelMemMiB: 50, Config: profile.Config{
				SMPct: rapid.SampledFrom([]float64{6, 24, 50}).Draw(t, "sm"), Quota: rapid.SampledFrom([]float64{0.2, 0.4, 1}).Draw(t, "quota"), Batch: 1}}
			fn := function.Function{Name: r.Function, GPUs: rapid.IntRange(1, 3).Draw(t, "span")}
			widest = max(widest, fn.GPUs)
			in.Profile, in.Functions = append(in.Profile, r), append(in.Functions, fn)
			in.Demand = append(in.Demand, plan.Demand{Function: r.Function, RPS: float64(rapid.IntRange(1, 4).Draw(t, "demand"))})
		}
		if rapid.Bool().Draw(t, "inventory") {
			for i := range rapid.IntRange(3, 8).Draw(t, "gpus") {
				in.Devices = append(in.Devices, plan.Device{Node: fmt.Sprintf("n%d", i/4), Index: i, MemMiB: rapid.SampledFrom([]float64{150, 500}).Draw(t, "mem")})
			}
		}
		p, _, err := Joint(in, JointOptions{Model: rapid.SampledFrom([]string{plan.ModelRect, plan.ModelTokens}).Draw(t, "model"),
			ShareModels: rapid.Bool().Draw(t, "share"), Work: 100_000})
		if err != nil {
			t.Fatal(err)
		}
		if found := verify.Plan(p, verify.Inputs{Profile: in.Profile, Demand: in.Demand, Inventory: in.Devices, Functions: in.Functions}); len(found) > 0 {
			t.Fatalf("violations: got %+v, want none", found)
		}
		if p.Bound < widest || len(p.Unplaced) == 0 && p.GPUsUsed < p.Bound {
			t.Fatalf("got %d GPUs, bound %d; want a bound of at least %d, which an instance spans, and at least as many GPUs as the bound", p.GPUsUsed, p.Bound, widest)
		}
	})
}

// If GPUs with different free memory count as alike, the bound must still hold for the largest of them.
func TestBoundOfManyRooms(t *testing.T) {
	r := row("f", figures{sm: 10, quota: 0.2, rps: 1})
	r.GPUMemMiB = 1000
	in := Input{Profile: []profile.Row{r}, Demand: []plan.Demand{{Function: "f", RPS: 10}}}
	for i := range 12 {
		in.Devices = append(in.Devices, plan.Device{Node: "n", Index: i, MemMiB: 10_000, UsedMemMiB: float64(90 * i)})
	}
	p, _, err := Joint(in, JointOptions{})
	if err != nil || p.Bound != 1 {
		t.Errorf("got %v, bound %d (%s); want a bound of 1, since the first GPU has room for all", err, p.Bound, p.BoundMethod)
	}
}

// However large the demand is, the available GPUs serve the most that they can.
func TestJointOfHugeDemand(t *testing.T) {
	devices := []plan.Device{{Node: "n", Index: 0}, {Node: "n", Index: 1}}
	for rate, served := range map[float64]float64{10: 400, 1e-9: 35e-9} { // twenty instances fit a GPU, or fifteen on the GPU of small
		in := Input{
			Profile: []profile.Row{row("huge", figures{sm: 10, quota: 0.5, rps: rate}), row("small", figures{sm: 50, quota: 0.5, rps: 5})},
			Demand:  []plan.Demand{{Function: "huge", RPS: 1e12}, {Function: "small", RPS: 3}}, Devices: devices,
		}
		for _, model := range []string{plan.ModelRect, plan.ModelTokens} {
			p, _, err := Joint(in, JointOptions{Model: model})
			if err != nil {
				t.Fatal(err)
			}
			if got := p.Demand[0].ServedRPS; math.Abs(got/served-1) > 1e-6 || p.Bound < 1_000_000 {
				t.Errorf("%s, %v requests a second per instance: got %v served on %d GPUs, bound %d; want %v served and a bound of at least 1000000", model, rate, got, p.GPUsUsed, p.Bound, served)
			}
			if found := verify.Plan(p, verify.Inputs{Profile: in.Profile, Demand: in.Demand, Inventory: in.Devices}); len(found) > 0 {
				t.Errorf("violations: got %+v, want none", found)
			}
		}
	}
}
