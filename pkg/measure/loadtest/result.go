package loadtest

import (
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/load"
	"github.com/gfaas/gfaas/pkg/measure/figures"
	"github.com/gfaas/gfaas/pkg/measure/gate"
	"github.com/gfaas/gfaas/pkg/profile"
)

// Result is the outcome of a load test. Times are in milliseconds, rates in requests per
// second, shares in percent. Figures that were not measured are 0 or nil.
type Result struct {
	Target          string   `json:"target"`
	Load            string   `json:"load"`
	ThroughputRPS   float64  `json:"throughput_rps"`
	ThroughputCIRPS float64  `json:"throughput_ci_rps,omitempty"`
	MeanMS          float64  `json:"mean_ms,omitempty"`
	P50MS           float64  `json:"p50_ms,omitempty"`
	P95MS           float64  `json:"p95_ms,omitempty"`
	P95CIMS         float64  `json:"p95_ci_ms,omitempty"`
	P99MS           float64  `json:"p99_ms,omitempty"`
	MaxMS           float64  `json:"max_ms,omitempty"`
	Errors          int64    `json:"errors"`
	ErrorPct        *float64 `json:"error_pct,omitempty"`
	Samples         int64    `json:"samples"`
	TrialS          float64  `json:"trial_s"`
	Unstable        int64    `json:"unstable"`
	SLOMS           float64  `json:"slo_ms,omitempty"`
	WithinPct       *float64 `json:"within_pct,omitempty"`
	Histogram       []Bucket `json:"histogram"`

	row profile.Row // the figures that a profile has as well
}

// New returns the figures of a load of the target. SLOMS and WithinPct are about
// o.Objective, if it is set.
func New(target string, o load.Options, res load.Result) Result {
	row := profile.Row{Config: profile.Config{Batch: 1}}
	figures.Fill(&row, res)
	if res.Completed == 0 {
		row.ThroughputCIRPS = 0 // unknown
	}
	l := Result{
		Target: target, Load: o.Spec.String(), ThroughputRPS: row.ThroughputRPS, ThroughputCIRPS: row.ThroughputCIRPS,
		P50MS: row.P50MS, P95MS: row.P95MS, P95CIMS: row.P95CIMS, P99MS: row.P99MS, Errors: row.Errors, Samples: row.Samples,
		TrialS: row.TrialS, Unstable: row.Unstable, SLOMS: figures.Millis(o.Objective), Histogram: histogram(res.Latencies), row: row,
	}
	if n := len(res.Latencies); n > 0 {
		var sum time.Duration
		for _, elapsed := range res.Latencies {
			sum += elapsed
		}
		l.MeanMS, l.MaxMS = figures.Millis(sum/time.Duration(n)), figures.Millis(res.Latencies[n-1])
	}
	if res.Due > 0 {
		l.ErrorPct = new(100 * float64(res.Errors) / float64(res.Due))
		if o.Objective > 0 {
			l.WithinPct = new(100 * float64(res.Due-res.Misses) / float64(res.Due))
		}
	}
	return l
}

// metrics are the metrics of Figures, sorted.
var metrics = []string{
	"error_pct", "errors", "max_ms", "mean_ms", "p50_ms", "p95_ci_ms", "p95_ms", "p99_ms", "samples",
	"throughput_ci_rps", "throughput_rps", "unstable", "within_pct",
}

// Metrics returns the names of the metrics that Figures accepts, sorted.
func Metrics() []string { return slices.Clone(metrics) }

// Figures returns a metric and half the width of its 95% confidence interval (see
// gate.Figures).
func (l Result) Figures(metric string) (value, halfWidth float64, measured bool) {
	share := func(pct *float64) (float64, float64, bool) {
		if pct == nil {
			return 0, 0, false
		}
		return *pct, 0, true
	}
	switch metric {
	case "mean_ms":
		return l.MeanMS, 0, true
	case "max_ms":
		return l.MaxMS, 0, true
	case "error_pct":
		return share(l.ErrorPct)
	case "within_pct":
		return share(l.WithinPct)
	}
	return gate.FiguresOf(l.row)(metric)
}
