package planned

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/splitmix"
)

// poisson returns Poisson arrivals at a rate per second.
func poisson(rps float64, n int, seed uint64) []float64 {
	rng := splitmix.Source(seed)
	times, at := make([]float64, n), 0.0
	for i := range times {
		at += rng.Exponential() * 1000 / rps
		times[i] = at
	}
	return times
}

// latencies returns the latencies of Simulate.
func latencies(c Config) map[string][]float64 {
	latencies := map[string][]float64{}
	for name, o := range Simulate(c) {
		latencies[name] = o.Latencies
	}
	return latencies
}

// wholeGPU returns an instance with all SMs for the whole window.
func wholeGPU(workMS float64, batch int) Instance {
	return sliceOf(workMS, batch, share{sm: 100, from: 0, to: 1})
}

// share is a share of a GPU.
type share struct {
	sm       float64 // percent of the SMs
	from, to float64 // the instance's turn, as fractions of the window
}

// sliceOf returns an instance with a share of a GPU. A batch takes workMS of GPU time.
func sliceOf(workMS float64, batch int, s share) Instance {
	return Instance{
		Function: "f", Slice: gpu.Slice{SMPct: s.sm, QuotaRequest: s.to - s.from, QuotaLimit: s.to - s.from},
		Turns: []gpu.Turn{{From: s.from, To: s.to}}, WorkMS: workMS, Batch: batch, RPS: 1000 * float64(batch) * (s.to - s.from) / workMS,
	}
}

// forFunction returns the instance for another function.
func forFunction(function string, in Instance) Instance {
	in.Function = function
	return in
}

func near(got, want []float64, within float64) bool {
	return slices.EqualFunc(got, want, func(a, b float64) bool { return math.Abs(a-b) < within })
}

// TestByHand has examples worked out by hand, with windows of 100 ms.
func TestByHand(t *testing.T) {
	slow := wholeGPU(10, 1)
	slow.AnswerMS = 3
	for _, c := range []struct {
		what     string
		gpu      []Instance
		arrivals []float64
		want     []float64
	}{
		{"on an idle GPU", []Instance{wholeGPU(10, 1)}, []float64{3, 50}, []float64{10, 10}},
		{"one after the other", []Instance{wholeGPU(10, 1)}, []float64{0, 4}, []float64{10, 16}},
		{"with a hand-over", []Instance{slow}, []float64{0, 4, 50}, []float64{13, 13, 22}},
		{"a batch of queued requests", []Instance{wholeGPU(10, 2)}, []float64{0, 1, 2, 3}, []float64{10, 18, 19, 27}},
		{"over two windows", []Instance{wholeGPU(30, 1)}, []float64{90}, []float64{30}},
		{"outside its turn, without other instances", []Instance{sliceOf(10, 1, share{sm: 100, from: 0.5, to: 0.7})}, []float64{30, 90}, []float64{10, 10}},
		// 40 ms of each window. 12 ms of work are on the GPU when the lease is revoked, and the
		// excess is charged to the next windows.
		{"until its budget is spent", []Instance{sliceOf(25, 1, share{sm: 100, from: 0.5, to: 0.9})}, []float64{0, 0, 0}, []float64{25, 50, 125}},
		{"with work in flight at the end of the budget", []Instance{sliceOf(60, 1, share{sm: 100, from: 0.5, to: 0.9})}, []float64{0}, []float64{108}},
		{"two instances at a time", []Instance{sliceOf(10, 1, share{sm: 50, from: 0, to: 1}), sliceOf(10, 1, share{sm: 50, from: 0, to: 1})}, []float64{0, 0, 4}, []float64{10, 10, 16}},
		{"the faster instance first", []Instance{sliceOf(20, 1, share{sm: 50, from: 0, to: 1}), sliceOf(10, 1, share{sm: 50, from: 0, to: 1})}, []float64{0, 0, 5}, []float64{10, 15, 20}},
	} {
		got := latencies(Config{GPUs: [][]Instance{c.gpu}, Arrivals: map[string][]float64{"f": c.arrivals}, Routing: Least, WindowMS: 100})["f"]
		if !near(got, c.want, 1e-3) {
			t.Errorf("%s: got %v ms, want %v ms", c.what, got, c.want)
		}
	}
}

