// Package profile reads and writes profiles: what one instance of a function
// sustains under each configuration (docs/files.md).
package profile

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"

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
	Line   int     // line in the file it came from
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

// Header is the first line of a profile: every column of the format.
func Header() []string {
	return []string{
		"function", "gpu", "sm_pct", "quota", "batch", "throughput_rps", "p50_ms", "p95_ms", "p99_ms",
		"gpu_mem_mib", "model_mem_mib", "gpu_util_pct", "sm_occupancy_pct", "errors", "samples",
		"trial_s", "warm_ms", "cold_ms", "load_ms",
		"throughput_ci_rps", "p95_ci_ms", "unstable", "power_w",
	}
}

// Record is the row as fields in the order of Header. Numbers read back as
// they were. What was not measured is left empty: it must not look like a
// measurement of 0.
func Record(r Row) []string {
	f := csvfile.Format
	measured := func(v float64) string {
		if v == 0 {
			return ""
		}
		return f(v)
	}
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	// A count of 0 means something only of a trial.
	counted := func(v int64) string {
		if v == 0 && r.TrialS == 0 {
			return ""
		}
		return n(v)
	}
	return []string{
		r.Function, r.GPU, f(r.SMPct), f(r.Quota), n(int64(r.Batch)), f(r.ThroughputRPS), measured(r.P50MS), f(r.P95MS), measured(r.P99MS),
		measured(r.GPUMemMiB), measured(r.ModelMemMiB), measured(r.GPUUtilPct), measured(r.SMOccupancyPct),
		counted(r.Errors), counted(r.Samples), measured(r.TrialS), measured(r.WarmMS), measured(r.ColdMS), measured(r.LoadMS),
		measured(r.ThroughputCIRPS), measured(r.P95CIMS), counted(r.Unstable), measured(r.PowerW),
	}
}

// Write writes a profile with all columns, header first.
func Write(w io.Writer, rows []Row) error {
	out := csv.NewWriter(w)
	if err := out.Write(Header()); err != nil {
		return err
	}
	for _, row := range rows {
		if err := out.Write(Record(row)); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}
