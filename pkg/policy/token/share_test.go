package token

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// TestShares runs saturating clients for ten seconds and compares each client's GPU time with the time
// expected for its quota.
func TestShares(t *testing.T) {
	type clientSpec struct {
		sm, request, limit, want float64
	}
	third := 1.0 / 3
	for _, tt := range []struct {
		name    string
		kernel  time.Duration
		loss    time.Duration
		within  float64
		clients []clientSpec
	}{
		{"whole GPU, no loss", 0, 0, 0.001, []clientSpec{{100, 0.2, 0.2, 0.2}, {100, 0.3, 0.3, 0.3}, {100, 0.5, 0.5, 0.5}}},
		{"whole GPU, switches cost", ms / 2, 300 * time.Microsecond, 0.01, []clientSpec{{100, 0.2, 0.2, 0.2}, {100, 0.3, 0.3, 0.3}, {100, 0.5, 0.5, 0.5}}},
		{"whole GPU, long kernels", 10 * ms, 300 * time.Microsecond, 0.01, []clientSpec{{100, 0.2, 0.2, 0.2}, {100, 0.3, 0.3, 0.3}, {100, 0.5, 0.5, 0.5}}},
		{"whole GPU, long kernels, elastic", 10 * ms, 300 * time.Microsecond, 0.02, []clientSpec{{100, 0.2, 1, 0.2}, {100, 0.3, 1, 0.3}, {100, 0.5, 1, 0.5}}},
		// Two hand-overs per window take 2% of the GPU, and three take 3%.
		{"hand-overs of 1ms, elastic", 4 * ms, ms, 0.005, []clientSpec{{100, 0.3, 1, 0.98 * 3 / 8}, {100, 0.5, 1, 0.98 * 5 / 8}}},
		{"hand-overs of 1ms, three elastic", 4 * ms, ms, 0.005, []clientSpec{{100, 0.2, 1, 0.97 * 4 / 16}, {100, 0.25, 1, 0.97 * 5 / 16}, {100, 0.35, 1, 0.97 * 7 / 16}}},
		{"hand-overs of 1ms, one limited", 4 * ms, ms, 0.015, []clientSpec{{100, 0.25, 0.25, 0.25}, {100, 0.2, 1, 0.72 * 2 / 5}, {100, 0.3, 1, 0.72 * 3 / 5}}},
		{"hand-overs of 1ms, small requests", 4 * ms, ms, 0.005, []clientSpec{{100, 0.1, 1, 0.98 * 1 / 5}, {100, 0.4, 1, 0.98 * 4 / 5}}},
		{"alone up to its limit", 5 * ms, 300 * time.Microsecond, 0.005, []clientSpec{{100, 0.3, 0.8, 0.8}}},
		{"alone, equal quotas", 5 * ms, 300 * time.Microsecond, 0.005, []clientSpec{{24, 0.2, 0.2, 0.2}}},
		{"alone, tiny quota", 10 * ms, 300 * time.Microsecond, 0.002, []clientSpec{{24, 0.02, 0.02, 0.02}}},
		{"side by side", 5 * ms, 300 * time.Microsecond, 0.01, []clientSpec{{24, 1, 1, 1}, {24, 0.6, 0.6, 0.6}, {50, 0.4, 0.4, 0.4}}},
		{"two of 60%", 5 * ms, 300 * time.Microsecond, 0.02, []clientSpec{{60, 0.5, 0.5, 0.5}, {60, 0.5, 0.5, 0.5}}},
		{"rest goes to the elastic one", ms, 0, 0.02, []clientSpec{{100, 0.3, 0.3, 0.3}, {100, 0.2, 1, 0.7}}},
		{"three of 40%", ms, 0, 0.03, []clientSpec{{40, 0.6, 0.6, 0.6}, {40, 0.6, 0.6, 0.6}, {40, 0.6, 0.6, 0.6}}},
		{"overcommitted alike", ms, 0, 0.02, []clientSpec{{100, 0.5, 0.5, third}, {100, 0.5, 0.5, third}, {100, 0.5, 0.5, third}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newLeasedGPU(t, Config{}, 1)
			w.lag = ms / 5
			for n, c := range tt.clients {
				w.add(&simClient{
					id: ClientID(n + 1), instance: string(rune('a' + n)), slice: slice(c.sm, c.request, c.limit),
					kernel: tt.kernel, loss: tt.loss,
				})
			}
			w.run(10 * time.Second)
			for n, c := range tt.clients {
				k := w.clients[ClientID(n+1)]
				got := w.total(k).Seconds() / 10
				t.Logf("sm %v quota %v:%v used %.4f, longest wait %v, asked back %d times", c.sm, c.request, c.limit, got, k.longest, k.revoked)
				if math.Abs(got-c.want) > tt.within {
					t.Errorf("client %d used %.4f of the GPU, want %.3f within %.3f", n+1, got, c.want, tt.within)
				}
			}
		})
	}
}

