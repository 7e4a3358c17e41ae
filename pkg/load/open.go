package load

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/splitmix"
)

// runOpen runs an open loop: it sends requests at the times of a Poisson process. At most
// o.maxOutstanding requests are in flight, each in a slot. If all slots are taken, a request
// waits for one; its latency counts from the time when it was due, and later requests are
// due at their own times.
func runOpen(ctx context.Context, t Sender, o Options) (Result, error) {
	rec, stop := newRecorder(ctx, o)
	defer stop()
	var sent sync.WaitGroup
	slots := make(chan struct{}, o.maxOutstanding)
	arrivals := newArrivals(o.Spec.RPS, o.Seed, rec.start)
	for {
		due := arrivals.next()
		if !waitUntil(rec.sending, due) && rec.afterPeriod(due) {
			break
		}
		if !acquire(rec.ctx, slots) {
			rec.add(due, time.Now(), time.Now(), unsent)
			continue
		}
		sent.Go(func() {
			defer func() { <-slots }()
			sentAt := time.Now()
			rec.record(due, sentAt, t(rec.ctx))
		})
	}
	sent.Wait()
	return rec.result(ctx)
}

// acquire waits for a slot. It returns false if the context ends first.
func acquire(ctx context.Context, slots chan<- struct{}) bool {
	if ctx.Err() != nil {
		return false
	}
	select {
	case slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// arrivals generates the times of a Poisson process.
type arrivals struct {
	rng  splitmix.Source
	mean float64 // mean time between two arrivals, in nanoseconds
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
