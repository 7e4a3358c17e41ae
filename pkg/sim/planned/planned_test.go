package planned

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/splitmix"
)

// poisson are arrivals at so many a second.
func poisson(rps float64, n int, seed uint64) []float64 {
	rng := splitmix.Source(seed)
	out, at := make([]float64, n), 0.0
	for i := range out {
		at += rng.Exponential() * 1000 / rps
		out[i] = at
	}
	return out
}

// Worked out by hand: windows of 100 ms.
func TestByHand(t *testing.T) {
	late := []gpu.Turn{{From: 0.5, To: 0.7}}
	for _, c := range []struct {
		what     string
		in       Instance
		arrivals []float64
		want     []float64
	}{
		{"at rest", Instance{Work: 10, Batch: 1}, []float64{3, 50}, []float64{10, 10}},
		{"one behind the other", Instance{Work: 10, Batch: 1}, []float64{0, 4}, []float64{10, 16}},
		{"before its turn", Instance{Work: 10, Batch: 1, Turns: late}, []float64{30}, []float64{30}},
		{"in its turn", Instance{Work: 10, Batch: 1, Turns: late}, []float64{155}, []float64{10}},
		{"too late for it", Instance{Work: 10, Batch: 1, Turns: late}, []float64{65}, []float64{90}},
		{"after it", Instance{Work: 10, Batch: 1, Turns: late}, []float64{70}, []float64{90}},
		{"over two windows", Instance{Work: 30, Batch: 1, Turns: late}, []float64{0}, []float64{160}},
		{"over two turns", Instance{Work: 30, Batch: 1, Turns: []gpu.Turn{{From: 0, To: 0.2}, {From: 0.5, To: 0.7}}}, []float64{0}, []float64{60}},
		{"a batch is what waits", Instance{Work: 10, Batch: 2}, []float64{0, 1, 2, 3}, []float64{10, 18, 19, 27}},
		{"all wait for the turn", Instance{Work: 10, Batch: 4, Turns: late}, []float64{0, 10, 20}, []float64{40, 50, 60}},
	} {
		got := Latencies(Config{Instances: []Instance{c.in}, Arrivals: c.arrivals, WindowMS: 100})
		if !slices.EqualFunc(got, c.want, func(a, b float64) bool { return math.Abs(a-b) < 1e-4 }) {
			t.Errorf("%s: %v, expected %v", c.what, got, c.want)
		}
	}
}

// An instance that is alone and has the whole window is an M/D/1 queue: the mean
// wait is load / (2 (1 - load)) services (Pollaczek and Khinchine).
func TestMeanWait(t *testing.T) {
	for _, load := range []float64{0.3, 0.6, 0.8} {
		got := Latencies(Config{Instances: []Instance{{Work: 10, Batch: 1}}, Arrivals: poisson(load*100, 400_000, 1), WindowMS: 100})
		sum := 0.0
		for _, v := range got {
			sum += v - 10
		}
		if mean, want := sum/float64(len(got)), 10*load/2/(1-load); math.Abs(mean/want-1) > 0.05 {
			t.Errorf("load %v: the mean wait is %v ms, expected %v", load, mean, want)
		}
	}
}

// The more the router knows the better the tail, and what is not alike gets what
// it can do.
func TestRouting(t *testing.T) {
	instances := []Instance{{Work: 10, Batch: 1, RPS: 90}, {Work: 10, Batch: 1, RPS: 90}, {Work: 40, Batch: 1, RPS: 22}}
	p95 := map[Routing]float64{}
	for _, r := range Routings() {
		got := Latencies(Config{Instances: instances, Arrivals: poisson(150, 200_000, 2), Routing: Routing(r), WindowMS: 100, Seed: 3})
		p95[Routing(r)] = Quantile(got, 0.95)
	}
	if !(p95[Least] < p95[Weighted] && p95[Weighted] < p95[Random]) {
		t.Errorf("p95 %v", p95)
	}
}

func TestQuantiles(t *testing.T) {
	all := []float64{1, 2, 3, 4}
	for part, want := range map[float64]float64{0: 1, 0.25: 1, 0.26: 2, 0.95: 4, 1: 4} {
		if got := Quantile(all, part); got != want {
			t.Errorf("%v: %v, expected %v", part, got, want)
		}
	}
	for ms, want := range map[float64]float64{0.5: 0, 1: 0.25, 3.5: 0.75, 9: 1} {
		if got := Within(all, ms); got != want {
			t.Errorf("within %v ms: %v, expected %v", ms, got, want)
		}
	}
	if Quantile(nil, 0.5) != 0 || Within(nil, 1) != 0 || Latencies(Config{Arrivals: []float64{1}}) != nil {
		t.Error("of nothing: expected nothing")
	}
}

// Whatever comes, every request is answered once, none before its work is done,
// and an instance never does more in a window than its turns hold.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Config{WindowMS: 100, Routing: Routing(rapid.SampledFrom(Routings()).Draw(t, "routing")), Seed: rapid.Uint64().Draw(t, "seed")}
		least := math.Inf(1)
		for i := range rapid.IntRange(1, 4).Draw(t, "instances") {
			in := Instance{Work: rapid.Float64Range(0.1, 250).Draw(t, fmt.Sprint("work", i)), Batch: rapid.IntRange(1, 8).Draw(t, "batch"), RPS: rapid.Float64Range(0.1, 10).Draw(t, "rps")}
			if from := rapid.Float64Range(0, 0.9).Draw(t, "from"); rapid.Bool().Draw(t, "turns") {
				in.Turns = []gpu.Turn{{From: from, To: rapid.Float64Range(from+0.05, 1).Draw(t, "to")}}
			}
			least = min(least, in.Work)
			c.Instances = append(c.Instances, in)
		}
		c.Arrivals = poisson(rapid.Float64Range(1, 300).Draw(t, "rate"), rapid.IntRange(0, 300).Draw(t, "requests"), c.Seed)
		got := Latencies(c)
		if len(got) != len(c.Arrivals) || !slices.IsSorted(got) {
			t.Fatalf("%d latencies of %d requests", len(got), len(c.Arrivals))
		}
		if len(got) > 0 && (got[0] < least-1e-3 || math.IsInf(got[len(got)-1], 0)) {
			t.Fatalf("from %v to %v ms, although the least work is %v", got[0], got[len(got)-1], least)
		}
	})
}

func BenchmarkLatencies(b *testing.B) {
	in := make([]Instance, 16)
	for i := range in {
		in[i] = Instance{Work: 10, Batch: 1, RPS: 80, Turns: []gpu.Turn{{From: 0.2, To: 0.6}}}
	}
	arrivals := poisson(500, 100_000, 1)
	for b.Loop() {
		Latencies(Config{Instances: in, Arrivals: arrivals, Routing: Least, WindowMS: 100})
	}
	b.ReportMetric(float64(len(arrivals)*b.N)/b.Elapsed().Seconds(), "requests/s")
}
