package planned

import (
	"math"
	"testing"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/number"
)

// shared returns a simulation of two instances on all SMs under TGS, with batches of 10 ms.
func shared(f, g []float64) Config {
	all := gpu.Slice{SMPct: 100, QuotaRequest: 1, QuotaLimit: 1}
	c := metered(map[string][]float64{"f": f, "g": g}, elastic("f", all), elastic("g", all))
	c.Policy = TGS
	return c
}

// every returns arrivals every ms milliseconds from start until end, in ms.
func every(ms, start, end float64) (at []float64) {
	for t := start; t < end; t += ms {
		at = append(at, t)
	}
	return at
}

// slowTGS is a simple twin of TGS: it returns the share of the opportunistic instance after each tenth of a
// second, for the numbers of answers of the productive function in these.
func slowTGS(answers []int) (shares []float64) {
	share, last := 0.0, 0
	for _, n := range answers {
		if 10*n < 9*last {
			share *= 0.5
		} else if share += 0.01; share > 1 {
			share = 1
		}
		last = n
		shares = append(shares, share)
	}
	return shares
}

// TestTGSMatchesTwin compares the work that an opportunistic instance gets, next to an idle productive one
// and next to one whose load ends at times, with the shares of the twin.
func TestTGSMatchesTwin(t *testing.T) {
	const tenths = 30 // up to a share of 0.3, the productive instance completes its batches within the tenth of a second
	for name, load := range map[string]func(tenth int) int{
		"idle":     func(int) int { return 0 },
		"half":     func(int) int { return 5 },
		"on, off":  func(tenth int) int { return 5 * (tenth / 4 % 2) },
		"each one": func(tenth int) int { return 4 * (tenth % 2) },
	} {
		var f []float64
		answers := make([]int, tenths)
		for i := range answers {
			answers[i] = load(i)
			f = append(f, every(20, float64(100*i), float64(100*i+20*answers[i]))...)
		}
		f = append(f, 100*tenths) // ends the run
		want := 0.0
		for _, share := range slowTGS(answers)[:tenths-1] {
			want += share * 0.1 / 0.01 // batches of 10 ms in a tenth of a second
		}
		c := shared(f, make([]float64, 10_000))
		if got := Simulate(c)["g"].ServedRPS * 0.1 * tenths; math.Abs(got-want) > 1.5 {
			t.Errorf("%s: got %.1f batches of the opportunistic instance, want %.1f", name, got, want)
		}
	}
}

// TestTGSIsTransparent checks that the productive instance hardly notices an opportunistic one that always
// has work: with random arrivals, its rate falls often, and the share stays small.
func TestTGSIsTransparent(t *testing.T) {
	f := poisson(30, 3000, 1)
	alone, with := Simulate(shared(f, nil)), Simulate(shared(f, make([]float64, 100_000)))
	if a, b := number.Quantile(alone["f"].Latencies, 0.95), number.Quantile(with["f"].Latencies, 0.95); b > 1.1*a {
		t.Errorf("p95 next to an opportunistic instance: got %.1f ms, want at most 10%% more than %.1f ms alone", b, a)
	}
	if got := with["g"].ServedRPS; got > 10 || got == 0 {
		t.Errorf("opportunistic instance: got %.1f batches/s, want a few of 100", got)
	}
}

// TestServedRPS counts answers up to the last arrival: of 300 requests at the same time, 100 have
// been answered after a second.
func TestServedRPS(t *testing.T) {
	c := Config{GPUs: [][]Instance{{wholeGPU(10, 1)}}, Arrivals: map[string][]float64{"f": append(make([]float64, 299), 1000)}, Routing: Least, WindowMS: 100}
	if got := Simulate(c)["f"].ServedRPS; got != 100 {
		t.Errorf("got %v answers/s, want 100", got)
	}
}
