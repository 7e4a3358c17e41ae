package load

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"
)

// TestObserveLateReports checks that reports that come some time after their iterations do not change the figures, and that an
// error of the source ends the trial.
func TestObserveLateReports(t *testing.T) {
	const each, late = 40 * time.Millisecond, 100 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		n := 0
		next := func(ctx context.Context) (Iterations, error) { // reports what has ended every 100 ms, as a log is read
			waitUntil(ctx, time.Now().Add(late-time.Since(start)%late))
			ended := int(time.Since(start) / each)
			report := Iterations{At: start.Add(time.Duration(ended) * each), N: ended - n}
			n = ended
			return report, ctx.Err()
		}
		res, err := Observe(t.Context(), start, next, Options{Warmup: time.Second, Duration: 4 * time.Second, Precision: 0.05})
		if err != nil {
			t.Fatal(err)
		}
		if got := res.Throughput(); math.Abs(got-25) > 0.01 || res.P95 != each || res.Unstable != "" || res.Errors != 0 || res.Duration != 4*time.Second {
			t.Errorf("throughput %v, %+v; want 25 iterations per second of %v each in 4 s", got, res, each)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		over := errors.New("the job is over")
		_, err := Observe(t.Context(), time.Now(), func(context.Context) (Iterations, error) { return Iterations{}, over }, Options{Duration: time.Second})
		if !errors.Is(err, over) {
			t.Errorf("got the error %v, want that of the source", err)
		}
	})
}