// TestLent checks that unused time is lent, and returns to its owner when the borrowers have
// drained. Two instances use all SMs; their turns are 0 to 40 ms and 40 to 80 ms of each window.
func TestLent(t *testing.T) {
	a, b := sliceOf(30, 1, share{sm: 100, from: 0, to: 0.4}), forFunction("g", sliceOf(10, 1, share{sm: 100, from: 0.4, to: 0.8}))
	for _, c := range []struct {
		what         string
		f, g         []float64
		wantF, wantG []float64
	}{
		{"in the other's turn", []float64{40}, []float64{205}, []float64{30}, []float64{10}},
		// At 45 ms, f has 12 ms of work on the GPU. g then holds its lease until it has been idle
		// for 2 ms.
		{"until its owner needs it", []float64{40}, []float64{45}, []float64{42}, []float64{22}},
		// Less than 12 ms of f's work remain.
		{"until its owner needs it, with little work remaining", []float64{40}, []float64{62}, []float64{30}, []float64{18}},
		{"in its own turn", []float64{5}, []float64{10}, []float64{30}, []float64{37}},
	} {
		got := latencies(Config{GPUs: [][]Instance{{a, b}}, Arrivals: map[string][]float64{"f": c.f, "g": c.g}, Routing: Least, WindowMS: 100})
		if !near(got["f"], c.wantF, 1e-3) || !near(got["g"], c.wantG, 1e-3) {
			t.Errorf("%s: got %v ms for f, want %v; got %v ms for g, want %v", c.what, got["f"], c.wantF, got["g"], c.wantG)
		}
	}
}

// TestBeside checks that an instance outside its turn runs concurrently with others if enough SMs
// are free.
func TestBeside(t *testing.T) {
	a, b := sliceOf(20, 1, share{sm: 60, from: 0, to: 0.5}), forFunction("g", sliceOf(20, 1, share{sm: 60, from: 0.5, to: 1}))
	c := forFunction("h", sliceOf(20, 1, share{sm: 40, from: 0, to: 0.5}))
	got := latencies(Config{GPUs: [][]Instance{{a, b, c}}, Routing: Least, WindowMS: 100, Arrivals: map[string][]float64{"f": {0}, "g": {0}, "h": {0, 60}}})
	if !near(got["f"], []float64{20}, 1e-3) || !near(got["h"], []float64{20, 20}, 1e-3) {
		t.Errorf("concurrent instances of 60%% and 40%% of the SMs: got %v and %v ms, want 20 ms each", got["f"], got["h"])
	}
	if !near(got["g"], []float64{42}, 1e-3) {
		t.Errorf("instance of 60%% of the SMs while another one of 60%% runs: got %v ms, want 42 ms", got["g"])
	}
}

// TestWholeWindow checks that an instance is an independent queue if all have the whole window,
// so that there is no time to lend.
func TestWholeWindow(t *testing.T) {
	gpu := []Instance{sliceOf(5, 1, share{sm: 50, from: 0, to: 1}), forFunction("g", sliceOf(30, 4, share{sm: 24, from: 0, to: 1})), forFunction("h", sliceOf(8, 1, share{sm: 26, from: 0, to: 1}))}
	rates := []float64{150, 80, 60}
	at := map[string][]float64{}
	for n, in := range gpu {
		at[in.Function] = poisson(rates[n], 20_000, uint64(n))
	}
	got := latencies(Config{GPUs: [][]Instance{gpu}, Arrivals: at, Routing: Least, WindowMS: 100})
	for _, in := range gpu {
		var want []float64
		end := 0.0
		for waiting := at[in.Function]; len(waiting) > 0; {
			begin, n := max(end, waiting[0]), 0
			end = begin + in.WorkMS
			for n < min(in.Batch, len(waiting)) && waiting[n] <= begin {
				want = append(want, end-waiting[n])
				n++
			}
			waiting = waiting[n:]
		}
		slices.Sort(want)
		if !near(got[in.Function], want, 1e-2) {
			t.Errorf("p95 of %s: got %v ms, want %v ms", in.Function, number.Quantile(got[in.Function], 0.95), number.Quantile(want, 0.95))
		}
	}
}

// TestBacklogged checks that an instance that always has work gets its quota if another one
// always has work, too.
func TestBacklogged(t *testing.T) {
	for _, quota := range []float64{0.2, 0.4, 0.7} {
		rival := forFunction("g", sliceOf(1, 1, share{sm: 100, from: quota, to: 1}))
		rival.Endless = true
		got := latencies(Config{GPUs: [][]Instance{{sliceOf(5, 1, share{sm: 100, from: 0, to: quota}), rival}}, Arrivals: map[string][]float64{"f": make([]float64, 2000)}, Routing: Least, WindowMS: 100})["f"]
		if all, want := got[len(got)-1], 2000*5/quota; math.Abs(all/want-1) > 0.02 {
			t.Errorf("quota %v: got %v ms for 2000 batches of 5 ms, want %v ms", quota, all, want)
		}
	}
}

