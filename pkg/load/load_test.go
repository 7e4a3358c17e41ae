package load

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// server answers one request at a time, each after the same time, like a GPU. It uses the
// clock of the synctest bubble.
type server struct {
	busy    chan struct{}
	service time.Duration
}

func newServer(parallel int, service time.Duration) *server {
	return &server{busy: make(chan struct{}, parallel), service: service}
}

func (s *server) serve(ctx context.Context) error {
	if !acquire(ctx, s.busy) {
		return ctx.Err()
	}
	defer func() { <-s.busy }()
	if !waitUntil(ctx, time.Now().Add(s.service)) {
		return ctx.Err()
	}
	return nil
}

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if math.Abs(got-want) > tolerance*want {
		t.Errorf("%s = %v, want %v within %v", what, got, want, tolerance)
	}
}

func mustRun(t *testing.T, send Sender, o Options) Result {
	t.Helper()
	res, err := Run(t.Context(), send, o)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestClosedLoopKeepsTheServerBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(1, 20*time.Millisecond)
		res := mustRun(t, s.serve, Options{
			Spec: Spec{Kind: Closed, Workers: 8}, Warmup: 2 * time.Second, Duration: 10 * time.Second,
		})
		near(t, "throughput", res.Throughput(), 50, 0.01)
		near(t, "p95", res.P95.Seconds(), 8*0.020, 0.01)
		near(t, "samples", float64(res.Samples), 500, 0.02)
		if res.Errors != 0 || res.Workers != 8 {
			t.Errorf("got %d errors and %d workers, want 0 and 8", res.Errors, res.Workers)
		}
	})
}

func TestWarmupIsNotMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		slowStart := func(ctx context.Context) error {
			service := 10 * time.Millisecond
			if time.Since(start) < time.Second {
				service = 500 * time.Millisecond
			}
			waitUntil(ctx, time.Now().Add(service))
			return nil
		}
		res := mustRun(t, slowStart, Options{
			Spec: Spec{Kind: Closed, Workers: 1}, Warmup: 2 * time.Second, Duration: 4 * time.Second,
		})
		near(t, "throughput", res.Throughput(), 100, 0.01)
		near(t, "p99", res.P99.Seconds(), 0.010, 0.01)
	})
}

// A server that stalls for one second delays all requests that were due meanwhile. A
// generator that measured from the sending would see one slow request; this one sees the
// whole stall.
func TestOpenLoopCountsFromTheIntendedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		stall, back := start.Add(4*time.Second), start.Add(5*time.Second)
		send := func(ctx context.Context) error {
			if now := time.Now(); now.After(stall) && now.Before(back) {
				waitUntil(ctx, back)
			}
			waitUntil(ctx, time.Now().Add(time.Millisecond))
			return nil
		}
		res := mustRun(t, send, Options{
			Spec: Spec{Kind: Poisson, RPS: 200}, Duration: 10 * time.Second, Seed: 1,
			maxOutstanding: 1, // like a generator with one connection
		})
		// A tenth of all requests fell into the stall, half of them by more
		// than half a second; the queue behind it drains at 800/s.
		if res.P95 < 400*time.Millisecond || res.P99 < 850*time.Millisecond {
			t.Errorf("latencies with a stall of 1s in a trial of 10s: got p95 %v and p99 %v, want at least 400ms and 850ms", res.P95, res.P99)
		}
		if res.P50 > 50*time.Millisecond {
			t.Errorf("p50 with a stall that affects a tenth of the requests: got %v, want at most 50ms", res.P50)
		}
		if res.Late < 150 {
			t.Errorf("%d requests were sent late, want about 200", res.Late)
		}
		near(t, "throughput", res.Throughput(), 200, 0.1)
	})
}

func TestOverloadIsAccountedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(1, 100*time.Millisecond) // 10/s
		res := mustRun(t, s.serve, Options{
			Spec: Spec{Kind: Poisson, RPS: 100}, Duration: 10 * time.Second, drain: time.Second,
			Seed: 7, maxOutstanding: 16,
		})
		near(t, "throughput", res.Throughput(), 10, 0.02)
		near(t, "samples", float64(res.Samples), 1000, 0.1)
		answered := res.Samples - res.Cut - res.Unsent
		near(t, "answered", float64(answered), 110, 0.02) // in the period and while draining
		if res.Cut != 16 || res.Errors != res.Cut+res.Unsent {
			t.Errorf("failed requests: got %d, with %d cut off and %d unsent; want the sum, with 16 cut off", res.Errors, res.Cut, res.Unsent)
		}
		if res.P95 < 5*time.Second {
			t.Errorf("p95 of a queue that only grows: got %v, want at least 5s", res.P95)
		}
	})
}

// A latency beyond the objective is a miss; with up to 5% of misses, p95 meets the
// objective.
func TestMissesOfAnObjective(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for objective, all := range map[time.Duration]bool{19 * time.Millisecond: true, 21 * time.Millisecond: false} {
			res := mustRun(t, newServer(100, 20*time.Millisecond).serve, Options{
				Spec: Spec{Kind: Poisson, RPS: 50}, Duration: 10 * time.Second, Seed: 1, Objective: objective,
			})
			want := int64(0)
			if all {
				want = res.Due
			}
			if res.Misses != want || res.Due != res.Samples || res.P95Due != res.P95 {
				t.Errorf("objective %v: %d of %d missed, want %d; p95 %v, of all %v", objective, res.Misses, res.Due, want, res.P95, res.P95Due)
			}
		}
	})
}

// Every request that was due is counted exactly once, and the number of answered requests
// never exceeds the server's capacity.
func TestAccountingProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		service := time.Duration(rapid.IntRange(1, 400).Draw(rt, "service_ms")) * time.Millisecond
		o := Options{
			Warmup:         time.Duration(rapid.IntRange(0, 500).Draw(rt, "warmup_ms")) * time.Millisecond,
			Duration:       time.Duration(rapid.IntRange(100, 3000).Draw(rt, "duration_ms")) * time.Millisecond,
			drain:          time.Duration(rapid.IntRange(1, 1000).Draw(rt, "drain_ms")) * time.Millisecond,
			Seed:           rapid.Uint64().Draw(rt, "seed"),
			maxOutstanding: rapid.IntRange(1, 20).Draw(rt, "outstanding"),
			Spec:           Spec{Kind: Poisson, RPS: float64(rapid.IntRange(1, 300).Draw(rt, "rps"))},
		}
		parallel := rapid.IntRange(1, 4).Draw(rt, "parallel")
		synctest.Test(t, func(t *testing.T) {
			var due int64
			start := time.Now()
			from, to := start.Add(o.Warmup), start.Add(o.Warmup+o.Duration)
			plan := newArrivals(o.Spec.RPS, o.Seed, start)
			for at := plan.next(); at.Before(to); at = plan.next() {
				if !at.Before(from) {
					due++
				}
			}
			res := mustRun(t, newServer(parallel, service).serve, o)
			if res.Samples != due {
				rt.Fatalf("samples: got %d, want %d, one for each request that was due", res.Samples, due)
			}
			if res.Errors != res.Cut+res.Unsent {
				rt.Fatalf("failed requests: got %d, want %d cut off plus %d unsent", res.Errors, res.Cut, res.Unsent)
			}
			most := (int64(o.Duration/service) + 1) * int64(parallel)
			if res.Completed > most {
				rt.Fatalf("answered requests: got %d, want at most %d, the server's capacity", res.Completed, most)
			}
			if res.P50 > res.P95 || res.P95 > res.P99 {
				rt.Fatalf("percentiles: got p50 %v, p95 %v, p99 %v; want an ascending order", res.P50, res.P95, res.P99)
			}
		})
	})
}

func TestMaxFindsTheFewestWorkersThatSaturate(t *testing.T) {
	for _, tc := range []struct {
		parallel, want int
		service        time.Duration
	}{
		{1, 1, 5 * time.Millisecond},
		{4, 4, 20 * time.Millisecond},
		{6, 8, 20 * time.Millisecond},
		{1, 1, 900 * time.Millisecond}, // few answers in a trial
		{512, 512, 20 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			res := mustRun(t, newServer(tc.parallel, tc.service).serve, Options{
				Spec: Spec{Kind: Max}, Warmup: 2 * time.Second, Duration: 20 * time.Second,
			})
			if res.Workers != tc.want {
				t.Errorf("%d at a time: %d workers, want %d", tc.parallel, res.Workers, tc.want)
			}
			near(t, "throughput", res.Throughput(), float64(tc.parallel)/tc.service.Seconds(), 0.05)
		})
	}
}