// TestSharesWithOddQuotasAndAnyWindow checks quotas that sum to the whole GPU in fractions that do not
// divide a window. Shares are exact to 1% for every window length, if hand-overs take a small part of it.
func TestSharesWithOddQuotasAndAnyWindow(t *testing.T) {
	for window, kernel := range map[time.Duration]time.Duration{10 * ms: ms / 10, 100 * ms: ms, time.Second: 10 * ms} {
		for _, quotas := range [][]float64{
			{0.1, 0.9}, {0.01, 0.99}, {0.2, 0.3, 0.5}, {1. / 3, 1. / 3, 1. / 3}, {1. / 7, 2. / 7, 4. / 7}, {0.137, 0.263, 0.6},
		} {
			w := newLeasedGPU(t, Config{Settings: Settings{Window: window}}, 1)
			w.lag = kernel / 2
			for n, q := range quotas {
				w.add(&simClient{
					id: ClientID(n + 1), instance: string(rune('a' + n)), slice: slice(100, q, q), kernel: kernel, loss: kernel / 2,
				})
			}
			w.run(100 * window)
			for n, q := range quotas {
				got := w.total(w.clients[ClientID(n+1)]).Seconds() / (100 * window).Seconds()
				if math.Abs(got-q) > 0.01 {
					t.Errorf("window %v, quotas %.3f: client %d used %.4f of the GPU, want %.4f ± 0.01", window, quotas, n+1, got, q)
				}
			}
		}
	}
}

// TestMissedTimeIsPaidOnce checks that the time that instance a misses, because it needs all SMs, is
// paid once: by b, which has more than its request, and not again by a and c.
func TestMissedTimeIsPaidOnce(t *testing.T) {
	const request = 0.85 / 3 // 6 turns and a remainder that does not justify a hand-over
	w := newLeasedGPU(t, Config{}, 1)
	a := w.add(&simClient{id: 1, instance: "a", slice: slice(100, request, request)})
	w.add(&simClient{id: 2, instance: "b", slice: slice(6, request, 1)})
	w.add(&simClient{id: 3, instance: "b", slice: slice(6, request, 1)})
	w.add(&simClient{id: 4, instance: "c", slice: slice(6, request/2, request/2), announceLead: 1})
	w.run(10 * time.Second)
	if got := w.total(a).Seconds() / 10; math.Abs(got-request) > 0.003 {
		t.Errorf("instance a used %.4f of the GPU, want %.4f ± 0.003", got, request)
	}
}

