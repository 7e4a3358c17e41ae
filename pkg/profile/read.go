package profile

import (
	"fmt"
	"io"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/textfile"
)

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
