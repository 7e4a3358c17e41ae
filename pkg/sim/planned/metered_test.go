package planned

import (
	"math"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/sim/workload"
)

// metered returns a simulation of instances on one GPU under the policy introspective.
func metered(arrivals map[string][]float64, instances ...Instance) Config {
	return Config{GPUs: [][]Instance{instances}, Arrivals: arrivals, Routing: Least, WindowMS: 100, Policy: token.Introspection}
}

// elastic returns an instance whose batches take 10 ms alone on the GPU.
func elastic(function string, s gpu.Slice) Instance {
	return Instance{Function: function, Slice: s, WorkMS: 10, Batch: 1, RPS: 100}
}

// TestIntrospectiveShares compares the time in which saturated instances complete 400 batches of 10 ms with
// their shares of the GPU. Each batch is late by the batches before it.
func TestIntrospectiveShares(t *testing.T) {
	slice := func(sm, smLimit, request, limit float64) gpu.Slice {
		return gpu.Slice{SMPct: sm, SMLimitPct: smLimit, QuotaRequest: request, QuotaLimit: limit}
	}
	all := make([]float64, 400)
	for name, c := range map[string]struct {
		f, g gpu.Slice
		want [2]float64 // part of its speed alone that each instance has while both have work; 0: there is no g
	}{
		"alone, up to the limit":        {f: slice(100, 0, 0.3, 0.8), want: [2]float64{0.8}},
		"alone, all of its SMs":         {f: slice(30, 60, 1, 1), want: [2]float64{1}},
		"alone, half of its SMs' time":  {f: slice(30, 60, 0.5, 0.5), want: [2]float64{0.5}},
		"two, in proportion to request": {slice(100, 0, 0.3, 0.8), slice(100, 0, 0.5, 0.8), [2]float64{0.375, 0.625}},
		"two beside each other":         {slice(50, 0, 1, 1), slice(50, 0, 1, 1), [2]float64{1, 1}},
		// Limits of 60% for requests of 30%: each has half of the GPU, 5/6 of its speed alone on 60%.
		"two with limits beyond the GPU": {slice(30, 60, 1, 1), slice(30, 60, 1, 1), [2]float64{5.0 / 6, 5.0 / 6}},
		// The GPU is divided in proportion to the requests: 25% of it for f, which has 40% of the SMs.
		"limits of different size": {slice(20, 40, 1, 1), slice(60, 100, 1, 1), [2]float64{0.625, 0.75}},
	} {
		t.Run(name, func(t *testing.T) {
			arrivals := map[string][]float64{"f": all, "g": all}
			instances := []Instance{elastic("f", c.f)}
			if c.want[1] > 0 {
				instances = append(instances, elastic("g", c.g))
			}
			got := latencies(metered(arrivals, instances...))
			shortest := math.Inf(1)
			for _, function := range []string{"f", "g"}[:len(instances)] {
				shortest = min(shortest, number.Quantile(got[function], 1))
			}
			for n, function := range []string{"f", "g"}[:len(instances)] {
				// Trials, in which one instance runs alone, cost up to 4%.
				did := Within(got[function], shortest) * float64(len(all)) * 10 / shortest
				if math.Abs(did-c.want[n]) > 0.04 {
					t.Errorf("%s: got %.3f of its speed alone, want %.3f", function, did, c.want[n])
				}
			}
		})
	}
}

// TestHeadroom runs inference next to training that always has work. With limits of twice the request, the
// latency of the inference stays near that on the SMs of its limit; without, it is on those of its request.
func TestHeadroom(t *testing.T) {
	run := func(limit float64, workMS float64) (p95 float64) {
		infer := elastic("infer", gpu.Slice{SMPct: 30, SMLimitPct: limit, QuotaRequest: 1, QuotaLimit: 1})
		infer.WorkMS = workMS
		train := elastic("train", gpu.Slice{SMPct: 30, SMLimitPct: limit, QuotaRequest: 1, QuotaLimit: 1})
		train.Endless = true
		c := metered(map[string][]float64{"infer": poisson(10, 2000, 1)}, infer, train)
		c.Objectives = map[string]float64{"infer": 100}
		return number.Quantile(latencies(c)["infer"], 0.95)
	}
	without, with := run(0, 60), run(60, 30)
	t.Logf("p95 %.1f ms without limits, %.1f ms with limits", without, with)
	if with > without/2 {
		t.Errorf("p95 with limits: got %.1f ms, want at most half of the %.1f ms without limits", with, without)
	}
	if again := run(60, 30); again != with {
		t.Errorf("the same run again: got %v ms, want %v ms", again, with)
	}
}

