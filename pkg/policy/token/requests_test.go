package token

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// backlogged are clients that never stop. Each needs the whole GPU, and its kernels run
// to their ends.
type backlogged struct {
	window   time.Duration
	requests []float64
	limit    float64 // of all; 0 is the request
	kernels  []time.Duration
	loss     time.Duration // of a hand-over
}

// run lets so much time pass and returns what each had used at the end of each window.
func (b backlogged) run(t testing.TB, d time.Duration) (used [][]time.Duration, w *leasedGPU) {
	w = newLeasedGPU(t, Config{Window: b.window}, 1)
	w.lag = 50 * time.Microsecond
	used = make([][]time.Duration, len(b.requests))
	for n, q := range b.requests {
		w.join(&worker{
			id: ClientID(n + 1), instance: string(rune('a' + n)), slice: slice(100, q, max(q, b.limit)),
			kernel: b.kernels[n], whole: true, loss: b.loss,
		})
	}
	for at := time.Duration(0); at <= d; at += b.window {
		w.run(at)
		for n := range used {
			used[n] = append(used[n], w.total(w.clients[ClientID(n+1)]))
		}
	}
	return used, w
}

// short returns the most that a client is short of its request over so many windows in a
// row, wherever they begin, as a part of that time.
func short(used []time.Duration, request float64, window time.Duration, windows int) (most float64) {
	for n := windows; n < len(used); n++ {
		most = max(most, request-(used[n]-used[n-windows]).Seconds()/(time.Duration(windows)*window).Seconds())
	}
	return most
}

func alike(n int, request float64) []float64 { return slices.Repeat([]float64{request}, n) }

// mixtures are kernels of so many clients: one unlike the others, and all unlike.
func mixtures(clients int) (all [][]time.Duration) {
	kernels := []time.Duration{50 * time.Microsecond, ms / 2, 5 * ms, 20 * ms, 50 * ms}
	for _, most := range []time.Duration{kernels[0], kernels[2], kernels[4]} {
		for _, one := range kernels {
			all = append(all, append(slices.Repeat([]time.Duration{most}, clients-1), one))
		}
	}
	unlike := make([]time.Duration, clients)
	for n := range unlike {
		unlike[n] = kernels[n%len(kernels)]
	}
	all = append(all, unlike, slices.Clone(unlike))
	slices.Reverse(all[len(all)-1])
	return all
}

// TestRequestsHold: whatever its neighbours' kernels are, a client that never stops gets
// its request, where the requests sum to one GPU at most: to within a point over a hundred
// windows, and over ten in a row to within a point, a kernel of its own and half of
// another's, which cannot be cut short. Windows shorter than kernels hold it as long.
func TestRequestsHold(t *testing.T) {
	for _, requests := range [][]float64{
		{0.8, 0.1}, {0.5, 0.2}, alike(8, 0.1), {0.8, 0.2}, {0.6, 0.3, 0.05},
		alike(2, 1./2), alike(3, 1./3), alike(4, 1./4), alike(5, 1./5), alike(6, 1./6), alike(7, 1./7), alike(8, 1./8),
	} {
		for _, window := range []time.Duration{10 * ms, 100 * ms} {
			for _, limit := range []float64{0, 1} {
				name := strings.ReplaceAll(fmt.Sprintf("%.3v of %v limit %v", requests, window, limit), " ", "_")
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					for _, kernels := range mixtures(len(requests)) {
						b := backlogged{window: window, requests: requests, limit: limit, kernels: kernels}
						used, _ := b.run(t, 11*time.Second)
						for n, q := range requests {
							if got := short(used[n], q, window, int(10*time.Second/window)); got > 0.01 {
								t.Errorf("kernels %v: client %d is %.4f short of %.3f in 10s", kernels, n+1, got, q)
							}
							allowed := 0.01 + (kernels[n]+slices.Max(kernels)/2).Seconds()/(10*window).Seconds()
							if window < 100*ms {
								allowed *= 2
							}
							if got := short(used[n], q, window, 10); window > slices.Max(kernels) && got > allowed {
								t.Errorf("kernels %v: client %d is %.4f short of %.3f in ten windows, want %.4f at most", kernels, n+1, got, q, allowed)
							}
							if got := used[n][len(used[n])-1].Seconds() / 11; limit == 0 && got > q+0.01 {
								t.Errorf("kernels %v: client %d used %.4f of its limit %.3f", kernels, n+1, got, q)
							}
						}
					}
				})
			}
		}
	}
}

