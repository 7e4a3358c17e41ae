package sim_test

import (
	"cmp"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/sim"
	"github.com/gfaas/gfaas/pkg/trace"
)

func batchConfig(policy string, functions ...trace.Function) sim.Config {
	return sim.Config{Functions: functions, GPUs: 1, Concurrency: 1, BatchWindow: time.Second,
		Config: queue.Config{Policy: policy, Pool: residency.Unlimited, Options: queue.Defaults()}}
}

// TestBatchDurations compares the latencies of invocations in batches with ones that were computed by hand.
func TestBatchDurations(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name     string
		slope    float64
		inflight int
		cold     time.Duration
		arrivals []time.Duration // of invocations that take 10 s alone
		mean     float64         // of their latencies, in seconds
	}{
		{"at no cost", 0, 4, 10 * s, []time.Duration{0, 0, 0}, 10},
		{"a half slower each", 0.5, 4, 10 * s, []time.Duration{0, 0, 0}, 20},
		{"one after another, if the batch is full", 0.5, 2, 10 * s, []time.Duration{0, 0, 0}, (15 + 15 + 25) / 3.},
		// The first one has 5 s of work left when the second one arrives, which take 7.5 s; the second one then has 5 s left.
		{"one joins", 0.5, 4, 10 * s, []time.Duration{0, 5 * s}, (12.5 + 12.5) / 2},
		{"both wait for the start", 0.5, 4, 30 * s, []time.Duration{0, 5 * s}, (35 + 30) / 2.},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := trace.Function{Name: "f", Model: "f", Warm: 10 * s, Cold: c.cold, Weight: 1, Inflight: c.inflight, BatchSlope: c.slope}
			var rows []trace.Row
			for _, at := range c.arrivals {
				rows = append(rows, trace.Row{At: at})
			}
			for _, policy := range queue.Names() {
				if policy == "batch" || queue.OneAtATime(policy) && c.cold > f.Warm {
					continue // they run one invocation at a time, or have no cold starts
				}
				got, err := sim.Run(batchConfig(policy, f), trace.NewList(rows))
				if err != nil {
					t.Fatal(err)
				}
				if math.Abs(got.LatencyMS.Mean-c.mean*1000) > 0.001 {
					t.Errorf("%s: mean latency %.3f ms, want %.3f", policy, got.LatencyMS.Mean, c.mean*1000)
				}
			}
		})
	}
}

// TestBatchSharesTime checks that a batch with the slope 1 takes as long as its invocations one after another.
func TestBatchSharesTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := trace.Function{Name: "f", Model: "f", Warm: 10 * time.Millisecond, Cold: 10 * time.Millisecond, Weight: 1,
			Inflight: rapid.IntRange(1, 5).Draw(t, "inflight"), BatchSlope: 1}
		n := rapid.IntRange(1, 40).Draw(t, "invocations")
		var rows []trace.Row
		for i := range n { // the GPU is never idle
			rows = append(rows, trace.Row{At: time.Duration(i) * time.Duration(rapid.IntRange(0, 9).Draw(t, "gap")) * 100 * time.Microsecond})
		}
		rows[0].At = 0
		got, err := sim.Run(batchConfig("mqfq-sticky", f), trace.NewList(sorted(rows)))
		if err != nil {
			t.Fatal(err)
		}
		if want := float64(n) * 10; math.Abs(got.MakespanMS-want) > 0.001*float64(n) || got.Completed != int64(n) {
			t.Fatalf("makespan %.4f ms of %d completed, want %.0f ms of %d", got.MakespanMS, got.Completed, want, n)
		}
	})
}

// TestBatchesShorten checks, for random traces of two models of which one fits, under each policy, that all invocations
// complete, and that batches at no cost shorten the makespan.
func TestBatchesShorten(t *testing.T) {
	var rows []trace.Row
	for i := range 400 {
		rows = append(rows, trace.Row{At: time.Duration(i) * 50 * time.Millisecond, Function: int32(i / 2 % 2)})
	}
	for _, policy := range queue.Names() {
		if policy == "batch" {
			continue
		}
		makespan := func(inflight int) float64 {
			f := trace.Function{Name: "f", Model: "f", Warm: time.Second, Load: time.Second, Cold: 2 * time.Second, Weight: 1, MemMiB: 10, Inflight: inflight}
			g := f
			g.Name, g.Model = "g", "g"
			c := batchConfig(policy, f, g)
			c.Mem = 15 << 20
			got, err := sim.Run(c, trace.NewList(rows))
			if err != nil || got.Completed != 400 {
				t.Fatalf("%s: completed %+v, %v, want 400", policy, got, err)
			}
			return got.MakespanMS
		}
		if one, eight := makespan(1), makespan(8); eight > one/3 {
			t.Errorf("%s: makespan %.0f ms with batches of 8, %.0f ms without, want at most a third", policy, eight, one)
		}
	}
}

func sorted(rows []trace.Row) []trace.Row {
	slices.SortFunc(rows, func(a, b trace.Row) int { return cmp.Compare(a.At, b.At) })
	return rows
}
