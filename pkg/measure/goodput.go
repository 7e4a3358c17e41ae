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
	maxRestRequests = 20                   // single requests for idle_p95_ms
	minRestRequests = 10                   // without which idle_p95_ms is unknown
	minRestGap      = 5 * time.Millisecond // between them
	requestsPerRate = 1500                 // that a trial should have
	maxExtension    = 4                    // times the duration, which bounds a trial for that many requests
	refusedRequests = 100                  // counted for a trial that answered none
)

// atRest sends single requests with gaps between them and returns their latencies.
// Each gap is at least as long as the last request, so that the quota covers one
// request before the next one arrives, and random, so that requests arrive at all
// phases of a window. No request starts after the trial's duration.
func (t trial) atRest(ctx context.Context, send load.Target, quota float64) (goodput.Trial, error) {
	until := time.Now().Add(t.Load.Duration)
	rng := splitmix.Source(t.Load.Seed)
	slo := t.Objective(t.fn.Name)
	seen := goodput.Trial{}
	var took []float64
	for last := minRestGap; seen.Count < maxRestRequests && time.Now().Before(until); {
		gap := time.Duration((1 + 2*rng.Unit()) * float64(max(last, minRestGap)) / quota)
		select {
		case <-time.After(gap):
		case <-ctx.Done():
			return seen, ctx.Err()
		}
		begun := time.Now()
		err := send(ctx)
		if ctx.Err() != nil {
			return seen, ctx.Err()
		}
		last = time.Since(begun)
		ms := figures.Millis(last)
		if err != nil {
			ms = math.Inf(1)
		}
		if ms > slo {
			seen.Misses++
		}
		seen.Count++
		took = append(took, ms)
	}
	if len(took) > 0 {
		slices.Sort(took)
		seen.P95 = took[int(math.Ceil(0.95*float64(len(took))))-1]
	}
	return seen, nil
}

// findGoodput searches for the goodput of an instance with that throughput, in
// invocations per second, and sets the columns of the row. Trials count
// invocations; the row counts the requests of their batches.
func (t trial) findGoodput(ctx context.Context, send load.Target, row *profile.Row, throughput float64, rest goodput.Trial) error {
	at, batch := Point{t.fn.Name, row.Config}, float64(row.Batch)
	row.SLOMS = t.Objective(t.fn.Name)
	if rest.Count >= minRestRequests && !math.IsInf(rest.P95, 1) {
		row.IdleP95MS = rest.P95
	}
	samples := watch(ctx, samplePeriod, func(ctx context.Context) sample { return sample{others: t.testbed.Others(ctx)} })
	found, err := t.searchGoodput(ctx, send, at, goodput.New(goodput.Setting{
		Objective: row.SLOMS, Throughput: throughput, Rest: rest, Precision: t.Load.Precision,
	}))
	_, _, others := split(samples())
	if err != nil {
		return err
	}
	if len(others) > 0 && !t.ShareGPU {
		return fmt.Errorf("%s ran on the GPU too during the trials for its goodput", strings.Join(others, ", "))
	}
	if !found.Known {
		row.Unstable = 1
		t.progress.Note(fmt.Sprintf("for %s: unstable: the goodput is not known: %s", at, found.Reason))
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
func (t trial) searchGoodput(ctx context.Context, send load.Target, at Point, s *goodput.Search) (goodput.Outcome, error) {
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
		s.Tell(seen)
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
// trial has its own sequence of arrivals, so that the peculiarities of one do not
// affect all.
func (t trial) atRate(ctx context.Context, send load.Target, rps float64, n uint64) (goodput.Trial, error) {
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