// TestEndsUnderLongOverload checks that a simulation ends that has idle times and long batches.
func TestEndsUnderLongOverload(t *testing.T) {
	long := elastic("f", gpu.Slice{SMPct: 10, SMLimitPct: 20, QuotaRequest: 0.1, QuotaLimit: 0.2})
	long.WorkMS = 5000
	got := latencies(metered(map[string][]float64{"f": {0, 1, 1e6}, "g": {0.5, 3e6}}, long, elastic("g", gpu.Slice{SMPct: 100, QuotaRequest: 0.5, QuotaLimit: 1})))
	if len(got["f"]) != 3 || len(got["g"]) != 2 {
		t.Errorf("got %d and %d answers, want 3 and 2", len(got["f"]), len(got["g"]))
	}
	// Alone, f has 0.02 to 0.04 of the GPU: 0.1 to 0.2 of its speed on 20% of the SMs.
	if first := got["f"][0]; first < 5000/0.2*0.95 || first > 5000/0.1*1.05 {
		t.Errorf("shortest latency of f: got %.0f ms, want 25000 to 50000", first)
	}
}

// TestFromPlanWithLimits checks the work of instances on the SMs of their limits.
func TestFromPlanWithLimits(t *testing.T) {
	row := func(sm, quota, rps float64) profile.Row {
		return profile.Row{Function: "f", Config: profile.Config{SMPct: sm, Quota: quota, Batch: 1}, ThroughputRPS: rps, P95MS: 1e6}
	}
	other := row(50, 1, 1000)
	other.Batch = 8
	rows := []profile.Row{row(20, 1, 20), row(40, 0.5, 19), row(40, 1, 40), row(80, 1, 60), other}
	for limit, want := range map[float64]float64{0: 50, 20: 50, 30: 1000.0 / 30, 40: 25, 60: 20, 80: 1000.0 / 60, 100: 1000.0 / 60} {
		in := plan.Instance{ID: "f-0", Function: "f", SMPct: 20, SMLimitPct: limit, QuotaRequest: 1, QuotaLimit: 1, Batch: 1}
		p := plan.Plan{Model: plan.ModelNone, GPUs: []plan.GPU{{Instances: []plan.Instance{in}}}}
		gpus, err := FromPlan(p, rows, true)
		if err != nil {
			t.Fatal(err)
		}
		if got := gpus[0][0]; math.Abs(got.WorkMS-want) > 1e-9 || got.Slice.LargestSMPct() != max(20, limit) {
			t.Errorf("limit %v%%: got %v ms of work and the slice %+v, want %v ms", limit, got.WorkMS, got.Slice, want)
		}
		if gpus, err = FromPlan(p, rows, false); err != nil || gpus[0][0].WorkMS != 50 || gpus[0][0].Slice.LargestSMPct() != 20 {
			t.Errorf("limit %v%% without limits: got %+v, %v, want 50 ms on 20%% of the SMs", limit, gpus, err)
		}
	}
}

func TestAllowance(t *testing.T) {
	for budget, want := range map[uint64]time.Duration{0: 0, 7: 70 * time.Microsecond, token.Unlimited: endlessWork} {
		if got := allowance(budget); got != want {
			t.Errorf("allowance(%d): got %v, want %v", budget, got, want)
		}
	}
}

// TestMeteredTimeIsBounded checks that the simulated time does not grow with the rarest function without bound,
// because the policy issues tokens 200 times a second while any instance works.
func TestMeteredTimeIsBounded(t *testing.T) {
	long := elastic("long", gpu.Slice{SMPct: 50, QuotaRequest: 1, QuotaLimit: 1})
	long.WorkMS = 80_000
	group := [][]Instance{{long, elastic("rare", gpu.Slice{SMPct: 50, QuotaRequest: 1, QuotaLimit: 1})}}
	r := Run{
		Demand:  []plan.Demand{{Function: "long", RPS: 0.01}, {Function: "rare", RPS: 1e-5}},
		Pattern: workload.Defaults(), Duration: time.Minute, Seed: 1, Policy: token.Introspection,
	}
	times := r.requests(group)["long"]
	if last := times[len(times)-1] / 1000; last > 60_000 {
		t.Errorf("time of the last request: got %.0f s, want at most 60000 s", last)
	}
}