// If a server never answers, more workers do not help.
func TestMaxOfServerWithoutAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		refuses := func(context.Context) error { return errors.New("status 500") }
		res := mustRun(t, refuses, Options{Spec: Spec{Kind: Max}, Duration: 10 * time.Second, Persist: true})
		if elapsed := time.Since(start); elapsed > 30*time.Second || res.Workers != 1 || res.Completed != 0 {
			t.Errorf("server without answers: got %d workers and %d answers after %v, want 1 and 0 within 30s", res.Workers, res.Completed, elapsed)
		}
	})
}

func TestBrokenTargetEndsTheTrialEarly(t *testing.T) {
	refused := errors.New("connection refused")
	for _, spec := range []Spec{{Kind: Closed, Workers: 8}, {Kind: Poisson, RPS: 100}, {Kind: Max}} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			_, err := Run(t.Context(), func(context.Context) error { return refused }, Options{
				Spec: spec, Duration: time.Minute,
			})
			if !errors.Is(err, refused) {
				t.Errorf("%v: got the error %v, want %v", spec, err, refused)
			}
			if elapsed := time.Since(start); elapsed > 10*time.Second {
				t.Errorf("%v: the trial ended after %v, want within 10s", spec, elapsed)
			}
		})
	}
}

func TestSomeFailuresAreCountedNotFatal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		n := 0
		flaky := func(ctx context.Context) error {
			waitUntil(ctx, time.Now().Add(10*time.Millisecond))
			mu.Lock()
			defer mu.Unlock()
			if n++; n%4 == 0 {
				return errors.New("status 500")
			}
			return nil
		}
		o := Options{Spec: Spec{Kind: Poisson, RPS: 100}, Duration: 10 * time.Second, Seed: 3, Objective: time.Second}
		res := mustRun(t, flaky, o)
		near(t, "errors", float64(res.Errors), 250, 0.15)
		if res.Misses != res.Errors || res.Due != res.Samples+res.Errors || res.P95Due != Never {
			t.Errorf("got %d due, %d missed, %d failed and p95 of all %v, want %d, %d, as many as missed, and %v", res.Due, res.Misses, res.Errors, res.P95Due, res.Samples+res.Errors, res.Errors, Never)
		}
		near(t, "throughput", res.Throughput(), 75, 0.15)
		if res.LastFailed == nil || res.Unstable != "" {
			t.Errorf("got the last failure %v and unstable %q, want a failure and a stable result", res.LastFailed, res.Unstable)
		}
		n = 0
		o.Precision = 0.05
		if res = mustRun(t, flaky, o); !strings.HasSuffix(res.Unstable, " requests failed") {
			t.Errorf("unstable: got %q, want a text that ends with \"requests failed\"", res.Unstable)
		}
	})
}

func TestContextEndsTheTrial(t *testing.T) {
	for _, spec := range []Spec{{Kind: Closed, Workers: 8}, {Kind: Poisson, RPS: 100}, {Kind: Max}} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			start := time.Now()
			_, err := Run(ctx, newServer(1, 50*time.Millisecond).serve, Options{Spec: spec, Duration: time.Hour})
			if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 4*time.Second {
				t.Errorf("%v: got the error %v after %v, want %v within 4s", spec, err, time.Since(start), context.DeadlineExceeded)
			}
		})
	}
}

func TestInvalidOptions(t *testing.T) {
	for _, o := range []Options{
		{Spec: Spec{Kind: Closed, Workers: 1}},
		{Spec: Spec{Kind: Closed, Workers: 1}, Duration: time.Second, Warmup: -1},
		{Duration: time.Second},
	} {
		if _, err := Run(t.Context(), func(context.Context) error { return nil }, o); err == nil {
			t.Errorf("Run with %+v: got no error, want one", o)
		}
	}
}

