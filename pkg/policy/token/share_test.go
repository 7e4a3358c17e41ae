package token

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// TestShares runs saturating clients for ten seconds and compares what each
// used of the GPU with what its quota says.
func TestShares(t *testing.T) {
	type who struct {
		sm, request, limit, want float64
	}
	third := 1.0 / 3
	for _, tt := range []struct {
		name    string
		kernel  time.Duration
		loss    time.Duration
		within  float64
		clients []who
	}{
		{"whole GPU, no loss", 0, 0, 0.001, []who{{100, 0.2, 0.2, 0.2}, {100, 0.3, 0.3, 0.3}, {100, 0.5, 0.5, 0.5}}},
		{"whole GPU, switches cost", ms / 2, 300 * time.Microsecond, 0.01, []who{{100, 0.2, 0.2, 0.2}, {100, 0.3, 0.3, 0.3}, {100, 0.5, 0.5, 0.5}}},
		{"whole GPU, long kernels", 10 * ms, 300 * time.Microsecond, 0.01, []who{{100, 0.2, 0.2, 0.2}, {100, 0.3, 0.3, 0.3}, {100, 0.5, 0.5, 0.5}}},
		{"whole GPU, long kernels, elastic", 10 * ms, 300 * time.Microsecond, 0.02, []who{{100, 0.2, 1, 0.2}, {100, 0.3, 1, 0.3}, {100, 0.5, 1, 0.5}}},
		{"alone up to its limit", 5 * ms, 300 * time.Microsecond, 0.005, []who{{100, 0.3, 0.8, 0.8}}},
		{"alone, equal quotas", 5 * ms, 300 * time.Microsecond, 0.005, []who{{24, 0.2, 0.2, 0.2}}},
		{"alone, tiny quota", 10 * ms, 300 * time.Microsecond, 0.002, []who{{24, 0.02, 0.02, 0.02}}},
		{"side by side", 5 * ms, 300 * time.Microsecond, 0.01, []who{{24, 1, 1, 1}, {24, 0.6, 0.6, 0.6}, {50, 0.4, 0.4, 0.4}}},
		{"two of 60%", 5 * ms, 300 * time.Microsecond, 0.02, []who{{60, 0.5, 0.5, 0.5}, {60, 0.5, 0.5, 0.5}}},
		{"rest goes to the elastic one", ms, 0, 0.02, []who{{100, 0.3, 0.3, 0.3}, {100, 0.2, 1, 0.7}}},
		{"three of 40%", ms, 0, 0.03, []who{{40, 0.6, 0.6, 0.6}, {40, 0.6, 0.6, 0.6}, {40, 0.6, 0.6, 0.6}}},
		{"overcommitted alike", ms, 0, 0.02, []who{{100, 0.5, 0.5, third}, {100, 0.5, 0.5, third}, {100, 0.5, 0.5, third}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newLeasedGPU(t, Config{}, 1)
			w.lag = ms / 5
			for n, c := range tt.clients {
				w.join(&worker{
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

// TestWindowsAndOddQuotas: quotas that sum to the whole GPU in fractions that
// no window divides by come out to a point, however long the window is, where
// switches take a small part of it.
func TestWindowsAndOddQuotas(t *testing.T) {
	for window, kernel := range map[time.Duration]time.Duration{10 * ms: ms / 10, 100 * ms: ms, time.Second: 10 * ms} {
		for _, quotas := range [][]float64{
			{0.1, 0.9}, {0.01, 0.99}, {0.2, 0.3, 0.5}, {1. / 3, 1. / 3, 1. / 3}, {1. / 7, 2. / 7, 4. / 7}, {0.137, 0.263, 0.6},
		} {
			w := newLeasedGPU(t, Config{Window: window}, 1)
			w.lag = kernel / 2
			for n, q := range quotas {
				w.join(&worker{
					id: ClientID(n + 1), instance: string(rune('a' + n)), slice: slice(100, q, q), kernel: kernel, loss: kernel / 2,
				})
			}
			w.run(100 * window)
			for n, q := range quotas {
				got := w.total(w.clients[ClientID(n+1)]).Seconds() / (100 * window).Seconds()
				if math.Abs(got-q) > 0.01 {
					t.Errorf("window %v, quotas %.3f: client %d used %.4f", window, quotas, n+1, got)
				}
			}
		}
	}
}

// TestPaidOnce: what a needs the whole GPU for and misses is paid by b, which has more
// than its request, and not again by a and c, which b has no part in.
func TestPaidOnce(t *testing.T) {
	const request = 0.85 / 3 // 6 turns, and less than is worth a switch
	w := newLeasedGPU(t, Config{}, 1)
	a := w.join(&worker{id: 1, instance: "a", slice: slice(100, request, request)})
	w.join(&worker{id: 2, instance: "b", slice: slice(6, request, 1)})
	w.join(&worker{id: 3, instance: "b", slice: slice(6, request, 1)})
	w.join(&worker{id: 4, instance: "c", slice: slice(6, request/2, request/2), tells: 1})
	w.run(10 * time.Second)
	if got := w.total(a).Seconds() / 10; math.Abs(got-request) > 0.003 {
		t.Errorf("a used %.4f of %.4f", got, request)
	}
}

// TestNewSliceWhileItRuns: a slice that changes under a lease counts within a
// window, up or down, and so does a new window.
func TestNewSliceWhileItRuns(t *testing.T) {
	w := newLeasedGPU(t, Config{}, 1)
	w.lag = ms / 5
	a := w.join(&worker{id: 1, instance: "a", slice: slice(100, 0.9, 0.9), kernel: ms})
	b := w.join(&worker{id: 2, instance: "b", slice: slice(100, 0.1, 0.1), kernel: ms})
	for _, change := range []struct {
		a, b   float64
		window time.Duration
	}{{0.9, 0.1, 100 * ms}, {0.2, 0.7, 100 * ms}, {0.6, 0.3, 50 * ms}, {0.1, 0.9, 200 * ms}} {
		w.step(Configure{Window: change.window})
		w.step(AddInstance{Instance: "a", Slice: slice(100, change.a, change.a)})
		w.step(AddInstance{Instance: "b", Slice: slice(100, change.b, change.b)})
		beforeA, beforeB := w.total(a), w.total(b)
		w.run(w.now + 10*time.Second)
		for n, got := range []time.Duration{w.total(a) - beforeA, w.total(b) - beforeB} {
			want := []float64{change.a, change.b}[n]
			if off := got.Seconds() - 10*want; math.Abs(off) > change.window.Seconds() {
				t.Errorf("%+v: client %d used %v in 10s, want %v", change, n+1, got, want)
			}
		}
	}
}

// TestQuotaBelowASwitch: who has less of a window than is worth a switch saves it
// up, and is not forgotten.
func TestQuotaBelowASwitch(t *testing.T) {
	for _, window := range []time.Duration{ms, 10 * ms, 100 * ms} {
		quota := (7 * time.Microsecond).Seconds() / window.Seconds()
		w := newLeasedGPU(t, Config{Window: window}, 1)
		small := w.join(&worker{id: 1, instance: "a", slice: slice(100, quota, quota), kernel: 5 * time.Microsecond})
		w.join(&worker{id: 2, instance: "b", slice: slice(100, 0.9, 0.9), kernel: 5 * time.Microsecond})
		w.run(1000 * window)
		if got := w.total(small).Seconds() / (1000 * window).Seconds(); math.Abs(got/quota-1) > 0.1 {
			t.Errorf("window %v: used %.6f of the GPU, want %.6f", window, got, quota)
		}
	}
}

// TestManyOfWhomSomeSaturate: of 256 clients 32 want all they can get.
func TestManyOfWhomSomeSaturate(t *testing.T) {
	w := newLeasedGPU(t, Config{}, 1)
	w.lag = ms / 5
	for n := range 256 {
		c := &worker{id: ClientID(n + 1), instance: fmt.Sprint("i", n), slice: slice(100, 0.03, 0.03), kernel: ms / 10, loss: ms / 20}
		if n%8 > 0 {
			c.burst, c.gap = ms/10, time.Duration(50+n)*ms // hardly ever at work
			c.slice = slice(100, 0.001, 0.03)
		}
		w.join(c)
	}
	w.run(5 * time.Second)
	for n := 0; n < 256; n += 8 {
		if got := w.total(w.clients[ClientID(n+1)]).Seconds() / 5; math.Abs(got-0.03) > 0.01 {
			t.Errorf("client %d used %.4f of the GPU, want 0.03", n+1, got)
		}
	}
}

func TestLoneClientWithWholeQuotaIsNeverAskedBack(t *testing.T) {
	w := newLeasedGPU(t, Config{}, 1)
	w.lag = 3 * ms
	c := w.join(&worker{id: 1, instance: "a", slice: slice(100, 1, 1), kernel: ms})
	w.run(5 * time.Second)
	if c.revoked != 0 || w.total(c) != 5*time.Second {
		t.Errorf("asked back %d times, used %v of 5s: %q", c.revoked, w.total(c), c.reasons)
	}
}

// Nor is it when a timer fires so late that the next window is about to begin.
func TestLoneClientAndALateTimer(t *testing.T) {
	for left := time.Duration(0); left < 2*negligible; left += negligible / 4 {
		s := newMultiToken(Config{}, 0)
		s.Step(0, []Event{AddInstance{Instance: "a", Slice: slice(100, 1, 1)}, AddClient{1, "a"}, Request{1}}, nil)
		for _, a := range s.Step(3*s.window-left, []Event{Wake{}}, nil) {
			if revoke, ok := a.(Revoke); ok {
				t.Errorf("%v before the window's end: %s", left, revoke.Reason)
			}
		}
	}
}

func TestTwoProcessesShareOneQuota(t *testing.T) {
	w := newLeasedGPU(t, Config{}, 1)
	a := w.join(&worker{id: 1, instance: "a", slice: slice(20, 0.5, 0.5), kernel: ms})
	b := w.join(&worker{id: 2, instance: "a", slice: slice(20, 0.5, 0.5), kernel: ms})
	w.run(10 * time.Second)
	sum := (w.total(a) + w.total(b)).Seconds() / 10
	if math.Abs(sum-0.5) > 0.005 || math.Abs((w.total(a)-w.total(b)).Seconds()) > 0.2 {
		t.Errorf("the processes used %v and %v in 10s, want 5s together", w.total(a), w.total(b))
	}
}

func TestProcessesThatDoNotFitTogetherTakeTurns(t *testing.T) {
	w := newLeasedGPU(t, Config{}, 1)
	a := w.join(&worker{id: 1, instance: "a", slice: slice(60, 1, 1), kernel: ms})
	b := w.join(&worker{id: 2, instance: "a", slice: slice(60, 1, 1), kernel: ms})
	w.run(10 * time.Second)
	if d := (w.total(a) - w.total(b)).Seconds(); math.Abs(d) > 0.3 || w.total(a) < 4*time.Second {
		t.Errorf("the processes used %v and %v", w.total(a), w.total(b))
	}
}

// closing is how long it takes to close a window in which so many clients have
// waited: the best of some.
func closing(n int) time.Duration {
	s := newMultiToken(Config{}, 0)
	for k := range n {
		id, name := ClientID(k+1), fmt.Sprint("i", k)
		s.Step(0, []Event{AddInstance{Instance: name, Slice: slice(100, 1/float64(n), 1)}, AddClient{id, name}, Request{id}}, nil)
	}
	best := time.Hour
	for range 100 { // on a busy host most are interrupted
		began := time.Now()
		s.closeWindow(s.start + s.window)
		best = min(best, time.Since(began))
	}
	return best
}

// TestClosingManyBacklogged: with four times as many clients that wait a window
// takes 16 times as long to close, and not 64: then with some hundreds it would
// take longer than it lasts.
func TestClosingManyBacklogged(t *testing.T) {
	few, many := closing(100), closing(400)
	t.Logf("%v with 100, %v with 400", few, many)
	if ratio := float64(many) / float64(few); ratio > 40 {
		t.Errorf("%.0f times as long", ratio)
	}
}
