package profile

import (
	"math"
	"strconv"
	"time"

	"github.com/gfaas/gfaas/pkg/command/profile/report"
	"github.com/gfaas/gfaas/pkg/number"
)

// bucket counts latencies.
type bucket struct {
	UpToMS float64 `json:"le_ms"`
	Count  int64   `json:"count"` // above the bucket before
}

// renard are the bounds of buckets within a decade, in hundredths: Renard's R10
// (ISO 3), each about a quarter above the one before. The bounds are the same for all
// histograms, so that these can be compared and added up.
var renard = [...]time.Duration{100, 125, 160, 200, 250, 315, 400, 500, 630, 800}

// histogram is that of sorted latencies, from the first bucket that has any to the
// last. What is below 10 µs is in the bucket up to that.
func histogram(sorted []time.Duration) []bucket {
	out, at := []bucket{}, 0
	for decade := 10 * time.Microsecond; at < len(sorted); decade *= 10 {
		for _, step := range renard {
			bound, before := step*decade/100, at
			for at < len(sorted) && sorted[at] <= bound {
				at++
			}
			if at > before || len(out) > 0 && at < len(sorted) {
				out = append(out, bucket{float64(bound) / float64(time.Millisecond), int64(at - before)})
			}
		}
	}
	return out
}

// pictured is a histogram for a person.
func pictured(buckets []bucket) [][]string {
	var all, sum, most int64
	for _, b := range buckets {
		all += b.Count
		most = max(most, b.Count)
	}
	rows := [][]string{{"UP TO MS", "SAMPLES", "SO FAR", ""}}
	for _, b := range buckets {
		sum += b.Count
		rows = append(rows, []string{
			number.Plain(b.UpToMS), strconv.FormatInt(b.Count, 10), number.Percent(math.Floor(1e4*float64(sum)/float64(all))/1e4, 2),
			report.Bar(float64(b.Count) / float64(most)),
		})
	}
	return rows
}