// Requests that share a GPU finish together. The throughput is the same wherever the period
// begins.
func TestThroughputOfBunches(t *testing.T) {
	const workers, service = 8, 3 * time.Second
	for _, warmup := range []time.Duration{0, time.Second, 2900 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(workers, service)
			res := mustRun(t, s.serve, Options{
				Spec: Spec{Kind: Closed, Workers: workers}, Warmup: warmup, Duration: 10 * time.Second,
			})
			near(t, "throughput", res.Throughput(), workers/service.Seconds(), 0.001)
		})
	}
}

// A trial that is ended early reports its results up to then, and waits one second for
// requests in flight.
func TestEndedEarly(t *testing.T) {
	for _, c := range []struct {
		spec          Spec
		slow          time.Duration // of requests sent after 2 s
		at            time.Duration
		samples, cut  float64
		tookAtTheMost time.Duration
	}{
		{Spec{Kind: Closed, Workers: 1}, 20 * time.Millisecond, 3 * time.Second, 100, 0, 3100 * time.Millisecond},
		{Spec{Kind: Poisson, RPS: 50}, 20 * time.Millisecond, 3 * time.Second, 100, 0, 3100 * time.Millisecond},
		{Spec{Kind: Poisson, RPS: 50}, time.Hour, 3 * time.Second, 100, 50, 4100 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			send := func(ctx context.Context) error {
				service := 20 * time.Millisecond
				if time.Since(begin) > 2*time.Second {
					service = c.slow
				}
				if !waitUntil(ctx, time.Now().Add(service)) {
					return ctx.Err()
				}
				return nil
			}
			until, cancel := context.WithTimeout(t.Context(), c.at)
			defer cancel()
			res := mustRun(t, send, Options{Spec: c.spec, Warmup: time.Second, Duration: time.Minute, Seed: 3, Until: until})
			if res.Duration != c.at-time.Second || time.Since(begin) > c.tookAtTheMost {
				t.Errorf("%v %v: measured %v in %v, want %v within %v", c.spec, c.slow, res.Duration, time.Since(begin), c.at-time.Second, c.tookAtTheMost)
			}
			near(t, "samples", float64(res.Samples), c.samples, 0.2)
			near(t, "cut", float64(res.Cut), c.cut, 0.3)
			if int64(len(res.Latencies)) != res.Samples {
				t.Errorf("latencies: got %d, want %d, one for each sample", len(res.Latencies), res.Samples)
			}
		})
	}
}

func TestEndedBeforeAnythingWasMeasured(t *testing.T) {
	for _, kind := range []Spec{{Kind: Closed, Workers: 2}, {Kind: Poisson, RPS: 9}, {Kind: Max}} {
		synctest.Test(t, func(t *testing.T) {
			until, cancel := context.WithCancel(t.Context())
			cancel()
			o := Options{Spec: kind, Warmup: time.Second, Duration: time.Minute, Until: until}
			if res, err := Run(t.Context(), newServer(1, time.Millisecond).serve, o); !errors.Is(err, errEarly) {
				t.Errorf("%v: got %+v, %v; want the error %v", kind, res, err, errEarly)
			}
		})
	}
}

// A trial ends if every request fails, unless Persist is set.
func TestPersist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := func(context.Context) error { return errors.New("refused") }
		o := Options{Spec: Spec{Kind: Poisson, RPS: 100}, Duration: 10 * time.Second, Seed: 2}
		if _, err := Run(t.Context(), broken, o); err == nil {
			t.Error("trial in which every request fails: got no error, want one")
		}
		o.Persist = true
		res := mustRun(t, broken, o)
		near(t, "errors", float64(res.Errors), 1000, 0.1)
		if res.Samples != 0 || res.LastFailed == nil || res.Due != res.Errors {
			t.Errorf("result: got %+v; want Samples 0, LastFailed set, Due %v", res, res.Errors)
		}
	})
}

func TestWithTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		begin := time.Now()
		if err := WithTimeout(time.Second, hangs)(t.Context()); err == nil || errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != time.Second {
			t.Errorf("request that hangs: got the error %v after %v, want an error other than %v after 1s", err, time.Since(begin), context.DeadlineExceeded)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := WithTimeout(time.Second, hangs)(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("context cancelled by the caller: got the error %v, want %v", err, context.Canceled)
		}
	})
}
