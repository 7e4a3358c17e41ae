package profile

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/load"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/profile/goodput"
	"github.com/gfaas/gfaas/pkg/splitmix"
)

const (
	restRequests = 20                   // single requests for idle_p95_ms: at most,
	restLeast    = 10                   // and at least for it to count
	restGap      = 5 * time.Millisecond // between them, at least
	leastDue     = 1500                 // requests that a trial of the goodput should have,
	longest      = 4                    // unless that takes so many times --duration
	refusedAll   = 100                  // requests that a trial counts in which none was answered
)

// wantsGoodput tells whether the goodput of a function is measured.
func (j job) wantsGoodput(name string) bool { return j.goodput && j.objective(name) > 0 }

// form is how the rows of the job are written.
func (j job) form() profile.Form {
	for _, fn := range j.functions {
		if j.wantsGoodput(fn.Name) {
			return profile.Form{Goodput: true}
		}
	}
	return profile.Form{}
}

// atRest sends single requests with gaps between them, and returns what they
// saw. The gaps are as long as the requests or longer, so that a quota has paid
// for one before the next comes, and random, so that these come at any time of a
// window. They take --duration at most, but for the last.
func (t trial) atRest(ctx context.Context, send load.Target, quota float64) (goodput.Trial, error) {
	until := time.Now().Add(t.load.Duration)
	rng := splitmix.Source(t.load.Seed)
	slo := t.objective(t.fn.Name)
	seen := goodput.Trial{}
	var took []float64
	for last := restGap; seen.Count < restRequests && time.Now().Before(until); {
		gap := time.Duration((1 + 2*rng.Unit()) * float64(max(last, restGap)) / quota)
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
		ms := millis(last)
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

// findGoodput searches for the goodput of an instance that sustains so many
// invocations a second and puts it into the row. The arrivals are invocations;
// the row counts the requests in them.
func (t trial) findGoodput(ctx context.Context, send load.Target, row *profile.Row, throughput float64, rest goodput.Trial) error {
	at, batch := point{t.fn.Name, row.Config}, float64(row.Batch)
	row.SLOMS = t.objective(t.fn.Name)
	if rest.Count >= restLeast && !math.IsInf(rest.P95, 1) {
		row.IdleP95MS = rest.P95
	}
	others := watch(ctx, lookPeriod, func(ctx context.Context) sample { return sample{others: t.machine.Others(ctx)} })
	found, err := t.search(ctx, send, at, goodput.New(goodput.Setting{
		Objective: row.SLOMS, Throughput: throughput, Rest: rest, Precision: t.load.Precision,
	}))
	_, _, seen := split(others())
	if err != nil {
		return err
	}
	if len(seen) > 0 && !t.share {
		return fmt.Errorf("%s ran on the GPU too during the trials for its goodput", strings.Join(seen, ", "))
	}
	if !found.Known {
		row.Unstable = 1
		t.note(fmt.Sprintf("for %s: unstable: the goodput is not known: %s", at, found.Reason))
		return nil
	}
	row.GoodputKnown, row.GoodputRPS = true, round(batch*found.RPS, 4)
	row.GoodputCIRPS = round(batch*found.CI, 4)
	if found.RPS == 0 {
		t.note(fmt.Sprintf("for %s: the goodput is 0: %s", at, found.Reason))
	}
	return nil
}

// search runs the trials that a search for the goodput asks for.
func (t trial) search(ctx context.Context, send load.Target, at point, s *goodput.Search) (goodput.Outcome, error) {
	for n := 1; ; n++ {
		rps, more := s.Next()
		if !more {
			return s.Outcome(), nil
		}
		t.trying(at, fmt.Sprintf("goodput trial %d at %.4g rps", n, rps*float64(at.config.Batch)))
		seen, err := t.arrivals(ctx, send, rps, uint64(n))
		if err != nil {
			return goodput.Outcome{}, err
		}
		t.tried(at, fmt.Sprintf("goodput trial %d at %.4g rps: p95 %.4g ms, %d of %d missed %.4g ms",
			n, seen.RPS*float64(at.config.Batch), seen.P95, seen.Misses, seen.Count, t.objective(t.fn.Name)))
		if err := t.keep(t.asTrial(at, seen)); err != nil {
			return goodput.Outcome{}, err
		}
		s.Tell(seen)
	}
}

// arrivals is one trial at a rate. Each has arrivals of its own, so that what is
// particular to one sequence is not in all of them.
func (t trial) arrivals(ctx context.Context, send load.Target, rps float64, n uint64) (goodput.Trial, error) {
	o := t.load
	o.Spec = load.Spec{Kind: load.Poisson, RPS: rps}
	o.Seed = splitmix.Mix(o.Seed + n)
	o.Precision = 0 // the search makes more trials where they are needed, and none longer
	o.Objective = time.Duration(t.objective(t.fn.Name) * float64(time.Millisecond))
	need := min(leastDue/rps, longest*o.Duration.Seconds())
	o.Duration = max(o.Duration, time.Duration(need*float64(time.Second)))
	res, err := load.Run(ctx, send, o)
	switch {
	case ctx.Err() != nil:
		return goodput.Trial{}, ctx.Err()
	case err != nil: // it refuses all at this rate
		return goodput.Trial{RPS: rps, P95: math.Inf(1), Misses: refusedAll, Count: refusedAll}, nil
	}
	seen := goodput.Trial{
		RPS: float64(res.Due) / res.Duration.Seconds(), Answered: res.Throughput(),
		P95: millis(res.P95Due), P95CI: millis(res.P95CI), Misses: res.Misses, Count: res.Due,
	}
	if res.P95Due == load.Never {
		seen.P95 = math.Inf(1)
	}
	return seen, nil
}
