package loadtest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestHistogram(t *testing.T) {
	ms := func(v float64) time.Duration { return time.Duration(v * float64(time.Millisecond)) }
	for _, c := range []struct {
		latencies []time.Duration
		want      string
	}{
		{nil, "[]"},
		{[]time.Duration{0, ms(0.01), ms(0.0125)}, "[{0.01 2} {0.0125 1}]"},
		{[]time.Duration{ms(1), ms(1), ms(1.01), ms(1.25), ms(2)}, "[{1 2} {1.25 2} {1.6 0} {2 1}]"},
		{[]time.Duration{ms(801), ms(1000)}, "[{1000 2}]"},
	} {
		if got := fmt.Sprint(histogram(c.latencies)); got != c.want {
			t.Errorf("%v: %s, want %s", c.latencies, got, c.want)
		}
	}
}

// Each latency is counted once, in the first bucket whose bound it does not exceed.
func TestHistogramCountsEachLatencyOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		latencies := rapid.SliceOf(rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(rapid.Int64Range(0, int64(24*time.Hour)).Draw(t, "latency"))
		})).Draw(t, "latencies")
		slices.Sort(latencies)
		at, below := 0, time.Duration(-1)
		for _, b := range histogram(latencies) {
			bound := time.Duration(b.UpToMS * float64(time.Millisecond))
			for range b.Count {
				if latencies[at] > bound || latencies[at] <= below {
					t.Fatalf("%v is between %v and %v", latencies[at], below, bound)
				}
				at++
			}
			below = bound
		}
		if at != len(latencies) {
			t.Fatalf("%d of %d are counted", at, len(latencies))
		}
	})
}
