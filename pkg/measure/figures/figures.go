// Package figures derives the figures of a profile from the result of a load.
//
// Latencies are in milliseconds, rates in requests per second; a batch counts as
// its size. Figures are rounded to the precision of a trial. The functions are pure;
// trials (package measure) and load tests (package loadtest) call them.
package figures

import (
	"fmt"
	"math"
	"time"

	"github.com/gfaas/gfaas/pkg/load"
	"github.com/gfaas/gfaas/pkg/profile"
)

// Millis returns a duration in milliseconds, rounded to a microsecond.
func Millis(d time.Duration) float64 { return Round(float64(d)/float64(time.Millisecond), 3) }

// Round rounds v to that many decimals.
func Round(v float64, decimals int) float64 {
	scale := math.Pow10(decimals)
	return math.Round(v*scale) / scale
}

// Fill sets the columns of row that a load measures. It multiplies throughput by
// the row's batch size.
func Fill(row *profile.Row, res load.Result) {
	batch := float64(row.Batch)
	row.TrialS = Round(res.Duration.Seconds(), 6)
	row.ThroughputRPS = Round(batch*res.Throughput(), 4)
	row.ThroughputCIRPS = max(Round(batch*res.ThroughputCI, 4), 1e-4) // 0 means unknown
	row.P50MS, row.P95MS, row.P99MS = Millis(res.P50), Millis(res.P95), Millis(res.P99)
	row.P95CIMS = Millis(res.P95CI)
	row.Errors, row.Samples = res.Errors, res.Samples
	if res.Unstable != "" {
		row.Unstable = 1
	}
}

// Remarks explains, in sentences without a full stop, why a result is unstable
// and why requests failed. It returns nil if neither is the case.
func Remarks(res load.Result) (texts []string) {
	if res.Unstable != "" {
		texts = append(texts, "unstable: "+res.Unstable)
	}
	late := res.Cut + res.Unsent
	switch {
	case late > 0:
		texts = append(texts, fmt.Sprintf("%d requests had no answer when the trial ended, %d of them not yet sent: the load exceeds the capacity",
			late, res.Unsent))
	case res.Errors > 0:
		texts = append(texts, fmt.Sprintf("%d requests failed, the last with: %v", res.Errors, res.LastFailed))
	}
	return texts
}

// CheckAnswered returns an error if no request finished in the measured period.
// The error wraps the last failure of a request, if there was one.
func CheckAnswered(res load.Result) error {
	if res.Completed > 0 && res.Samples > 0 {
		return nil
	}
	err := fmt.Errorf("no request finished in %v", res.Duration)
	if res.LastFailed != nil {
		return fmt.Errorf("%w; %d failed, the last with: %w", err, res.Errors, res.LastFailed)
	}
	return err
}