// TestRequestsHoldInTurns: the same where each has a turn of its request's length, which a
// neighbour's kernel runs into.
func TestRequestsHoldInTurns(t *testing.T) {
	for _, requests := range [][]float64{{0.8, 0.1}, {0.8, 0.2}, {0.5, 0.5}, {0.5, 0.2}} {
		for _, kernels := range mixtures(2) {
			for _, limit := range []float64{0, 1} {
				w := newLeasedGPU(t, Config{}, 1)
				from := 0.0
				for n, q := range requests {
					w.join(&worker{
						id: ClientID(n + 1), instance: string(rune('a' + n)), slice: slice(100, q, max(q, limit)),
						turns: rect{x: from, w: q}.turns(), kernel: kernels[n], whole: true,
					})
					from += q
				}
				w.run(20 * time.Second)
				for n, q := range requests {
					if got := w.total(w.clients[ClientID(n+1)]).Seconds() / 20; got < q-0.01 {
						t.Errorf("requests %v, limit %v, kernels %v: client %d used %.4f", requests, limit, kernels, n+1, got)
					}
				}
			}
		}
	}
}

// TestLongKernelBesideASmallOne: one that has had its request and whose kernels are long does
// not pass one that needs the whole GPU, though it fits beside the one that runs.
func TestLongKernelBesideASmallOne(t *testing.T) {
	w := newLeasedGPU(t, Config{}, 1)
	for n, sm := range []float64{100, 6, 6} {
		kernel := []time.Duration{50 * time.Microsecond, 5 * ms, 50 * ms}[n]
		w.join(&worker{id: ClientID(n + 1), instance: string(rune('a' + n)), slice: slice(sm, 0.3, 1), kernel: kernel, whole: true})
	}
	w.run(20 * time.Second)
	for _, c := range w.clients {
		if got := w.total(c).Seconds() / 20; got < 0.3-0.03 {
			t.Errorf("client %d used %.4f of 0.3", c.id, got)
		}
	}
}

// TestPausesForgiveNothing: one with long kernels that wants nothing for a moment after each
// owes what it used all the same.
func TestPausesForgiveNothing(t *testing.T) {
	for _, gap := range []time.Duration{ms, 3 * ms, 20 * ms} {
		w := newLeasedGPU(t, Config{}, 1)
		a := w.join(&worker{id: 1, instance: "a", slice: slice(100, 0.8, 1), kernel: 5 * ms, whole: true})
		w.join(&worker{id: 2, instance: "b", slice: slice(100, 0.1, 1), kernel: 50 * ms, whole: true, burst: 50 * ms, gap: gap})
		w.run(20 * time.Second)
		if got := w.total(a).Seconds() / 20; got < 0.79 {
			t.Errorf("pauses of %v: the other used %.4f of 0.8", gap, got)
		}
	}
}

// drawBacklogged draws clients whose requests sum to so much of a GPU at most.
func drawBacklogged(t *rapid.T, most float64) backlogged {
	b := backlogged{window: rapid.SampledFrom([]time.Duration{10 * ms, 40 * ms, 100 * ms, 200 * ms}).Draw(t, "window")}
	sum := 0.0
	for range rapid.IntRange(2, 8).Draw(t, "clients") {
		b.requests = append(b.requests, rapid.Float64Range(0.05, 1).Draw(t, "request"))
		b.kernels = append(b.kernels, time.Duration(50e3*math.Pow(1000, rapid.Float64Range(0, 1).Draw(t, "kernel"))))
		sum += b.requests[len(b.requests)-1]
	}
	all := rapid.Float64Range(0.4, most).Draw(t, "all")
	for n := range b.requests {
		b.requests[n] *= all / sum
	}
	if rapid.Bool().Draw(t, "elastic") {
		b.limit = 1
	}
	return b
}

// TestRequestsHoldForAnyMixture: the same for any requests and kernels.
func TestRequestsHoldForAnyMixture(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := drawBacklogged(rt, 1)
		const long = 10 * time.Second
		used, _ := b.run(t, long)
		for n, q := range b.requests {
			got := used[n][len(used[n])-1].Seconds() / long.Seconds()
			if got < q-0.01 || b.limit == 0 && got > q+0.01 {
				rt.Fatalf("client %d of %+v used %.4f", n+1, b, got)
			}
		}
	})
}
