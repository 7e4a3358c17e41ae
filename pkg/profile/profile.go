// Package profile reads and writes profiles: the performance of one instance of a function
// in each configuration (docs/files.md). Its main types are Config and Row. gfaas-profile
// writes profiles; planners (pkg/policy/place), autoscalers (pkg/policy/scale) and the
// simulator read them.
package profile

import (
	"fmt"
	"io"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// Config is a configuration: one point of the profiling grid.
type Config struct {
	SMPct float64 `json:"sm_pct"` // percent of the streaming multiprocessors
	Quota float64 `json:"quota"`  // fraction of each window
	Batch int     `json:"batch"`  // requests of an invocation; throughput counts requests, latency invocations
}

// Row holds the measurements of one configuration of one function. A missing optional column reads as zero (Batch as 1).
// Its JSON form lacks the goodput: encoders add it if it is known.
type Row struct {
	Function string `json:"function"`
	GPU      string `json:"gpu,omitempty"` // GPU model that the row was measured on; empty if unknown
	Config
	ThroughputRPS  float64 `json:"throughput_rps"` // requests per second that one instance sustains
	P50MS          float64 `json:"p50_ms"`
	P95MS          float64 `json:"p95_ms"`
	P99MS          float64 `json:"p99_ms"`
	GPUMemMiB      float64 `json:"gpu_mem_mib,omitempty"`
	ModelMemMiB    float64 `json:"model_mem_mib,omitempty"` // the part of GPUMemMiB that sharing saves
	GPUUtilPct     float64 `json:"gpu_util_pct,omitempty"`
	SMOccupancyPct float64 `json:"sm_occupancy_pct,omitempty"`
	Errors         int64   `json:"errors"`
	Samples        int64   `json:"samples"`
	TrialS         float64 `json:"trial_s"`
	WarmMS         float64 `json:"warm_ms,omitempty"`
	ColdMS         float64 `json:"cold_ms,omitempty"`
	LoadMS         float64 `json:"load_ms,omitempty"`

	// Half the widths of the 95% confidence intervals of ThroughputRPS and P95MS; 0 means unknown. Two measurements a and b
	// of the same figure differ by more than noise if |a-b| > sqrt(ci_a² + ci_b²). If either interval is unknown, use a
	// tolerance.
	ThroughputCIRPS float64 `json:"throughput_ci_rps,omitempty"`
	P95CIMS         float64 `json:"p95_ci_ms,omitempty"`
	// Unstable is 1 if the figures are unreliable: they kept changing, or missed the required precision.
	Unstable int64 `json:"unstable"`

	PowerW float64 `json:"power_w,omitempty"` // power of the whole GPU, mean over the trial

	// SLOMS is the objective for p95, in ms, for which the goodput was measured; 0 means not measured. See Goodput.
	SLOMS float64 `json:"slo_ms,omitempty"`
	// GoodputKnown reports whether GoodputRPS, which may be 0, was measured.
	GoodputKnown bool `json:"-"`
	// GoodputRPS is the largest rate of Poisson arrivals, in requests per second, whose p95 is within SLOMS. A failed
	// request counts as a miss. GoodputCIRPS is half the width of its 95% confidence interval; 0 means unknown.
	GoodputRPS   float64 `json:"-"`
	GoodputCIRPS float64 `json:"goodput_ci_rps,omitempty"`
	// IdleP95MS is the p95 latency of single requests with gaps between them.
	IdleP95MS float64 `json:"idle_p95_ms,omitempty"`

	// Instances is the number of instances that were measured at the same time, each in this configuration on the same GPU;
	// 0 means 1. The rates are sums over them, and the latencies are those of the requests to all of them.
	Instances int `json:"instances,omitempty"`

	// SMLimitPct and QuotaLimit are the most that an instance in this configuration may use while the GPU has room:
	// Dilu's limit (section 3.2), of which SMPct and Quota are the request. 0 means not stated. See Limits.
	SMLimitPct float64 `json:"sm_limit_pct,omitempty"`
	QuotaLimit float64 `json:"quota_limit,omitempty"`

	Line int `json:"-"` // line in the input file
}

// Together returns the number of instances that were measured at the same time, at least 1.
func (r Row) Together() int { return max(r.Instances, 1) }

// Goodput returns the goodput for an objective in ms, and half the width of its 95%
// confidence interval. It returns false if the goodput is unknown or was measured for
// another objective.
func (r Row) Goodput(sloMS float64) (rps, ci float64, ok bool) {
	if !r.GoodputKnown || r.SLOMS != sloMS {
		return 0, 0, false
	}
	return r.GoodputRPS, r.GoodputCIRPS, true
}

// Efficacy returns the throughput, in requests per second, of a whole GPU filled with this
// configuration: throughput / (SM share × quota), where several instances count with the sum of
// their shares. Up to a constant, it is RPR of FaST-GShare (section 3.4.1) and TE of Dilu
// (section 3.2).
func (r Row) Efficacy() float64 {
	return r.ThroughputRPS / (r.SMPct / 100 * r.Quota) / float64(r.Together())
}

// Read reads a profile of single instances, for a reader that would take a row's throughput for that of one
// instance: it fails on a row of several instances. Otherwise, it is like ReadAll.
func Read(r io.Reader, name string) ([]Row, error) {
	rows, err := ReadAll(r, name)
	for _, row := range rows {
		if row.Together() > 1 {
			return nil, &textfile.Fault{File: name, Line: row.Line, Where: "instances",
				What: fmt.Sprintf("%d, expected 1: the row has the throughput of several instances together; measure without --instances", row.Instances)}
		}
	}
	return rows, err
}

// ReadAll reads a profile; name is its name in error messages. Columns are found by name;
// unknown columns are ignored. ReadAll returns the first fault as an error that begins
// FILE:LINE: COLUMN. A throughput_rps of 0 is valid: it is a measurement in which all
// requests failed.
func ReadAll(r io.Reader, name string) ([]Row, error) {
	rows, err := csvfile.Read(r, name, columns, func(line int) Row { return Row{Config: Config{Batch: 1}, Line: line} })
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		if r.P95MS == 0 && r.ThroughputRPS > 0 {
			return nil, &textfile.Fault{File: name, Line: r.Line, Where: "p95_ms",
				What: "0, expected more than 0 because throughput_rps is above 0"}
		}
		if r.GoodputKnown && r.SLOMS == 0 {
			return nil, &textfile.Fault{File: name, Line: r.Line, Where: "slo_ms",
				What: "empty, expected the objective of the goodput in goodput_rps"}
		}
		if r.SMLimitPct > 0 && r.SMLimitPct < r.SMPct {
			return nil, r.belowRequest(name, "sm_limit_pct", r.SMLimitPct, "sm_pct", r.SMPct)
		}
		if r.QuotaLimit > 0 && r.QuotaLimit < r.Quota {
			return nil, r.belowRequest(name, "quota_limit", r.QuotaLimit, "quota", r.Quota)
		}
	}
	if err := csvfile.Unique(rows, name, "function", key); err != nil {
		return nil, err
	}
	return rows, nil
}

// belowRequest returns the fault of a limit that is below its request.
func (r Row) belowRequest(file, column string, limit float64, of string, request float64) error {
	return &textfile.Fault{File: file, Line: r.Line, Where: column, What: fmt.Sprintf("%s is below the request, expected at least %s, the %s of the row",
		csvfile.Format(limit), csvfile.Format(request), of)}
}

// key identifies a configuration within a file. The same configuration may be measured on
// several GPU models.
func key(r Row) (text string, line int) {
	text = fmt.Sprintf("%s at sm_pct %s, quota %s, batch %d",
		r.Function, csvfile.Format(r.SMPct), csvfile.Format(r.Quota), r.Batch)
	if r.Together() > 1 {
		text += fmt.Sprintf(" with %d instances", r.Instances)
	}
	if r.GPU != "" {
		text += " on " + r.GPU
	}
	return text, r.Line
}
