package load

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/splitmix"
)

// open sends at the times of a Poisson process. When all places are taken a
// request waits for one; its latency counts from the time it was due all the
// same, and later requests keep their own times.
func open(ctx context.Context, t Target, o Options) (Result, error) {
	rec, stop := newRecorder(ctx, o)
	defer stop()
	var sent sync.WaitGroup
	places := make(chan struct{}, o.maxOutstanding)
	arrivals := newArrivals(o.Spec.RPS, o.Seed, rec.start)
	for {
		due := arrivals.next()
		if !waitUntil(rec.sending, due) && rec.past(due) {
			break
		}
		if !take(rec.ctx, places) {
			rec.unsent(due)
			continue
		}
		sent.Go(func() {
			defer func() { <-places }()
			begun := time.Now()
			rec.done(due, begun, t(rec.ctx))
		})
	}
	sent.Wait()
	return rec.result(ctx)
}

// take waits for a place and tells whether it got one.
func take(ctx context.Context, places chan<- struct{}) bool {
	if ctx.Err() != nil {
		return false
	}
	select {
	case places <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// arrivals are the times of a Poisson process.
type arrivals struct {
	rng  splitmix.Source
	mean float64 // nanoseconds between two arrivals
	last time.Time
}

func newArrivals(rps float64, seed uint64, start time.Time) *arrivals {
	return &arrivals{rng: splitmix.Source(seed), mean: float64(time.Second) / rps, last: start}
}

func (a *arrivals) next() time.Time {
	// A rate near zero must not overflow a duration.
	gap := min(a.rng.Exponential()*a.mean, math.MaxInt64/2)
	a.last = a.last.Add(time.Duration(gap))
	return a.last
}
