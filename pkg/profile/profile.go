// Package profile reads and writes profiles: what one instance of a function
// sustains under each configuration (docs/files.md).
package profile

import (
	"fmt"
	"io"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// Config is one point of the profiling grid.
type Config struct {
	SMPct float64 // percent of the streaming multiprocessors
	Quota float64 // fraction of each window
	Batch int     // requests in one invocation: throughput counts requests, latency is of the invocation
}

// Row is one configuration of one function and what was measured there. An
// optional column that the file does not have reads as zero (Batch as 1).
type Row struct {
	Function string
	GPU      string // model the row was measured on; empty if not given
	Config
	ThroughputRPS  float64 // requests a second that one instance sustains
	P50MS          float64
	P95MS          float64
	P99MS          float64
	GPUMemMiB      float64
	ModelMemMiB    float64 // the part of GPUMemMiB that sharing saves
	GPUUtilPct     float64
	SMOccupancyPct float64
	Errors         int64
	Samples        int64
	TrialS         float64
	WarmMS         float64
	ColdMS         float64
	LoadMS         float64

	// Half the width of the 95% confidence intervals of ThroughputRPS and
	// P95MS; 0 is not known. Two measurements a and b of the same figure
	// differ by more than noise when |a-b| > sqrt(ci_a² + ci_b²); where either
	// is not known, only a tolerance can tell.
	ThroughputCIRPS float64
	P95CIMS         float64
	// Unstable is 1 when the figures should not be relied on: they kept
	// changing, or are known less well than was asked for.
	Unstable int64

	PowerW float64 // of the whole GPU, mean over the trial

	// SLOMS is the objective for p95, in ms, that the goodput was measured for;
	// 0 when none was. See Goodput.
	SLOMS float64
	// GoodputKnown tells whether GoodputRPS, which may be 0, was measured.
	GoodputKnown bool
	// GoodputRPS is the largest rate of Poisson arrivals, in requests a second,
	// whose p95 is within SLOMS, failures counting as misses; GoodputCIRPS is half
	// the width of its 95% confidence interval, 0 is not known.
	GoodputRPS   float64
	GoodputCIRPS float64
	// IdleP95MS is the p95 latency of single requests with gaps between them.
	IdleP95MS float64

	Line int // line in the file it came from
}

// Goodput is the goodput for an objective in ms, with half the width of its 95%
// confidence interval; false when it was not measured, not for that objective, or
// did not settle.
func (r Row) Goodput(sloMS float64) (rps, ci float64, ok bool) {
	if !r.GoodputKnown || r.SLOMS != sloMS {
		return 0, 0, false
	}
	return r.GoodputRPS, r.GoodputCIRPS, true
}

// Efficacy is the throughput of a whole GPU filled with this configuration,
// in requests a second: throughput / (SM share × quota). It is RPR of
// FaST-GShare (section 3.4.1) and TE of Dilu (section 3.2) up to a constant.
func (r Row) Efficacy() float64 { return r.ThroughputRPS / (r.SMPct / 100 * r.Quota) }

// maxBatch is the largest batch a row may have.
const maxBatch = 1 << 20

// Read reads a profile; name is what messages call it. Columns are found by
// name, unknown ones are ignored. The first fault is an error of the form
// FILE:LINE: COLUMN: what is wrong, what was expected. A row may sustain
// nothing (throughput_rps 0): a measurement in which every request failed.
func Read(r io.Reader, name string) ([]Row, error) {
	lines, err := csvfile.Read(r, name, columns(), func() Row { return Row{Config: Config{Batch: 1}} })
	if err != nil {
		return nil, err
	}
	rows := make([]Row, len(lines))
	for i, line := range lines {
		rows[i] = line.Value
		rows[i].Line = line.Line
		if rows[i].P95MS == 0 && rows[i].ThroughputRPS > 0 {
			return nil, &textfile.Fault{File: name, Line: line.Line, Where: "p95_ms",
				What: "0 although throughput_rps is not, expected more than 0"}
		}
		if rows[i].GoodputKnown && rows[i].SLOMS == 0 {
			return nil, &textfile.Fault{File: name, Line: line.Line, Where: "slo_ms",
				What: "not there although goodput_rps is, expected the objective that it is for"}
		}
	}
	if err := csvfile.Unique(lines, name, "function", key); err != nil {
		return nil, err
	}
	return rows, nil
}

// key tells configurations of a file apart. The same configuration may be
// measured on several models of GPU.
func key(r Row) string {
	k := fmt.Sprintf("%s at sm_pct %s, quota %s, batch %d",
		r.Function, csvfile.Format(r.SMPct), csvfile.Format(r.Quota), r.Batch)
	if r.GPU != "" {
		k += " on " + r.GPU
	}
	return k
}

// number is a column whose cell is stored through a pointer into the row.
func number(name string, required bool, parse func(string) (float64, error), at func(*Row) *float64) csvfile.Column[Row] {
	return csvfile.Column[Row]{Name: name, Required: required, Set: func(row *Row, cell string) (err error) {
		*at(row), err = parse(cell)
		return err
	}}
}

func count(name string, at func(*Row) *int64) csvfile.Column[Row] {
	return csvfile.Column[Row]{Name: name, Set: func(row *Row, cell string) (err error) {
		*at(row), err = csvfile.Count(cell, 0)
		return err
	}}
}

func columns() []csvfile.Column[Row] {
	n := csvfile.Number
	return []csvfile.Column[Row]{
		{Name: "function", Required: true, Set: func(row *Row, cell string) (err error) {
			row.Function, err = csvfile.Name(cell)
			return err
		}},
		number("sm_pct", true, csvfile.Percent, func(r *Row) *float64 { return &r.SMPct }),
		number("quota", true, csvfile.Fraction, func(r *Row) *float64 { return &r.Quota }),
		number("throughput_rps", true, n, func(r *Row) *float64 { return &r.ThroughputRPS }),
		number("p95_ms", true, n, func(r *Row) *float64 { return &r.P95MS }),
		{Name: "batch", Set: setBatch},
		{Name: "gpu", Set: func(row *Row, cell string) (err error) {
			row.GPU, err = csvfile.Name(cell)
			return err
		}},
		number("p50_ms", false, n, func(r *Row) *float64 { return &r.P50MS }),
		number("p99_ms", false, n, func(r *Row) *float64 { return &r.P99MS }),
		number("gpu_mem_mib", false, n, func(r *Row) *float64 { return &r.GPUMemMiB }),
		number("model_mem_mib", false, n, func(r *Row) *float64 { return &r.ModelMemMiB }),
		number("gpu_util_pct", false, n, func(r *Row) *float64 { return &r.GPUUtilPct }),
		number("sm_occupancy_pct", false, n, func(r *Row) *float64 { return &r.SMOccupancyPct }),
		count("errors", func(r *Row) *int64 { return &r.Errors }),
		count("samples", func(r *Row) *int64 { return &r.Samples }),
		number("trial_s", false, n, func(r *Row) *float64 { return &r.TrialS }),
		number("warm_ms", false, n, func(r *Row) *float64 { return &r.WarmMS }),
		number("cold_ms", false, n, func(r *Row) *float64 { return &r.ColdMS }),
		number("load_ms", false, n, func(r *Row) *float64 { return &r.LoadMS }),
		number("throughput_ci_rps", false, n, func(r *Row) *float64 { return &r.ThroughputCIRPS }),
		number("p95_ci_ms", false, n, func(r *Row) *float64 { return &r.P95CIMS }),
		count("unstable", func(r *Row) *int64 { return &r.Unstable }),
		number("power_w", false, n, func(r *Row) *float64 { return &r.PowerW }),
		{Name: "goodput_rps", Set: func(row *Row, cell string) (err error) {
			row.GoodputRPS, err = n(cell)
			row.GoodputKnown = true
			return err
		}},
		number("goodput_ci_rps", false, n, func(r *Row) *float64 { return &r.GoodputCIRPS }),
		number("slo_ms", false, n, func(r *Row) *float64 { return &r.SLOMS }),
		number("idle_p95_ms", false, n, func(r *Row) *float64 { return &r.IdleP95MS }),
	}
}

func setBatch(row *Row, cell string) error {
	v, err := csvfile.Count(cell, 1)
	if err == nil && v > maxBatch {
		err = fmt.Errorf("%s is out of range, expected a whole number from 1 to %d", csvfile.Quote(cell), maxBatch)
	}
	row.Batch = int(v)
	return err
}
