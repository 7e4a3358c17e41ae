package loadtest

import "time"

// Bucket counts the latencies up to a bound and above the bound of the previous
// bucket.
type Bucket struct {
	UpToMS float64 `json:"le_ms"`
	Count  int64   `json:"count"`
}

// renard has the bounds of buckets within a decade, in hundredths: Renard's series R10
// (ISO 3), each about a quarter above the previous one. All histograms have the same
// bounds, so that they can be compared and added.
var renard = [...]time.Duration{100, 125, 160, 200, 250, 315, 400, 500, 630, 800}

// histogram returns the buckets of sorted latencies, from the first that is not empty to
// the last. The first Bucket of all ends at 10 µs.
func histogram(sorted []time.Duration) []Bucket {
	out, at := []Bucket{}, 0
	for decade := 10 * time.Microsecond; at < len(sorted); decade *= 10 {
		for _, step := range renard {
			bound, before := step*decade/100, at
			for at < len(sorted) && sorted[at] <= bound {
				at++
			}
			if at > before || len(out) > 0 && at < len(sorted) {
				out = append(out, Bucket{float64(bound) / float64(time.Millisecond), int64(at - before)})
			}
		}
	}
	return out
}
