package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// The histogram's range in microseconds, and its precision.
const (
	lowestUS  = 1
	highestUS = int64(10 * time.Minute / time.Microsecond)
	digits    = 3
)

// A target counts as broken when so many requests failed in a row over so much
// time. The time lets a burst that is refused at once pass.
const (
	brokenStreak = 100
	brokenTime   = time.Second
)

// lateBy is how late a request must be sent to count as delayed: well above
// what timers of a busy machine are off by.
const lateBy = 10 * time.Millisecond

var errCut = errors.New("not answered before the trial ended")

// recorder collects the outcomes of requests. It is safe for concurrent use.
type recorder struct {
	ctx      context.Context // of the requests
	cancel   context.CancelCauseFunc
	from, to time.Time // the measured period

	mu     sync.Mutex
	hist   *hdrhistogram.Histogram
	res    Result
	streak int
	good   time.Time // last success, or the beginning
}

// newRecorder begins a trial now. The context it carries ends with the parent,
// when the target proves broken, and when draining is over.
func newRecorder(parent context.Context, o Options) (*recorder, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	start := time.Now()
	r := &recorder{
		ctx: ctx, cancel: cancel,
		from: start.Add(o.Warmup), to: start.Add(o.Warmup + o.Duration),
		hist: hdrhistogram.New(lowestUS, highestUS, digits),
		res:  Result{Duration: o.Duration},
		good: start,
	}
	cut := time.AfterFunc(o.Warmup+o.Duration+o.Drain, func() { cancel(errCut) })
	return r, func() { cut.Stop(); cancel(nil) }
}

// measured tells whether a time lies in the measured period.
func (r *recorder) measured(t time.Time) bool { return !t.Before(r.from) && t.Before(r.to) }

// done records one request: when it was due, when it was sent, how it ended.
func (r *recorder) done(due, sent time.Time, err error) {
	end := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.streak, r.good = 0, end
		if r.measured(end) {
			r.res.Completed++
		}
		r.res.served += r.within(sent, end)
	} else if r.ctx.Err() == nil {
		r.failed(end, err)
	}
	if !r.measured(due) {
		return
	}
	if sent.Sub(due) > lateBy {
		r.res.Delayed++
	}
	switch {
	case err == nil:
		r.sample(end.Sub(due))
	case context.Cause(r.ctx) == errCut:
		r.res.Cut++
		r.res.Errors++
		r.sample(end.Sub(due))
	default:
		r.res.Errors++
	}
}

// within is the part of a request's time that lies in the measured period.
func (r *recorder) within(sent, end time.Time) float64 {
	if !end.After(sent) {
		return 0
	}
	from, to := sent, end
	if from.Before(r.from) {
		from = r.from
	}
	if to.After(r.to) {
		to = r.to
	}
	return max(0, float64(to.Sub(from))/float64(end.Sub(sent)))
}

// unsent records a request that was due but never sent.
func (r *recorder) unsent(due time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.measured(due) {
		r.res.Unsent++
		r.res.Errors++
		r.sample(time.Since(due))
	}
}

// failed counts failures in a row and ends the trial of a broken target.
func (r *recorder) failed(at time.Time, err error) {
	r.res.LastFailed = err
	r.streak++
	if r.streak >= brokenStreak && at.Sub(r.good) >= brokenTime {
		r.cancel(fmt.Errorf("%d requests in a row failed, the last with: %w", r.streak, err))
	}
}

// sample adds a latency, the longest that the histogram holds standing for all
// above it.
func (r *recorder) sample(d time.Duration) {
	r.res.Samples++
	_ = r.hist.RecordValue(min(max(d.Microseconds(), lowestUS), highestUS))
}

// result is what was recorded, once no request is under way.
func (r *recorder) result(parent context.Context) (Result, error) {
	if err := parent.Err(); err != nil {
		return Result{}, err
	}
	if cause := context.Cause(r.ctx); cause != nil && cause != errCut {
		return Result{}, cause
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	quantile := func(q float64) time.Duration {
		return time.Duration(r.hist.ValueAtQuantile(q)) * time.Microsecond
	}
	res := r.res
	res.P50, res.P95, res.P99 = quantile(50), quantile(95), quantile(99)
	return res, nil
}
