package load

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// A target counts as broken when so many requests failed in a row over so much
// time. The time lets a burst that is refused at once pass.
const (
	brokenStreak = 100
	brokenTime   = time.Second
)

// lateBy is how late a request must be sent to count as late: well above
// what timers of a busy machine are off by.
const lateBy = 10 * time.Millisecond

var errCut = errors.New("not answered before the trial ended")

// outcome is how a request ended.
type outcome uint8

const (
	answered outcome = iota
	failed
	cut    // unanswered when draining ended
	unsent // due, but all places were taken until draining ended
)

// request is one request; its times count from the start of the trial.
type request struct {
	due, sent, end time.Duration
	how            outcome
}

// recorder collects the outcomes of requests and decides when there are
// enough. It is safe for concurrent use.
type recorder struct {
	ctx     context.Context // of the requests
	cancel  context.CancelCauseFunc
	sending context.Context // ends when no more are to be sent
	options Options
	start   time.Time
	steered sync.WaitGroup
	from    time.Duration // beginning of the measured period, once steered

	mu     sync.Mutex
	log    []request
	last   error // the last failure
	streak int
	good   time.Duration // last success, or the beginning
	to     time.Duration // end of the measured period; 0 until it is known
}

// newRecorder begins a trial now. The context it carries ends with the parent,
// when the target proves broken, and when draining is over.
func newRecorder(parent context.Context, o Options) (*recorder, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	sending, enough := context.WithCancel(ctx)
	r := &recorder{ctx: ctx, cancel: cancel, sending: sending, options: o, start: time.Now(), from: o.Warmup}
	r.steered.Go(func() {
		defer enough()
		r.steer()
	})
	return r, func() { cancel(nil); r.steered.Wait() }
}

// steer looks at what was measured until that is enough, and then ends the
// sending, and after a while the waiting for answers.
func (r *recorder) steer() {
	waiting, cancel := context.WithCancel(r.ctx)
	defer cancel()
	defer context.AfterFunc(r.options.Until, cancel)()
	for look, drain := r.options.Warmup+r.options.Duration, r.options.drain; ; {
		early := !waitUntil(waiting, r.start.Add(look))
		if r.ctx.Err() != nil {
			return
		}
		var next time.Duration
		switch {
		case early:
			look, drain = time.Since(r.start), min(drain, earlyDrain)
		case r.options.Precision > 0:
			r.from, next = r.look(look, r.seen())
		}
		if next == 0 {
			time.AfterFunc(time.Until(r.start.Add(look+drain)), func() { r.cancel(errCut) })
			r.mu.Lock()
			defer r.mu.Unlock()
			r.to = look
			return
		}
		look = next
	}
}

// seen is what was recorded so far. It does not change when more is, so
// looking at it keeps no request waiting.
func (r *recorder) seen() []request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log
}

// past tells whether a time is behind the measured period, or the trial has
// ended without one.
func (r *recorder) past(due time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.to == 0 || due.Sub(r.start) >= r.to
}

// done records one request: when it was due, when it was sent, how it ended.
func (r *recorder) done(due, sent time.Time, err error) {
	q := request{due: due.Sub(r.start), sent: sent.Sub(r.start), end: time.Since(r.start)}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
		r.streak, r.good = 0, q.end
	case context.Cause(r.ctx) == errCut:
		q.how = cut
	default:
		q.how = failed
		if r.ctx.Err() == nil {
			r.failed(q.end, err)
		}
	}
	r.log = append(r.log, q)
}

// unsent records a request that was due but never sent.
func (r *recorder) unsent(due time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Since(r.start)
	r.log = append(r.log, request{due: due.Sub(r.start), sent: now, end: now, how: unsent})
}

// failed counts failures in a row and ends the trial of a broken target.
func (r *recorder) failed(at time.Duration, err error) {
	r.last = err
	r.streak++
	if r.streak >= brokenStreak && at-r.good >= brokenTime && !r.options.Persist {
		r.cancel(fmt.Errorf("%d requests in a row failed, the last with: %w", r.streak, err))
	}
}

// result is what was recorded, once no request is under way.
func (r *recorder) result(parent context.Context) (Result, error) {
	if err := parent.Err(); err != nil {
		return Result{}, err
	}
	if cause := context.Cause(r.ctx); cause != nil && cause != errCut {
		return Result{}, cause
	}
	r.steered.Wait()
	if r.to <= r.from {
		return Result{}, errEarly
	}
	w := r.window(r.seen(), r.from, r.to)
	res := Result{Warmup: r.from, Duration: r.to - r.from, LastFailed: r.last, Latencies: w.latencies}
	w.count(&res)
	res.P50, res.P95, res.P99 = quantile(w.latencies, 0.50), quantile(w.latencies, 0.95), quantile(w.latencies, 0.99)
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

// window is the trial between two times.
func (r *recorder) window(log []request, from, to time.Duration) *window {
	w := &window{options: r.options, log: log, from: from, to: to}
	for _, q := range log {
		if q.how == answered {
			w.spread(q)
		}
		if q.due < from || q.due >= to || q.how == failed {
			continue
		}
		w.latencies = append(w.latencies, q.end-q.due)
		i := w.bin(q.due)
		w.inBin[i] = append(w.inBin[i], q.end-q.due)
	}
	slices.Sort(w.latencies)
	return w
}