// TestChangedSliceTakesEffectWithinWindow checks that a slice changed during a lease takes effect
// within a window, up or down, and a new window length likewise.
func TestChangedSliceTakesEffectWithinWindow(t *testing.T) {
	w := newLeasedGPU(t, Config{}, 1)
	w.lag = ms / 5
	a := w.add(&simClient{id: 1, instance: "a", slice: slice(100, 0.9, 0.9), kernel: ms})
	b := w.add(&simClient{id: 2, instance: "b", slice: slice(100, 0.1, 0.1), kernel: ms})
	for _, change := range []struct {
		a, b   float64
		window time.Duration
	}{{0.9, 0.1, 100 * ms}, {0.2, 0.7, 100 * ms}, {0.6, 0.3, 50 * ms}, {0.1, 0.9, 200 * ms}} {
		w.step(Configure{Settings{Window: change.window}})
		w.step(AddInstance{Instance: "a", Slice: slice(100, change.a, change.a)})
		w.step(AddInstance{Instance: "b", Slice: slice(100, change.b, change.b)})
		beforeA, beforeB := w.total(a), w.total(b)
		w.run(w.now + 10*time.Second)
		for n, got := range []time.Duration{w.total(a) - beforeA, w.total(b) - beforeB} {
			want := []float64{change.a, change.b}[n]
			if off := got.Seconds() - 10*want; math.Abs(off) > change.window.Seconds() {
				t.Errorf("%+v: client %d used %v in 10s, want %.1fs ± %v", change, n+1, got, 10*want, change.window)
			}
		}
	}
}

// TestQuotaSmallerThanHandoverCost checks that a client whose quota per window does not justify a
// hand-over accumulates it and receives it later.
func TestQuotaSmallerThanHandoverCost(t *testing.T) {
	for _, window := range []time.Duration{ms, 10 * ms, 100 * ms} {
		quota := (7 * time.Microsecond).Seconds() / window.Seconds()
		w := newLeasedGPU(t, Config{Settings: Settings{Window: window}}, 1)
		small := w.add(&simClient{id: 1, instance: "a", slice: slice(100, quota, quota), kernel: 5 * time.Microsecond})
		w.add(&simClient{id: 2, instance: "b", slice: slice(100, 0.9, 0.9), kernel: 5 * time.Microsecond})
		w.run(1000 * window)
		if got := w.total(small).Seconds() / (1000 * window).Seconds(); math.Abs(got/quota-1) > 0.1 {
			t.Errorf("window %v: the client used %.6f of the GPU, want %.6f ± 10%%", window, got, quota)
		}
	}
}

// TestSharesWithIdleAndSaturatingClients runs 256 clients, of which 32 saturate the GPU.
func TestSharesWithIdleAndSaturatingClients(t *testing.T) {
	w := newLeasedGPU(t, Config{}, 1)
	w.lag = ms / 5
	for n := range 256 {
		c := &simClient{id: ClientID(n + 1), instance: fmt.Sprint("i", n), slice: slice(100, 0.03, 0.03), kernel: ms / 10, loss: ms / 20}
		if n%8 > 0 {
			c.burst, c.gap = ms/10, time.Duration(50+n)*ms // hardly ever active
			c.slice = slice(100, 0.001, 0.03)
		}
		w.add(c)
	}
	w.run(5 * time.Second)
	for n := 0; n < 256; n += 8 {
		if got := w.total(w.clients[ClientID(n+1)]).Seconds() / 5; math.Abs(got-0.03) > 0.01 {
			t.Errorf("client %d used %.4f of the GPU, want 0.03 ± 0.01", n+1, got)
		}
	}
}

func TestLoneClientWithWholeQuotaKeepsLease(t *testing.T) {
	w := newLeasedGPU(t, Config{}, 1)
	w.lag = 3 * ms
	c := w.add(&simClient{id: 1, instance: "a", slice: slice(100, 1, 1), kernel: ms})
	w.run(5 * time.Second)
	if c.revoked != 0 || w.total(c) != 5*time.Second {
		t.Errorf("got %d revocations (%q) and %v of GPU time, want none and 5s", c.revoked, c.reasons, w.total(c))
	}
}

// TestLoneClientKeepsLeaseAtEndOfWindow checks that the lease is not revoked either if a timer fires
// just before the end of a window.
func TestLoneClientKeepsLeaseAtEndOfWindow(t *testing.T) {
	for remaining := time.Duration(0); remaining < 2*negligible; remaining += negligible / 4 {
		s := newMultiToken(Config{}, 0)
		s.Step(0, []Event{AddInstance{Instance: "a", Slice: slice(100, 1, 1)}, AddClient{1, "a"}, Request{1}}, nil)
		for _, a := range s.Step(3*s.window-remaining, []Event{Wake{}}, nil) {
			if revoke, ok := a.(Revoke); ok {
				t.Errorf("timer %v before the window's end: the lease is revoked (%s), want no revocation", remaining, revoke.Reason)
			}
		}
	}
}

