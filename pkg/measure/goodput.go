package measure

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/load"
	"github.com/gfaas/gfaas/pkg/measure/figures"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/profile/goodput"
	"github.com/gfaas/gfaas/pkg/splitmix"
)

const (
	maxIdleRequests = 20                   // limit of single requests for idle_p95_ms
	minIdleRequests = 10                   // idle_p95_ms is unknown after fewer requests
	minIdleGap      = 5 * time.Millisecond // shortest time between these requests
	requestsPerRate = 1500                 // number of requests that a trial at one rate should have
	maxExtension    = 4                    // to have them, a trial is extended to at most this multiple of the duration
	refusedRequests = 100                  // number of misses to record for a trial without answers
)

// measureIdle measures the latency of single requests to an otherwise idle instance.
// The gap before each request is at least as long as the last request, so that the
// quota covers one request before the next one arrives, and random, so that requests
// arrive at all phases of a window. No request starts after the trial's duration.
func (t trial) measureIdle(ctx context.Context, send load.Sender, quota float64) (goodput.Trial, error) {
	until := time.Now().Add(t.Load.Duration)
	rng := splitmix.Source(t.Load.Seed)
	slo := t.Objective(t.fn.Name)
	seen := goodput.Trial{}
	var latencies []float64
	for last := minIdleGap; seen.Count < maxIdleRequests && time.Now().Before(until); {
		gap := time.Duration((1 + 2*rng.Unit()) * float64(max(last, minIdleGap)) / quota)
		select {
		case <-time.After(gap):
		case <-ctx.Done():
			return seen, ctx.Err()
		}
		started := time.Now()
		err := send(ctx)
		if ctx.Err() != nil {
			return seen, ctx.Err()
		}
		last = time.Since(started)
		ms := figures.Millis(last)
		if err != nil {
			ms = math.Inf(1)
		}
		if ms > slo {
			seen.Misses++
		}
		seen.Count++
		latencies = append(latencies, ms)
	}
	if len(latencies) > 0 {
		slices.Sort(latencies)
		seen.P95 = latencies[int(math.Ceil(0.95*float64(len(latencies))))-1]
	}
	return seen, nil
}

// findGoodput searches for the goodput of an instance and sets its columns in the row.
// throughput is the instance's, in invocations per second. Trials count invocations;
// the row counts the requests of their batches.
func (t trial) findGoodput(ctx context.Context, send load.Sender, row *profile.Row, throughput float64, idleTrial goodput.Trial) error {
	at, batch := Point{t.fn.Name, row.Config}, float64(row.Batch)
	row.SLOMS = t.Objective(t.fn.Name)
	if idleTrial.Count >= minIdleRequests && !math.IsInf(idleTrial.P95, 1) {
		row.IdleP95MS = idleTrial.P95
	}
	samples := watch(ctx, samplePeriod, func(ctx context.Context) sample { return sample{otherUsers: t.testbed.OtherUsers(ctx)} })
	found, err := t.searchGoodput(ctx, send, at, goodput.New(goodput.Setting{
		Objective: row.SLOMS, Throughput: throughput, Idle: idleTrial, Precision: t.Load.Precision,
	}))
	_, _, others := summarize(samples())
	if err != nil {
		return err
	}
	if len(others) > 0 && !t.ShareGPU {
		return fmt.Errorf("%s also used the GPU during the search for the goodput", strings.Join(others, ", "))
	}
	if !found.Known {
		row.Unstable = 1
		t.progress.Note(fmt.Sprintf("for %s: unstable: the goodput is unknown: %s", at, found.Reason))
		return nil
	}
	row.GoodputKnown, row.GoodputRPS = true, figures.Round(batch*found.RPS, 4)
	row.GoodputCIRPS = figures.Round(batch*found.CI, 4)
	if found.RPS == 0 {
		t.progress.Note(fmt.Sprintf("for %s: the goodput is 0: %s", at, found.Reason))
	}
	return nil
}

// searchGoodput runs the trials that a search asks for and returns its outcome.
func (t trial) searchGoodput(ctx context.Context, send load.Sender, at Point, s *goodput.Search) (goodput.Outcome, error) {
	for n := 1; ; n++ {
		rps, more := s.Next()
		if !more {
			return s.Outcome(), nil
		}
		t.progress.Trying(at, fmt.Sprintf("goodput trial %d at %.4g rps", n, rps*float64(at.Config.Batch)))
		seen, err := t.atRate(ctx, send, rps, uint64(n))
		if err != nil {
			return goodput.Outcome{}, err
		}
		t.progress.Tried(at, fmt.Sprintf("goodput trial %d at %.4g rps: p95 %.4g ms, %d of %d missed %.4g ms",
			n, seen.RPS*float64(at.Config.Batch), seen.P95, seen.Misses, seen.Count, t.Objective(t.fn.Name)))
		if t.log != nil {
			if err := t.log.Append(t.record(at, seen)); err != nil {
				return goodput.Outcome{}, err
			}
		}
		s.Record(seen)
	}
}

// record returns a trial in the form of the trials file. It counts the requests of
// each batch.
func (t trial) record(at Point, seen goodput.Trial) profile.Trial {
	batch := float64(at.Config.Batch)
	out := profile.Trial{
		Function: at.Function, GPU: t.GPU, Config: at.Config, OfferedRPS: figures.Round(batch*seen.RPS, 4), AnsweredRPS: figures.Round(batch*seen.Answered, 4),
		SLOMS: t.Objective(at.Function), Misses: seen.Misses, Samples: seen.Count,
	}
	if !math.IsInf(seen.P95, 1) {
		out.P95MS, out.P95CIMS = seen.P95, seen.P95CI
	}
	return out
}

// atRate runs the n-th trial for the goodput, with Poisson arrivals at a rate. Each
// trial has its own random sequence of arrivals, so that an unusual one affects
// only one trial.
func (t trial) atRate(ctx context.Context, send load.Sender, rps float64, n uint64) (goodput.Trial, error) {
	o := t.Load
	o.Spec = load.Spec{Kind: load.Poisson, RPS: rps}
	o.Seed = splitmix.Mix(o.Seed + n)
	o.Precision = 0 // the search adds trials where it needs precision
	o.Objective = time.Duration(t.Objective(t.fn.Name) * float64(time.Millisecond))
	need := min(requestsPerRate/rps, maxExtension*o.Duration.Seconds())
	o.Duration = max(o.Duration, time.Duration(need*float64(time.Second)))
	res, err := load.Run(ctx, send, o)
	switch {
	case ctx.Err() != nil:
		return goodput.Trial{}, ctx.Err()
	case err != nil: // the instance refuses all requests at this rate
		return goodput.Trial{RPS: rps, P95: math.Inf(1), Misses: refusedRequests, Count: refusedRequests}, nil
	}
	seen := goodput.Trial{
		RPS: float64(res.Due) / res.Duration.Seconds(), Answered: res.Throughput(),
		P95: figures.Millis(res.P95Due), P95CI: figures.Millis(res.P95CI), Misses: res.Misses, Count: res.Due,
	}
	if res.P95Due == load.Never {
		seen.P95 = math.Inf(1)
	}
	return seen, nil
}
