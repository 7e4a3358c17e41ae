package load

import (
	"context"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

const (
	warmup = 2 * time.Second
	period = 10 * time.Second
)

func precise(spec Spec) Options {
	return Options{Spec: spec, Warmup: warmup, Duration: period, Precision: 0.05, Seed: 1}
}

// changing returns a target that answers one request at a time, each after a time that
// depends on the target's age.
func changing(service func(age time.Duration) time.Duration) Sender {
	one := make(chan struct{}, 1)
	start := time.Now()
	return func(ctx context.Context) error {
		if !acquire(ctx, one) {
			return ctx.Err()
		}
		defer func() { <-one }()
		waitUntil(ctx, time.Now().Add(service(time.Since(start))))
		return ctx.Err()
	}
}

func constant(d time.Duration) func(time.Duration) time.Duration {
	return func(time.Duration) time.Duration { return d }
}

// A steady and precise measurement takes one period, as without a precision.
func TestSteadyTargetIsMeasuredOnce(t *testing.T) {
	for _, spec := range []Spec{{Kind: Closed, Workers: 8}, {Kind: Closed, Workers: 1}, {Kind: Max}, {Kind: Poisson, RPS: 40}} {
		synctest.Test(t, func(t *testing.T) {
			res := mustRun(t, changing(constant(5*time.Millisecond)), precise(spec))
			if res.Warmup != warmup || res.Duration != period || res.Unstable != "" {
				t.Errorf("%v: measured %v after a warm-up of %v, unstable %q; want %v after %v, stable", spec, res.Duration, res.Warmup, res.Unstable, period, warmup)
			}
		})
	}
}

func TestSlowRequestsAreNoDrift(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		res := mustRun(t, newServer(8, 3*time.Second).serve, precise(Spec{Kind: Closed, Workers: 8}))
		near(t, "throughput", res.Throughput(), 8.0/3, 0.001)
		if res.Unstable != "" || res.Duration > 2*period {
			t.Errorf("measured for %v, unstable %q; want at most %v, stable", res.Duration, res.Unstable, 2*period)
		}
	})
}

func TestWarmupIsDetected(t *testing.T) {
	for name, service := range map[string]func(time.Duration) time.Duration{
		"slow at first": func(age time.Duration) time.Duration {
			if age < 7*time.Second {
				return 40 * time.Millisecond
			}
			return 10 * time.Millisecond
		},
		"caches fill": func(age time.Duration) time.Duration {
			return 10*time.Millisecond + time.Duration(60*math.Exp(-age.Seconds()/2)*float64(time.Millisecond))
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			res := mustRun(t, changing(service), precise(Spec{Kind: Closed, Workers: 4}))
			near(t, name+": throughput", res.Throughput(), 100, 0.02)
			if res.Warmup < 4*time.Second || res.Unstable != "" {
				t.Errorf("%s: got a warm-up of %v, unstable %q; want at least 4s, stable", name, res.Warmup, res.Unstable)
			}
			if all := res.Warmup + res.Duration; all > warmup+longestPeriods*period {
				t.Errorf("%s: the trial took %v, want at most %v", name, all, warmup+longestPeriods*period)
			}
		})
	}
}

func TestTargetThatNeverSettlesIsUnstable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		leaking := changing(func(age time.Duration) time.Duration {
			return 5*time.Millisecond + age/1000
		})
		res := mustRun(t, leaking, precise(Spec{Kind: Closed, Workers: 4}))
		if !strings.Contains(res.Unstable, "the throughput still changed by -") {
			t.Errorf(`unstable %q, want a text with "the throughput still changed by -"`, res.Unstable)
		}
		if took := time.Since(start); took > warmup+longestPeriods*period+time.Second {
			t.Errorf("the trial took %v, want at most %v", took, warmup+longestPeriods*period+time.Second)
		}
	})
}

func TestUnknownIsUnstable(t *testing.T) {
	for want, c := range map[string]struct {
		spec    Spec
		service time.Duration
	}{
		"only 2 requests were answered in 40s":  {Spec{Kind: Closed, Workers: 1}, 15 * time.Second},
		"requests in 40s are too few for a p95": {Spec{Kind: Poisson, RPS: 1}, 5 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			res := mustRun(t, changing(constant(c.service)), precise(c.spec))
			if !strings.Contains(res.Unstable, want) || res.Duration != longestPeriods*period {
				t.Errorf("%v: unstable %q after %v, want %q", c.spec, res.Unstable, res.Duration, want)
			}
		})
	}
}

// A longer trial would only lengthen the queue.
func TestOverloadIsNotMeasuredLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		res := mustRun(t, changing(constant(20*time.Millisecond)), precise(Spec{Kind: Poisson, RPS: 80}))
		if res.Duration != period || !strings.Contains(res.Unstable, "the latency still changed by +") {
			t.Errorf("got unstable %q after %v, want a growing latency after %v", res.Unstable, res.Duration, period)
		}
		near(t, "throughput", res.Throughput(), 50, 0.02)
	})
}

// noisy returns a target with exponential service times, whose throughput is hard to
// estimate.
func noisy(mean time.Duration, seed uint64) Sender {
	rng := rand.New(rand.NewPCG(seed, 1))
	return changing(func(time.Duration) time.Duration {
		return time.Duration(rng.ExpFloat64() * float64(mean))
	})
}

func TestIntervalsHoldTheTruth(t *testing.T) {
	const trials = 100
	rate, p95, longer := 0, 0, 0
	for seed := range uint64(trials) {
		synctest.Test(t, func(t *testing.T) {
			res := mustRun(t, noisy(20*time.Millisecond, seed), precise(Spec{Kind: Closed, Workers: 1}))
			if math.Abs(res.Throughput()-50) <= res.ThroughputCI {
				rate++
			}
			if math.Abs(res.P95.Seconds()-0.02*math.Log(20)) <= res.P95CI.Seconds() {
				p95++
			}
			if res.Duration > period {
				longer++
			}
			if res.Unstable == "" && res.ThroughputCI > 0.05*res.Throughput() {
				t.Errorf("stable result: got the throughput %v ± %v, want at most 5%%", res.Throughput(), res.ThroughputCI)
			}
		})
	}
	// 95 are expected; stopping at the first narrow interval costs some coverage.
	if rate < 85 || p95 < 85 {
		t.Errorf("of %d intervals, %d contain the true throughput and %d the true p95, want at least 85 each", trials, rate, p95)
	}
	if longer < trials/2 {
		t.Errorf("%d of %d trials were extended, want at least half, because 500 requests determine a throughput only to 9%%", longer, trials)
	}
}

// The bins of a window add up to a plain sum over the window.
func TestBinsShareOutTheWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from := time.Duration(rapid.Int64Range(0, 1000).Draw(t, "from"))
		w := &window{from: from, to: from + time.Duration(rapid.Int64Range(1, 5000).Draw(t, "length"))}
		want := 0.0
		for range rapid.IntRange(0, 20).Draw(t, "requests") {
			sent := time.Duration(rapid.Int64Range(0, 6000).Draw(t, "sent"))
			q := request{sent: sent, end: sent + time.Duration(rapid.Int64Range(1, 3000).Draw(t, "took"))}
			for at := q.sent; at < q.end; at++ {
				if at >= w.from && at < w.to {
					want += 1 / float64(q.end-q.sent)
				}
			}
			w.spread(q)
		}
		if got := sum(w.served[:]); math.Abs(got-want) > 1e-9*(1+want) {
			t.Fatalf("bins hold %v, want %v", got, want)
		}
	})
}
