package load

import (
	"context"
	"sync"
	"time"
)

// errorPause is a worker's pause after a failed request. Without it, an instance that refuses requests at once would get a
// flood of them.
const errorPause = 10 * time.Millisecond

// runClosed runs a closed loop: n workers, each of which sends its next request after the answer to the last one, until
// the measured period ends.
func runClosed(ctx context.Context, t Sender, o Options, n int) (Result, error) {
	rec, stop := newRecorder(ctx, o)
	defer stop()
	var workers sync.WaitGroup
	for range n {
		workers.Go(func() { runWorker(rec, t) })
	}
	workers.Wait()
	res, err := rec.result(ctx)
	res.Workers = n
	return res, err
}

// runWorker runs one worker of a closed loop until the measured period ends.
func runWorker(rec *recorder, t Sender) {
	for rec.sending.Err() == nil {
		sent := time.Now()
		err := t(rec.ctx)
		rec.record(sent, sent, err)
		if err != nil {
			waitUntil(rec.sending, time.Now().Add(errorPause))
		}
	}
}

// waitUntil waits for a time. It returns false if the context ends first.
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

// Parameters of the search for saturation.
const (
	minImprovement = 1.05 // the search ends when twice the workers improve the throughput by a smaller factor
	probeAnswers   = 20   // number of answers that a probe needs to detect a difference of 5%
	probesInTrial  = 10   // a probe lasts 1/10 of the measured period, or longer if it needs more answers
)

// saturate returns the smallest power of two as a number of workers for which twice as many improve the throughput by less
// than 5%. More workers would only queue at the instance, and the time in the queue would count as its latency.
func saturate(ctx context.Context, t Sender, o Options) (int, error) {
	best := 0.0
	for n := 1; n <= o.maxOutstanding; n *= 2 {
		got, err := probe(ctx, t, o, n)
		if err != nil {
			return 0, err
		}
		switch {
		case n > 1 && got < best*minImprovement:
			return n / 2, nil
		case got == 0: // no request succeeds, so more workers would not help
			return n, nil
		}
		best = got
	}
	return o.maxOutstanding, nil
}

// probe returns the throughput of a closed loop of n workers. It doubles its duration, up to that of a trial, until it has
// probeAnswers answers.
func probe(ctx context.Context, t Sender, o Options, n int) (float64, error) {
	short := o
	short.Precision = 0
	short.Duration = o.Duration / probesInTrial
	short.Warmup = short.Duration / 4
	for {
		res, err := runClosed(ctx, t, short, n)
		if err != nil || res.Completed >= probeAnswers || short.Duration >= o.Duration {
			return res.Throughput(), err
		}
		duration := o.Duration
		if res.Completed > 0 {
			duration = time.Duration(1.2 * probeAnswers / res.Throughput() * float64(time.Second))
		}
		short.Duration = min(max(duration, 2*short.Duration), o.Duration)
		short.Warmup = short.Duration / 4
	}
}
