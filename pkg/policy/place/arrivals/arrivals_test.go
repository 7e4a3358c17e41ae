package arrivals

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/splitmix"
)

// measured describes a configuration that was measured under saturation.
type measured struct {
	workMS float64
	quota  float64
	batch  int
}

// row returns the profile row of a configuration that needs workMS ms per batch with the whole window.
func row(m measured) profile.Row {
	rate := m.quota * float64(m.batch) * 1000 / m.workMS
	return profile.Row{Config: profile.Config{SMPct: 50, Quota: m.quota, Batch: m.batch}, ThroughputRPS: rate, P95MS: 1e6}
}

// TestWaitingTimes compares inTimeFraction with exact values of the M/D/1 queue (Crommelin 1932): at load
// 0.5, P(W <= 1) is 0.5 e^0.5, and P(W <= 2) is 0.5 (e - 0.5 e^0.5). It also checks that the exact sum and
// the exponential tail agree where the function changes from one to the other.
func TestWaitingTimes(t *testing.T) {
	for _, c := range []struct{ load, wait, want float64 }{
		{0.3, 0, 0.7},
		{0.5, 1, 0.5 * math.Exp(0.5)},
		{0.5, 2, 0.5 * (math.E - 0.5*math.Exp(0.5))},
	} {
		if got := inTimeFraction(c.load, 0, c.wait); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("load %v, %v service times: got the fraction %v, want %v", c.load, c.wait, got, c.want)
		}
	}
	for _, rate := range []float64{0.2, 0.8, 2} {
		load := loadOf(rate)
		sum, tail := inTimeFraction(load, rate, exactWaits), inTimeFraction(load, rate, exactWaits+1e-6)
		if math.Abs(sum-tail) > 1e-4 {
			t.Errorf("load %v: got the fraction %v from the exponential tail, want %v as from the exact sum", load, tail, sum)
		}
	}
}

// TestWorth checks the worth of unloaded and loaded instances for several objectives.
func TestWorth(t *testing.T) {
	r := row(measured{workMS: 10, quota: 1, batch: 1})
	for _, c := range []struct{ slo, low, high float64 }{
		{9.9, 0, 0},    // below the latency of an idle instance
		{10, 4.9, 5.1}, // no request may wait: 95% must find the instance idle
		{20, 27, 30},
		{100, 84, 88},
		{1e7, 99.9, 100},
	} {
		if got := Worth(r, c.slo); got < c.low || got > c.high {
			t.Errorf("worth for an objective of %v ms: got %v requests a second, want %v to %v", c.slo, got, c.low, c.high)
		}
	}
	if got := Worth(row(measured{workMS: 4, quota: 0.2, batch: 1}), 75); got != 0 {
		t.Errorf("4 ms of work, quota 0.2, objective 75 ms: got %v requests per second, want 0", got)
	}
	if got := Worth(row(measured{workMS: 4, quota: 0.2, batch: 1}), 100); got < 5 || got > 50 {
		t.Errorf("4 ms of work, quota 0.2, objective 100 ms: got %v requests per second, want 5 to 50", got)
	}
	busy := profile.Row{Config: profile.Config{Quota: 1, Batch: 1}, ThroughputRPS: 50, P95MS: 2}
	if got := Worth(busy, 1000); got != 50 {
		t.Errorf("throughput measured below saturation: got %v requests per second, want the measured 50", got)
	}
}

// TestWorthWithMeasuredGoodput checks that a measured goodput is the worth for its objective, and a bound for
// other objectives.
func TestWorthWithMeasuredGoodput(t *testing.T) {
	r := row(measured{workMS: 10, quota: 1, batch: 1})
	r.GoodputKnown, r.GoodputRPS, r.SLOMS = true, 70, 60
	for _, c := range []struct{ slo, low, high float64 }{{60, 70, 70}, {62, 72, 80}, {50, 69, 70}, {20, 27, 30}, {1e6, 99, 100}} {
		if got := Worth(r, c.slo); got < c.low || got > c.high {
			t.Errorf("worth for an objective of %v ms: got %v requests a second, want %v to %v", c.slo, got, c.low, c.high)
		}
	}
	r.GoodputRPS = 90
	if got := Worth(r, 61); got != 90 {
		t.Errorf("objective 61 ms, goodput 90 for 60 ms: got %v requests per second, want 90", got)
	}
	if r.GoodputRPS = 0; Worth(r, 60) != 0 || Worth(r, 40) != 0 || Worth(r, 80) < 50 {
		t.Errorf("goodput 0 for 60 ms: got %v, %v and %v requests per second for 60, 40 and 80 ms, want 0, 0 and at least 50",
			Worth(r, 60), Worth(r, 40), Worth(r, 80))
	}
	r = row(measured{workMS: 10, quota: 1, batch: 1})
	slow := r
	slow.IdleP95MS = 30 // 20 ms more than the time on the GPU
	if got, want := Worth(slow, 60), Worth(r, 40); got != want {
		t.Errorf("idle latency 20 ms longer than the work: got %v requests per second, want %v", got, want)
	}
	if got := Worth(slow, 25); got != 0 || IdleLatency(slow) != 30 {
		t.Errorf("objective 25 ms, idle latency %v ms: got %v requests per second, want 0 and an idle latency of 30 ms", IdleLatency(slow), got)
	}
}

