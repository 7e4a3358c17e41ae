package load

import (
	"context"
	"fmt"
	"time"
)

// Iterations is a report of a job's progress: N iterations, 1 or more, have ended since the last report, the last
// of them at the time At.
type Iterations struct {
	At time.Time
	N  int
}

// reportDelay is how much later than its time a report may usually come.
const reportDelay = 250 * time.Millisecond

// Observe measures a job that runs iterations one after the other, without sending it anything. The function
// next waits for the next report. It may return a report some time after its At. The trial begins now, in
// the middle of an iteration that began at the time last. The figures are those of a closed loop with one
// worker whose requests are the iterations; Options.Spec is ignored. Observe fails with the error of next, and if
// no iteration ends in the measured period.
func Observe(ctx context.Context, last time.Time, next func(context.Context) (Iterations, error), o Options) (Result, error) {
	o.Spec, o.iterations = Spec{Kind: Closed, Workers: 1}, true
	if err := o.complete(); err != nil {
		return Result{}, err
	}
	rec, stop := newRecorder(ctx, o)
	defer stop()
	for {
		report, err := next(rec.ctx)
		if err != nil && context.Cause(rec.ctx) != errCut {
			return Result{}, err
		}
		if err != nil { // no report after the measured period
			rec.add(last, last, time.Now(), cut)
			break
		}
		if !report.At.After(last) { // the clock was set back
			report.At = last.Add(time.Duration(report.N))
		}
		for n := range report.N {
			each := report.At.Sub(last) / time.Duration(report.N-n)
			rec.add(last, last, last.Add(each), answered)
			last = last.Add(each)
		}
		if rec.sending.Err() != nil && rec.afterPeriod(last) {
			break
		}
	}
	res, err := rec.result(ctx)
	if err == nil && res.Completed == 0 {
		err = fmt.Errorf("no iteration ended in %v", res.Duration)
	}
	res.Workers = 1
	return res, err
}
