package sim

import (
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/trace"
)

// TestClosedLoop checks that a closed loop equals a trace with the same arrivals, and that each
// invocation that completes before the end is followed by one of its function at once.
func TestClosedLoop(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := draw(t, rapid.SampledFrom(queue.Names()).Draw(t, "policy"))
		loop := w.config
		loop.RepeatUntil = time.Duration(rapid.IntRange(1, 2000).Draw(t, "until")) * milli
		arrivals := map[int64]trace.Row{}
		loop.Decide = func(_ time.Duration, a *queue.Action) error {
			if a.Kind == queue.Run || a.Kind == queue.Reject {
				arrivals[a.ID] = trace.Row{At: a.Arrived, Function: a.Function}
			}
			return nil
		}
		got, err := Run(loop, trace.NewList(w.rows))
		if err != nil {
			t.Fatal(err)
		}
		if int64(len(arrivals)) != got.Invocations {
			t.Fatalf("got %d invocations, of which %d were decided about", got.Invocations, len(arrivals))
		}
		rows := make([]trace.Row, len(arrivals))
		for id, row := range arrivals {
			rows[id] = row
		}
		want, err := Run(w.config, trace.NewList(rows))
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("closed loop: got %+v, want as with a trace of its arrivals %+v", got, want)
		}
	})
}

// TestClosedLoopByHand checks the number of invocations of two clients with one GPU: one runs every
// 10 ms, and the last begins before 100 ms.
func TestClosedLoopByHand(t *testing.T) {
	w := Config{GPUs: 1, Concurrency: 1, Config: queue.Config{Policy: "fcfs", Options: queue.Defaults(), Pool: -1}, RepeatUntil: 100 * milli,
		Functions: []trace.Function{{Name: "a", Warm: 10 * milli, Cold: 10 * milli, Weight: 1}, {Name: "b", Warm: 10 * milli, Cold: 10 * milli, Weight: 1}}}
	got, err := Run(w, trace.NewList([]trace.Row{{Function: 0}, {Function: 1}}))
	if err != nil {
		t.Fatal(err)
	}
	// Completions at 10, 20, ... 90 ms add an invocation each; those at 100 and 110 ms do not.
	if got.Completed != 11 || got.MakespanMS != 110 || got.LatencyMS.Mean >= 20 || got.LatencyMS.Max != 20 {
		t.Errorf("got %+v, want 11 invocations in 110 ms, with latencies of at most 20 ms", got)
	}
}