// TestHandedOver checks that an instance that is idle between two batches is worth the same as an instance whose
// work is longer by the idle time.
func TestHandedOver(t *testing.T) {
	for _, quota := range []float64{1, 0.4} {
		for _, batch := range []int{1, 8} {
			got, want := HandedOver(row(measured{workMS: 8, quota: quota, batch: batch}), 2), row(measured{workMS: 10, quota: quota, batch: batch})
			if a, b := Worth(got, 200), Worth(want, 200); math.Abs(a-b) > 2e-3 || a == 0 {
				t.Errorf("quota %v, batch %d: got a worth of %v, want %v", quota, batch, a, b)
			}
		}
	}
	r := row(measured{workMS: 8, quota: 1, batch: 1})
	r.GoodputRPS, r.SLOMS, r.GoodputKnown, r.IdleP95MS = 100, 50, true, 8
	if got := HandedOver(r, 2); got.GoodputRPS != 80 || got.IdleP95MS != 10 || Worth(got, 50) != 80 {
		t.Errorf("2 ms idle: got %+v with the worth %v, want a goodput of 80, an idle latency of 10 ms and the worth 80", got, Worth(got, 50))
	}
	if got := HandedOver(r, 0); got != r {
		t.Errorf("no idle time: got %+v, want %+v", got, r)
	}
}

// TestWorthGrowsWithObjective also checks that the worth never exceeds the throughput.
func TestWorthGrowsWithObjective(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := row(measured{workMS: rapid.Float64Range(0.1, 300).Draw(t, "work"), quota: rapid.Float64Range(0.05, 1).Draw(t, "quota"), batch: rapid.IntRange(1, 32).Draw(t, "batch")})
		a, b := rapid.Float64Range(0, 5000).Draw(t, "a"), rapid.Float64Range(0, 5000).Draw(t, "b")
		less, more := Worth(r, min(a, b)), Worth(r, max(a, b))
		if less > more*(1+1e-6) || more > r.ThroughputRPS || less < 0 || math.IsNaN(more) {
			t.Fatalf("got %v requests per second for %v ms and %v for %v ms, want no decrease and 0 to %v",
				less, min(a, b), more, max(a, b), r.ThroughputRPS)
		}
	})
}

// TestWorthAgainstSimulation compares the worth with a simulation that does not use the formulas: an instance
// that receives requests at that rate has a p95 of at most the objective, and not far below it.
func TestWorthAgainstSimulation(t *testing.T) {
	for _, c := range []struct {
		work, quota float64
		batch       int
		spare       float64 // largest ratio of the objective to the simulated latency
	}{
		{10, 1, 1, 1.03}, {10, 1, 4, 2.2}, {10, 1, 16, 2.2},
		{5, 0.5, 1, 1.45}, {13, 0.4, 1, 1.3}, {30, 0.4, 1, 1.3}, {80, 0.4, 1, 1.3},
		{9, 0.9, 1, 1.3}, {4.9, 0.9, 1, 1.3}, {17, 0.9, 1, 1.3}, {6.5, 0.8, 1, 1.3}, {20, 0.7, 1, 1.3}, {1, 0.9, 1, 1.6}, {40, 0.8, 4, 2},
		{5, 0.2, 1, 1.3}, {1, 0.2, 1, 1.65}, {20, 0.5, 8, 1.5}, {20, 0.5, 2, 1.5},
	} {
		for _, times := range []float64{1.02, 1.1, 1.2, 1.5, 2, 4, 8, 20} {
			r := row(measured{workMS: c.work, quota: c.quota, batch: c.batch})
			slo := times * IdleLatency(r)
			t.Run(fmt.Sprintf("%vms-%v-%d-x%v", c.work, c.quota, c.batch, times), func(t *testing.T) {
				rate := Worth(r, slo)
				got := simulate(r, c.work, rate)
				if got > slo*1.05 || got*c.spare < slo {
					t.Errorf("%.1f requests per second, throughput %.1f: got a p95 of %.1f ms, want %.1f to %.1f",
						rate, r.ThroughputRPS, got, slo/c.spare, slo*1.05)
				}
			})
		}
	}
}

// simulate returns the p95 latency in ms of an instance whose turn is at the beginning of each window. The
// instance serves up to a batch of requests at once, and needs the same time for any number of them.
func simulate(r profile.Row, work, rate float64) float64 {
	const requests = 300_000
	rng := splitmix.Source(1)
	arrival := make([]float64, requests)
	at := 0.0
	for i := range arrival {
		at += rng.Exponential() / rate * 1000
		arrival[i] = at
	}
	latency, free := make([]float64, 0, requests), 0.0
	for i := 0; i < requests; {
		start := turnStart(max(free, arrival[i]), r.Quota)
		n := 0
		for n < max(1, r.Batch) && i+n < requests && arrival[i+n] <= start {
			n++
		}
		free = finishTime(start, work, r.Quota)
		for ; n > 0; n-- {
			latency = append(latency, free-arrival[i])
			i++
		}
	}
	slices.Sort(latency)
	return latency[len(latency)*95/100]
}

// turnStart returns now if the instance has its turn then, and otherwise the start of its next turn.
func turnStart(now, quota float64) float64 {
	window := math.Floor(now/Window) * Window
	if now-window < quota*Window-1e-9 {
		return now
	}
	return window + Window
}

// finishTime returns the time at which work that starts within a turn is finished.
func finishTime(start, work, quota float64) float64 {
	for {
		remaining := math.Floor(start/Window)*Window + quota*Window - start
		if work <= remaining+1e-9 {
			return start + work
		}
		work -= remaining
		start = turnStart(start+remaining+1e-6, quota)
	}
}

func BenchmarkWorth(b *testing.B) {
	for _, quota := range []float64{0.4, 1} {
		b.Run(fmt.Sprint(quota), func(b *testing.B) {
			r := row(measured{workMS: 13, quota: quota, batch: 1})
			for b.Loop() {
				Worth(r, 200)
			}
		})
	}
}
