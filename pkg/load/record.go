package load

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/number"
)

// An instance counts as broken after brokenStreak consecutive failures over at least
// brokenTime. The time tolerates a burst of immediate refusals.
const (
	brokenStreak = 100
	brokenTime   = time.Second
)

// lateThreshold is the delay from which a sent request counts as late: well above the error
// of timers on a busy machine.
const lateThreshold = 10 * time.Millisecond

var errCut = errors.New("not answered before the trial ended")

// outcome is the outcome of a request.
type outcome uint8

const (
	answered outcome = iota
	failed
	cut    // unanswered at the end of draining
	unsent // due, but all slots were taken until the end of draining
)

// request is one request; its times are relative to the start of the trial.
type request struct {
	due, sent, end time.Duration
	outcome        outcome
}

// recorder collects the outcomes of requests and decides when a trial has enough of them. It
// is safe for concurrent use.
type recorder struct {
	ctx      context.Context // the requests' context
	cancel   context.CancelCauseFunc
	sending  context.Context // ends when the senders must stop
	options  Options
	start    time.Time
	steering sync.WaitGroup // waits for steer
	from     time.Duration  // beginning of the measured period; final after steer has returned

	mu          sync.Mutex
	log         []request
	lastErr     error         // the last failure
	streak      int           // number of failures since the last success
	lastSuccess time.Duration // time of the last success, or 0
	to          time.Duration // end of the measured period; 0 until it is known
}

// newRecorder starts a trial now. The recorder's context ends with the parent, when the
// instance counts as broken, and at the end of draining.
func newRecorder(parent context.Context, o Options) (*recorder, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	sending, stopSending := context.WithCancel(ctx)
	r := &recorder{ctx: ctx, cancel: cancel, sending: sending, options: o, start: time.Now(), from: o.Warmup}
	r.steering.Go(func() {
		defer stopSending()
		r.steer()
	})
	return r, func() { cancel(nil); r.steering.Wait() }
}

// steer evaluates the measurements until they suffice. It then stops the senders and, after
// the time for draining, cancels the remaining requests.
func (r *recorder) steer() {
	waiting, cancel := context.WithCancel(r.ctx)
	defer cancel()
	defer context.AfterFunc(r.options.Until, cancel)()
	for evaluateAt, drain := r.options.Warmup+r.options.Duration, r.options.drain; ; {
		early := !waitUntil(waiting, r.start.Add(evaluateAt))
		if r.ctx.Err() != nil {
			return
		}
		var next time.Duration
		switch {
		case early:
			evaluateAt, drain = time.Since(r.start), min(drain, earlyDrain)
		case r.options.Precision > 0:
			r.from, next = r.evaluate(evaluateAt, r.requests())
		}
		if next == 0 {
			time.AfterFunc(time.Until(r.start.Add(evaluateAt+drain)), func() { r.cancel(errCut) })
			r.mu.Lock()
			defer r.mu.Unlock()
			r.to = evaluateAt
			return
		}
		evaluateAt = next
	}
}

// requests returns the requests recorded so far. Later records do not change the returned
// slice, so the caller needs no lock.
func (r *recorder) requests() []request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log
}

// afterPeriod reports whether a time is after the measured period, or the trial ended
// without a measured period.
func (r *recorder) afterPeriod(due time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.to == 0 || due.Sub(r.start) >= r.to
}

// record records a request: when it was due, when it was sent, and its error.
func (r *recorder) record(due, sent time.Time, err error) {
	q := request{due: due.Sub(r.start), sent: sent.Sub(r.start), end: time.Since(r.start)}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
		r.streak, r.lastSuccess = 0, q.end
	case context.Cause(r.ctx) == errCut:
		q.outcome = cut
	default:
		q.outcome = failed
		if r.ctx.Err() == nil {
			r.countFailure(q.end, err)
		}
	}
	r.log = append(r.log, q)
}

// add records a request or an iteration with a known outcome.
func (r *recorder) add(due, sent, end time.Time, o outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, request{due.Sub(r.start), sent.Sub(r.start), end.Sub(r.start), o})
}

// countFailure counts consecutive failures and ends the trial of a broken instance. The
// caller holds r.mu.
func (r *recorder) countFailure(at time.Duration, err error) {
	r.lastErr = err
	r.streak++
	if r.streak >= brokenStreak && at-r.lastSuccess >= brokenTime && !r.options.Persist {
		r.cancel(fmt.Errorf("%d requests in a row failed, the last with: %w", r.streak, err))
	}
}

// result returns the result of the trial. Call it when no request is in flight.
func (r *recorder) result(parent context.Context) (Result, error) {
	if err := parent.Err(); err != nil {
		return Result{}, err
	}
	if cause := context.Cause(r.ctx); cause != nil && cause != errCut {
		return Result{}, cause
	}
	r.steering.Wait()
	if r.to <= r.from {
		return Result{}, errEarly
	}
	w := r.window(r.requests(), r.from, r.to)
	res := Result{Warmup: r.from, Duration: r.to - r.from, LastFailed: r.lastErr, Latencies: w.latencies}
	w.count(&res)
	res.P50, res.P95, res.P99 = number.Quantile(w.latencies, 0.50), number.Quantile(w.latencies, 0.95), number.Quantile(w.latencies, 0.99)
	if r.options.Spec.Kind != Poisson {
		res.served, res.ThroughputCI = sum(w.served[:]), halfWidth(w.rates())
	} else {
		res.ThroughputCI = halfWidth(w.answers())
	}
	res.P95CI, _ = w.p95()
	res.P95Due = w.p95Due(res.Due)
	if r.options.Precision > 0 {
		res.Unstable = w.unstable()
	}
	return res, nil
}

// window returns the window of the trial between two times.
func (r *recorder) window(log []request, from, to time.Duration) *window {
	w := &window{options: r.options, log: log, from: from, to: to}
	for _, q := range log {
		if q.outcome == answered {
			w.spread(q)
		}
		if q.due < from || q.due >= to || q.outcome == failed {
			continue
		}
		w.latencies = append(w.latencies, q.end-q.due)
		i := w.bin(q.due)
		w.inBin[i] = append(w.inBin[i], q.end-q.due)
	}
	slices.Sort(w.latencies)
	return w
}
