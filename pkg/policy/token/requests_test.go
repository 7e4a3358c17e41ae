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

// backlogged describes clients that never stop. Each needs the whole GPU, and its kernels run to
// their ends.
type backlogged struct {
	window   time.Duration
	requests []float64
	limit    float64 // limit of all clients; 0: their request
	kernels  []time.Duration
	loss     time.Duration // cost of a hand-over
}

// run simulates the time d and returns the total use of each client at the end of each window.
func (b backlogged) run(t testing.TB, d time.Duration) (used [][]time.Duration, w *leasedGPU) {
	w = newLeasedGPU(t, Config{Settings: Settings{Window: b.window}}, 1)
	w.lag = 50 * time.Microsecond
	used = make([][]time.Duration, len(b.requests))
	for n, q := range b.requests {
		w.add(&simClient{
			id: ClientID(n + 1), instance: string(rune('a' + n)), slice: slice(100, q, max(q, b.limit)),
			kernel: b.kernels[n], fixedKernels: true, loss: b.loss,
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

// shortfall returns the largest amount by which a client falls short of its request over any run of
// consecutive windows, as a fraction of that time.
func shortfall(used []time.Duration, request float64, window time.Duration, windows int) (most float64) {
	for n := windows; n < len(used); n++ {
		most = max(most, request-(used[n]-used[n-windows]).Seconds()/(time.Duration(windows)*window).Seconds())
	}
	return most
}

// equal returns n equal requests.
func equal(n int, request float64) []float64 { return slices.Repeat([]float64{request}, n) }

// mixtures returns lists with one kernel length per client: all but one equal, and all different.
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

// TestRequestsHold checks that a client that never stops receives its request, whatever the kernels
// of its neighbours, if the requests sum to at most one GPU. The tolerance is 1% over a hundred
// windows. Over ten consecutive windows, it is 1% plus its own kernel and half of the longest kernel,
// because kernels cannot be interrupted; it is twice that for windows below 100 ms. The check over
// ten windows requires windows that are longer than all kernels.
func TestRequestsHold(t *testing.T) {
	for _, requests := range [][]float64{
		{0.8, 0.1}, {0.5, 0.2}, equal(8, 0.1), {0.8, 0.2}, {0.6, 0.3, 0.05},
		equal(2, 1./2), equal(3, 1./3), equal(4, 1./4), equal(5, 1./5), equal(6, 1./6), equal(7, 1./7), equal(8, 1./8),
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
							if got := shortfall(used[n], q, window, int(10*time.Second/window)); got > 0.01 {
								t.Errorf("kernels %v: client %d is %.4f short of its request %.3f over 10s, want at most 0.01", kernels, n+1, got, q)
							}
							allowed := 0.01 + (kernels[n]+slices.Max(kernels)/2).Seconds()/(10*window).Seconds()
							if window < 100*ms {
								allowed *= 2
							}
							if got := shortfall(used[n], q, window, 10); window > slices.Max(kernels) && got > allowed {
								t.Errorf("kernels %v: client %d is %.4f short of its request %.3f over ten windows, want at most %.4f", kernels, n+1, got, q, allowed)
							}
							if got := used[n][len(used[n])-1].Seconds() / 11; limit == 0 && got > q+0.01 {
								t.Errorf("kernels %v: client %d used %.4f of the GPU, want at most its limit %.3f + 0.01", kernels, n+1, got, q)
							}
						}
					}
				})
			}
		}
	}
}

// TestRequestsHoldInTurns checks the same if each client has a planned turn of the length of its
// request, into which a neighbour's kernel may run.
func TestRequestsHoldInTurns(t *testing.T) {
	for _, requests := range [][]float64{{0.8, 0.1}, {0.8, 0.2}, {0.5, 0.5}, {0.5, 0.2}} {
		for _, kernels := range mixtures(2) {
			for _, limit := range []float64{0, 1} {
				w := newLeasedGPU(t, Config{}, 1)
				from := 0.0
				for n, q := range requests {
					w.add(&simClient{
						id: ClientID(n + 1), instance: string(rune('a' + n)), slice: slice(100, q, max(q, limit)),
						turns: rect{x: from, w: q}.turns(), kernel: kernels[n], fixedKernels: true,
					})
					from += q
				}
				w.run(20 * time.Second)
				for n, q := range requests {
					if got := w.total(w.clients[ClientID(n+1)]).Seconds() / 20; got < q-0.01 {
						t.Errorf("requests %v, limit %v, kernels %v: client %d used %.4f of the GPU, want at least %.4f", requests, limit, kernels, n+1, got, q-0.01)
					}
				}
			}
		}
	}
}

// TestSmallClientDoesNotPassLargeOne checks that a client with long kernels that has had its request
// does not pass a waiting client that needs all SMs, although it fits next to the running client.
func TestSmallClientDoesNotPassLargeOne(t *testing.T) {
	w := newLeasedGPU(t, Config{}, 1)
	for n, sm := range []float64{100, 6, 6} {
		kernel := []time.Duration{50 * time.Microsecond, 5 * ms, 50 * ms}[n]
		w.add(&simClient{id: ClientID(n + 1), instance: string(rune('a' + n)), slice: slice(sm, 0.3, 1), kernel: kernel, fixedKernels: true})
	}
	w.run(20 * time.Second)
	for _, c := range w.clients {
		if got := w.total(c).Seconds() / 20; got < 0.3-0.03 {
			t.Errorf("client %d used %.4f of the GPU, want its request 0.3 - 0.03 at least", c.id, got)
		}
	}
}

// TestPausesDoNotForgiveOveruse checks that a client with long kernels still owes its overuse if it
// pauses for a moment after each kernel.
func TestPausesDoNotForgiveOveruse(t *testing.T) {
	for _, gap := range []time.Duration{ms, 3 * ms, 20 * ms} {
		w := newLeasedGPU(t, Config{}, 1)
		a := w.add(&simClient{id: 1, instance: "a", slice: slice(100, 0.8, 1), kernel: 5 * ms, fixedKernels: true})
		w.add(&simClient{id: 2, instance: "b", slice: slice(100, 0.1, 1), kernel: 50 * ms, fixedKernels: true, burst: 50 * ms, gap: gap})
		w.run(20 * time.Second)
		if got := w.total(a).Seconds() / 20; got < 0.79 {
			t.Errorf("pauses of %v: the other client used %.4f of the GPU, want at least 0.79", gap, got)
		}
	}
}

// drawBacklogged draws clients whose requests sum to at most the given part of a GPU.
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

// TestRequestsHoldForAnyMixture checks the same as TestRequestsHold for random requests and kernels.
func TestRequestsHoldForAnyMixture(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := drawBacklogged(rt, 1)
		const long = 10 * time.Second
		used, _ := b.run(t, long)
		for n, q := range b.requests {
			got := used[n][len(used[n])-1].Seconds() / long.Seconds()
			if got < q-0.01 || b.limit == 0 && got > q+0.01 {
				rt.Fatalf("client %d of %+v used %.4f of the GPU, want its request %.4f within 0.01 (beyond it only with a limit)", n+1, b, got, q)
			}
		}
	})
}