func TestTwoProcessesShareOneQuota(t *testing.T) {
	w := newLeasedGPU(t, Config{}, 1)
	a := w.add(&simClient{id: 1, instance: "a", slice: slice(20, 0.5, 0.5), kernel: ms})
	b := w.add(&simClient{id: 2, instance: "a", slice: slice(20, 0.5, 0.5), kernel: ms})
	w.run(10 * time.Second)
	sum := (w.total(a) + w.total(b)).Seconds() / 10
	if math.Abs(sum-0.5) > 0.005 || math.Abs((w.total(a)-w.total(b)).Seconds()) > 0.2 {
		t.Errorf("the processes used %v and %v in 10s, want a sum of 5s ± 0.05s and a difference of at most 0.2s", w.total(a), w.total(b))
	}
}

func TestProcessesThatDoNotFitTogetherTakeTurns(t *testing.T) {
	w := newLeasedGPU(t, Config{}, 1)
	a := w.add(&simClient{id: 1, instance: "a", slice: slice(60, 1, 1), kernel: ms})
	b := w.add(&simClient{id: 2, instance: "a", slice: slice(60, 1, 1), kernel: ms})
	w.run(10 * time.Second)
	if d := (w.total(a) - w.total(b)).Seconds(); math.Abs(d) > 0.3 || w.total(a) < 4*time.Second {
		t.Errorf("the processes used %v and %v in 10s, want a difference of at most 0.3s and at least 4s for the first", w.total(a), w.total(b))
	}
}

// timeToCloseWindow returns the shortest measured time for closing a window in which n clients have
// waited.
func timeToCloseWindow(n int) time.Duration {
	s := newMultiToken(Config{}, 0)
	for k := range n {
		id, name := ClientID(k+1), fmt.Sprint("i", k)
		s.Step(0, []Event{AddInstance{Instance: name, Slice: slice(100, 1/float64(n), 1)}, AddClient{id, name}, Request{id}}, nil)
	}
	best := time.Hour
	for range 100 { // on a busy host most measurements are interrupted
		began := time.Now()
		s.closeWindow(s.start + s.window)
		best = min(best, time.Since(began))
	}
	return best
}

// TestTimeToCloseWindowGrowsQuadratically checks that the time to close a window grows 16-fold, and
// not 64-fold, from 100 to 400 waiting clients. Otherwise, closing a window with some hundreds of
// clients would take longer than the window itself.
func TestTimeToCloseWindowGrowsQuadratically(t *testing.T) {
	few, many := timeToCloseWindow(100), timeToCloseWindow(400)
	t.Logf("%v with 100, %v with 400", few, many)
	if ratio := float64(many) / float64(few); ratio > 40 {
		t.Errorf("closing a window with 400 clients takes %.0f times as long as with 100, want at most 40 times", ratio)
	}
}

// TestSharesOfSeveralClients checks that an instance with several clients gets the share of its request if hand-overs
// are so costly that a round is as long as a window.
func TestSharesOfSeveralClients(t *testing.T) {
	w := newLeasedGPU(t, Config{}, 1)
	for n := range 4 {
		c := &simClient{id: ClientID(n + 1), instance: "a", slice: slice(100, 0.3, 1), kernel: 4 * ms, loss: ms}
		if n == 3 {
			c.instance, c.slice = "b", slice(100, 0.5, 1)
		}
		w.add(c)
	}
	w.run(30 * time.Second)
	a := w.total(w.clients[1]) + w.total(w.clients[2]) + w.total(w.clients[3])
	b := w.total(w.clients[4])
	if got := a.Seconds() / (a + b).Seconds(); math.Abs(got-3./8) > 0.01 {
		t.Errorf("the instance with three clients used %.4f of the time, want 0.375 ± 0.01", got)
	}
}
