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

// row is a configuration that works through a batch in so many ms when it has
// the whole window.
func row(workMS, quota float64, batch int) profile.Row {
	rate := quota * float64(batch) * 1000 / workMS
	return profile.Row{Config: profile.Config{SMPct: 50, Quota: quota, Batch: batch}, ThroughputRPS: rate, P95MS: 1e6}
}

// The values are those of tables of M/D/1 (Crommelin 1932; here to four digits):
// P(W <= 1) at load 0.5 is 0.5 e^0.5, at twice the time 0.5 (e - 0.5 e^0.5).
func TestWaitingTimes(t *testing.T) {
	for _, c := range []struct{ load, wait, want float64 }{
		{0.3, 0, 0.7},
		{0.5, 1, 0.5 * math.Exp(0.5)},
		{0.5, 2, 0.5 * (math.E - 0.5*math.Exp(0.5))},
	} {
		if got := inTime(c.load, 0, c.wait); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("at load %v within %v service times: %v, expected %v", c.load, c.wait, got, c.want)
		}
	}
	for _, rate := range []float64{0.2, 0.8, 2} {
		load := decay(rate)
		near, far := inTime(load, rate, exactWaits), inTime(load, rate, exactWaits+1e-6)
		if math.Abs(near-far) > 1e-4 {
			t.Errorf("at load %v the sum says %v and the exponential %v", load, near, far)
		}
	}
}

func TestWorth(t *testing.T) {
	r := row(10, 1, 1)
	for _, c := range []struct{ slo, low, high float64 }{
		{9.9, 0, 0},    // below the latency at rest
		{10, 4.9, 5.1}, // nobody may wait: all but one in twenty must find it idle
		{20, 27, 30},
		{100, 84, 88},
		{1e7, 99.9, 100},
	} {
		if got := Worth(r, c.slo); got < c.low || got > c.high {
			t.Errorf("objective %v ms: %v requests a second, expected %v to %v", c.slo, got, c.low, c.high)
		}
	}
	if got := Worth(row(4, 0.2, 1), 75); got != 0 {
		t.Errorf("4 ms of work in a fifth of the window within 75 ms: %v requests a second, expected none", got)
	}
	if got := Worth(row(4, 0.2, 1), 100); got < 5 || got > 50 {
		t.Errorf("4 ms of work in a fifth of the window within 100 ms: %v requests a second, expected some", got)
	}
	busy := profile.Row{Config: profile.Config{Quota: 1, Batch: 1}, ThroughputRPS: 50, P95MS: 2}
	if got := Worth(busy, 1000); got != 50 {
		t.Errorf("measured at a rate below what it sustains: %v, expected the 50 that were measured", got)
	}
}

// What was measured counts for its objective, and bounds others.
func TestMeasured(t *testing.T) {
	r := row(10, 1, 1)
	r.GoodputKnown, r.GoodputRPS, r.SLOMS = true, 70, 60
	for _, c := range []struct{ slo, low, high float64 }{{60, 70, 70}, {62, 72, 80}, {50, 69, 70}, {20, 27, 30}, {1e6, 99, 100}} {
		if got := Worth(r, c.slo); got < c.low || got > c.high {
			t.Errorf("objective %v ms: %v requests a second, expected %v to %v", c.slo, got, c.low, c.high)
		}
	}
	r.GoodputRPS = 90
	if got := Worth(r, 61); got != 90 {
		t.Errorf("within 61 ms, 90 within 60: %v requests a second", got)
	}
	if r.GoodputRPS = 0; Worth(r, 60) != 0 || Worth(r, 40) != 0 || Worth(r, 80) < 50 {
		t.Errorf("none keeps to 60 ms: %v within 60, %v within 40, %v within 80", Worth(r, 60), Worth(r, 40), Worth(r, 80))
	}
	r = row(10, 1, 1)
	slow := r
	slow.IdleP95MS = 30 // 20 ms besides the GPU's
	if got, want := Worth(slow, 60), Worth(r, 40); got != want {
		t.Errorf("20 ms slower at rest: %v requests a second, expected %v", got, want)
	}
	if got := Worth(slow, 25); got != 0 || Rest(slow) != 30 {
		t.Errorf("within 25 ms of 30 at rest: %v requests a second", got)
	}
}

