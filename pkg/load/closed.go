package load

import (
	"context"
	"sync"
	"time"
)

// errorPause is what a worker waits after a failure: a refusal is quick, and
// asking again at once would load the machine with refusals.
const errorPause = 10 * time.Millisecond

// closed keeps n requests outstanding until the period ends.
func closed(ctx context.Context, t Target, o Options, n int) (Result, error) {
	rec, stop := newRecorder(ctx, o)
	defer stop()
	var workers sync.WaitGroup
	for range n {
		workers.Go(func() { work(rec, t) })
	}
	workers.Wait()
	res, err := rec.result(ctx)
	res.Workers = n
	return res, err
}

// work is one client of a closed loop.
func work(rec *recorder, t Target) {
	for rec.sending.Err() == nil {
		sent := time.Now()
		err := t(rec.ctx)
		rec.done(sent, sent, err)
		if err != nil {
			waitUntil(rec.sending, time.Now().Add(errorPause))
		}
	}
}

// waitUntil waits for a time and tells whether it came before the context
// ended.
func waitUntil(ctx context.Context, at time.Time) bool {
	wait := time.Until(at)
	if wait <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// How max looks for saturation.
const (
	saturated     = 1.05 // doubling the workers must give this much, or they were enough
	probeAnswers  = 20   // answers a probe needs to tell 5%
	probesInTrial = 10   // a probe is this part of the measured period, or longer for its answers
)

// saturate is the smallest number of workers, among powers of two, that
// doubling does not improve on by 5%. More workers would only queue in front
// of the instance and show their own waiting as its latency.
func saturate(ctx context.Context, t Target, o Options) (int, error) {
	best := 0.0
	for n := 1; n <= o.maxOutstanding; n *= 2 {
		got, err := probe(ctx, t, o, n)
		if err != nil {
			return 0, err
		}
		switch {
		case n > 1 && got < best*saturated:
			return n / 2, nil
		case got == 0: // nor does anybody else get an answer
			return n, nil
		}
		best = got
	}
	return o.maxOutstanding, nil
}

// probe is the throughput with n workers, measured just long enough.
func probe(ctx context.Context, t Target, o Options, n int) (float64, error) {
	short := o
	short.Precision = 0
	short.Duration = o.Duration / probesInTrial
	short.Warmup = short.Duration / 4
	for {
		res, err := closed(ctx, t, short, n)
		if err != nil || res.Completed >= probeAnswers || short.Duration >= o.Duration {
			return res.Throughput(), err
		}
		need := o.Duration
		if res.Completed > 0 {
			need = time.Duration(1.2 * probeAnswers / res.Throughput() * float64(time.Second))
		}
		short.Duration = min(max(need, 2*short.Duration), o.Duration)
		short.Warmup = short.Duration / 4
	}
}