// TestMeanWait checks that a single instance with the whole window is an M/D/1 queue: the mean
// waiting time is load / (2 (1 - load)) services (Pollaczek and Khinchine).
func TestMeanWait(t *testing.T) {
	for _, load := range []float64{0.3, 0.6, 0.8} {
		got := latencies(Config{GPUs: [][]Instance{{wholeGPU(10, 1)}}, Arrivals: map[string][]float64{"f": poisson(load*100, 400_000, 1)}, WindowMS: 100, Routing: Least})["f"]
		sum := 0.0
		for _, v := range got {
			sum += v - 10
		}
		if mean, want := sum/float64(len(got)), 10*load/2/(1-load); math.Abs(mean/want-1) > 0.05 {
			t.Errorf("load %v: got a mean wait of %v ms, want %v ms", load, mean, want)
		}
	}
}

// TestRouting checks that tail latency improves with the router's information, and that faster
// instances get more requests.
func TestRouting(t *testing.T) {
	gpus := [][]Instance{{wholeGPU(10, 1)}, {wholeGPU(10, 1)}, {wholeGPU(40, 1)}}
	p95 := map[Routing]float64{}
	for _, r := range Routings() {
		got := latencies(Config{GPUs: gpus, Arrivals: map[string][]float64{"f": poisson(150, 200_000, 2)}, Routing: Routing(r), WindowMS: 100, Seed: 3})["f"]
		p95[Routing(r)] = number.Quantile(got, 0.95)
	}
	if !(p95[Least] < p95[Weighted] && p95[Weighted] < p95[Random]) {
		t.Errorf("p95 by routing: got %v ms, want the least for %v, then %v, then %v", p95, Least, Weighted, Random)
	}
}

func TestWithin(t *testing.T) {
	all := []float64{1, 2, 3, 4}
	for ms, want := range map[float64]float64{0.5: 0, 1: 0.25, 3.5: 0.75, 9: 1} {
		if got := Within(all, ms); got != want {
			t.Errorf("share within %v ms: got %v, want %v", ms, got, want)
		}
	}
	if Within(nil, 1) != 0 || latencies(Config{Arrivals: map[string][]float64{"f": {1}}})["f"] != nil {
		t.Error("no latencies: got a share or a latency, want 0 and nil")
	}
}

// TestFromPlan checks that an instance that spans GPUs works on the first, and never lends its
// part of the others.
func TestFromPlan(t *testing.T) {
	zero := 0.0
	in := func(id, function string, quota float64) plan.Instance {
		return plan.Instance{ID: id, Function: function, SMPct: 100, QuotaRequest: quota, QuotaLimit: quota, Batch: 1, RPS: 10, X: &zero, Y: &zero}
	}
	beside := in("g-0", "g", 0.4)
	from := 0.6
	beside.X = &from
	p := plan.Plan{
		Model: plan.ModelRect, Demand: []plan.Served{{Function: "f", HandOverMS: 1}},
		GPUs: []plan.GPU{{Instances: []plan.Instance{in("f-0", "f", 0.6)}}, {Instances: []plan.Instance{in("f-0", "f", 0.6), beside}}},
	}
	rows := []profile.Row{
		{Function: "f", Config: profile.Config{SMPct: 100, Quota: 0.6, Batch: 1}, ThroughputRPS: 60, P95MS: 1e6},
		{Function: "g", Config: profile.Config{SMPct: 100, Quota: 0.4, Batch: 1}, ThroughputRPS: 40, P95MS: 1e6},
	}
	gpus, err := FromPlan(p, rows, false)
	if err != nil {
		t.Fatal(err)
	}
	got := latencies(Config{GPUs: gpus, Arrivals: map[string][]float64{"f": {50}, "g": {10}}, Routing: Least, WindowMS: 100})
	if !near(got["f"], []float64{11}, 1e-3) || !near(got["g"], []float64{60}, 1e-3) {
		t.Errorf("got %v ms for f, want 11 ms; got %v ms for g, want 60 ms, since it waits for its turn", got["f"], got["g"])
	}
	if _, err := FromPlan(p, rows[:1], false); err == nil || !strings.Contains(err.Error(), "g-0 runs at") {
		t.Errorf("plan without a profile row of g: got error %v, want g-0 runs at …", err)
	}
}