// What an instance is worth grows with the objective and stays below its
// throughput.
// An instance that waits for a while between two batches is worth what one is whose
// work takes so much longer.
func TestHandedOver(t *testing.T) {
	for _, quota := range []float64{1, 0.4} {
		for _, batch := range []int{1, 8} {
			got, want := HandedOver(row(8, quota, batch), 2), row(10, quota, batch)
			if a, b := Worth(got, 200), Worth(want, 200); math.Abs(a-b) > 2e-3 || a == 0 {
				t.Errorf("quota %v, batch %d: worth %v, expected %v", quota, batch, a, b)
			}
		}
	}
	r := row(8, 1, 1)
	r.GoodputRPS, r.SLOMS, r.GoodputKnown, r.IdleP95MS = 100, 50, true, 8
	if got := HandedOver(r, 2); got.GoodputRPS != 80 || got.IdleP95MS != 10 || Worth(got, 50) != 80 {
		t.Errorf("%+v, worth %v", got, Worth(got, 50))
	}
	if got := HandedOver(r, 0); got != r {
		t.Errorf("without one: %+v", got)
	}
}

func TestWorthGrows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := row(rapid.Float64Range(0.1, 300).Draw(t, "work"), rapid.Float64Range(0.05, 1).Draw(t, "quota"), rapid.IntRange(1, 32).Draw(t, "batch"))
		a, b := rapid.Float64Range(0, 5000).Draw(t, "a"), rapid.Float64Range(0, 5000).Draw(t, "b")
		less, more := Worth(r, min(a, b)), Worth(r, max(a, b))
		if less > more*(1+1e-6) || more > r.ThroughputRPS || less < 0 || math.IsNaN(more) {
			t.Fatalf("%v within %v ms, %v within %v, of %v", less, min(a, b), more, max(a, b), r.ThroughputRPS)
		}
	})
}

// An instance that is sent what it is worth answers 95% in time or all but, by a
// simulation that knows nothing of formulas, and is not worth much less than it
// could be.
func TestPromiseIsKept(t *testing.T) {
	for _, c := range []struct {
		work, quota float64
		batch       int
		spare       float64 // how much longer the objective may be than what is kept
	}{
		{10, 1, 1, 1.03}, {10, 1, 4, 2.2}, {10, 1, 16, 2.2},
		{5, 0.5, 1, 1.45}, {13, 0.4, 1, 1.3}, {30, 0.4, 1, 1.3}, {80, 0.4, 1, 1.3},
		{9, 0.9, 1, 1.3}, {4.9, 0.9, 1, 1.3}, {17, 0.9, 1, 1.3}, {6.5, 0.8, 1, 1.3}, {20, 0.7, 1, 1.3}, {1, 0.9, 1, 1.6}, {40, 0.8, 4, 2},
		{5, 0.2, 1, 1.3}, {1, 0.2, 1, 1.65}, {20, 0.5, 8, 1.5}, {20, 0.5, 2, 1.5},
	} {
		for _, times := range []float64{1.02, 1.1, 1.2, 1.5, 2, 4, 8, 20} {
			r := row(c.work, c.quota, c.batch)
			slo := times * Rest(r)
			t.Run(fmt.Sprintf("%vms-%v-%d-x%v", c.work, c.quota, c.batch, times), func(t *testing.T) {
				rate := Worth(r, slo)
				got := simulate(r, c.work, rate)
				if got > slo*1.05 || got*c.spare < slo {
					t.Errorf("%.1f of %.1f requests a second: p95 %.1f ms, objective %.1f", rate, r.ThroughputRPS, got, slo)
				}
			})
		}
	}
}

// simulate is the p95 latency in ms of an instance that has the first part of each
// window, takes up to a batch at once and finishes it in as much work, whatever
// its size.
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
		start := opens(max(free, arrival[i]), r.Quota)
		n := 0
		for n < max(1, r.Batch) && i+n < requests && arrival[i+n] <= start {
			n++
		}
		free = ends(start, work, r.Quota)
		for ; n > 0; n-- {
			latency = append(latency, free-arrival[i])
			i++
		}
	}
	slices.Sort(latency)
	return latency[len(latency)*95/100]
}

// opens is the first moment from at on in which the instance has its turn.
func opens(at, quota float64) float64 {
	window := math.Floor(at/Window) * Window
	if at-window < quota*Window-1e-9 {
		return at
	}
	return window + Window
}

// ends is when work begun at a moment of its turn is done.
func ends(at, work, quota float64) float64 {
	for {
		left := math.Floor(at/Window)*Window + quota*Window - at
		if work <= left+1e-9 {
			return at + work
		}
		work -= left
		at = opens(at+left+1e-6, quota)
	}
}

func BenchmarkWorth(b *testing.B) {
	for _, quota := range []float64{0.4, 1} {
		b.Run(fmt.Sprint(quota), func(b *testing.B) {
			r := row(13, quota, 1)
			for b.Loop() {
				Worth(r, 200)
			}
		})
	}
}