func TestGroups(t *testing.T) {
	gpu := func(functions ...string) (out []Instance) {
		for _, f := range functions {
			out = append(out, Instance{Function: f})
		}
		return out
	}
	var got []string
	for _, group := range Groups([][]Instance{gpu("a"), gpu("b", "c"), gpu(), gpu("d"), gpu("a", "e"), gpu("c", "d"), gpu("e")}) {
		line := ""
		for _, g := range group {
			for _, in := range g {
				line += in.Function
			}
			line += " "
		}
		got = append(got, line)
	}
	if want := []string{"a ae e ", "bc d cd ", " "}; !slices.Equal(got, want) {
		t.Errorf("got groups %q, want %q", got, want)
	}
}

// TestProperties checks that every request is answered once, and not before its work is done, and
// that the work of an instance stays within its quota in the long run.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Config{WindowMS: 100, Routing: Routing(rapid.SampledFrom(Routings()).Draw(t, "routing")), Seed: rapid.Uint64().Draw(t, "seed"), Arrivals: map[string][]float64{}}
		least, quota := map[string]float64{}, map[string]float64{}
		for range rapid.IntRange(1, 3).Draw(t, "GPUs") {
			var gpu []Instance
			for range rapid.IntRange(1, 4).Draw(t, "instances") {
				from := rapid.Float64Range(0, 0.9).Draw(t, "from")
				in := sliceOf(rapid.Float64Range(0.1, 250).Draw(t, "work"), 1, share{
					sm: rapid.SampledFrom([]float64{12, 50, 100}).Draw(t, "SMs"), from: from, to: rapid.Float64Range(from+0.05, 1).Draw(t, "to"),
				})
				in.Function = rapid.SampledFrom([]string{"f", "g", "h"}).Draw(t, "function")
				in.Batch = rapid.IntRange(1, 8).Draw(t, "batch")
				in.AnswerMS = rapid.SampledFrom([]float64{0, 0.5, 5}).Draw(t, "hand-over")
				if least[in.Function] == 0 || in.WorkMS < least[in.Function] {
					least[in.Function] = in.WorkMS
				}
				quota[in.Function] += in.Slice.QuotaLimit * float64(in.Batch) / in.WorkMS
				gpu = append(gpu, in)
			}
			c.GPUs = append(c.GPUs, gpu)
		}
		for f := range least {
			c.Arrivals[f] = poisson(rapid.Float64Range(1, 300).Draw(t, "rate"), rapid.IntRange(0, 300).Draw(t, "requests"), c.Seed)
		}
		got, repeated := latencies(c), latencies(c)
		for f := range least {
			latencies := got[f]
			if len(latencies) != len(c.Arrivals[f]) || !slices.IsSorted(latencies) {
				t.Fatalf("latencies of %s: got %d, sorted %v; want %d in order", f, len(latencies), slices.IsSorted(latencies), len(c.Arrivals[f]))
			}
			if !slices.Equal(latencies, repeated[f]) {
				t.Fatalf("latencies of %s in another run: got %v, want %v", f, repeated[f], latencies)
			}
			if len(latencies) > 0 && (latencies[0] < least[f]-1e-3 || math.IsInf(latencies[len(latencies)-1], 0)) {
				t.Fatalf("latencies of %s: got %v to %v ms, want at least %v ms, the work of a request, and a finite maximum", f, latencies[0], latencies[len(latencies)-1], least[f])
			}
		}
	})
}

func BenchmarkLatencies(b *testing.B) {
	for _, quota := range []float64{0.4, 1} {
		b.Run(fmt.Sprint("quota=", quota), func(b *testing.B) {
			c := Config{Arrivals: map[string][]float64{}, Routing: Least, WindowMS: 100}
			requests := 0
			for g := range 4 {
				var gpu []Instance
				for i := range 4 {
					from := 0.0
					if quota < 1 && i%2 == 1 {
						from = 0.4
					}
					in := forFunction(fmt.Sprint("f", i), sliceOf(5, 1, share{sm: map[bool]float64{true: 50, false: 25}[quota < 1], from: from, to: from + quota}))
					gpu = append(gpu, in)
					if g == 0 {
						c.Arrivals[in.Function] = poisson(4*0.6*quota*200, 20_000, uint64(i))
						requests += 20_000
					}
				}
				c.GPUs = append(c.GPUs, gpu)
			}
			for b.Loop() {
				latencies(c)
			}
			b.ReportMetric(float64(requests*b.N)/b.Elapsed().Seconds(), "requests/s")
		})
	}
}
