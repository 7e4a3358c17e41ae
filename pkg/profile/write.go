package profile

import (
	"encoding/csv"
	"io"
	"slices"
	"strconv"

	"github.com/gfaas/gfaas/pkg/csvfile"
)

// Form is which columns a profile is written with.
type Form struct {
	// Goodput adds the columns of the goodput, which most profiles have not: a
	// profile without reads and writes as it did before there were any.
	Goodput bool
}

// FormOf is the form that rows need.
func FormOf(rows []Row) Form {
	return Form{Goodput: slices.ContainsFunc(rows, func(r Row) bool {
		return r.GoodputKnown || r.SLOMS > 0 || r.GoodputCIRPS > 0 || r.IdleP95MS > 0
	})}
}

// Whole is the form with every column of the format.
var Whole = Form{Goodput: true}

// Header is the first line of a profile.
func (f Form) Header() []string {
	names := []string{
		"function", "gpu", "sm_pct", "quota", "batch", "throughput_rps", "p50_ms", "p95_ms", "p99_ms",
		"gpu_mem_mib", "model_mem_mib", "gpu_util_pct", "sm_occupancy_pct", "errors", "samples",
		"trial_s", "warm_ms", "cold_ms", "load_ms",
		"throughput_ci_rps", "p95_ci_ms", "unstable", "power_w",
	}
	if f.Goodput {
		names = append(names, "goodput_rps", "goodput_ci_rps", "slo_ms", "idle_p95_ms")
	}
	return names
}

// Record is the row as fields in the order of Header. Numbers read back as
// they were. What was not measured is left empty: it must not look like a
// measurement of 0.
func (f Form) Record(r Row) []string {
	number := csvfile.Format
	measured := func(v float64) string {
		if v == 0 {
			return ""
		}
		return number(v)
	}
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	// A count of 0 means something only of a trial.
	counted := func(v int64) string {
		if v == 0 && r.TrialS == 0 {
			return ""
		}
		return n(v)
	}
	fields := []string{
		r.Function, r.GPU, number(r.SMPct), number(r.Quota), n(int64(r.Batch)), number(r.ThroughputRPS), measured(r.P50MS), number(r.P95MS), measured(r.P99MS),
		measured(r.GPUMemMiB), measured(r.ModelMemMiB), measured(r.GPUUtilPct), measured(r.SMOccupancyPct),
		counted(r.Errors), counted(r.Samples), measured(r.TrialS), measured(r.WarmMS), measured(r.ColdMS), measured(r.LoadMS),
		measured(r.ThroughputCIRPS), measured(r.P95CIMS), counted(r.Unstable), measured(r.PowerW),
	}
	if f.Goodput {
		goodput := ""
		if r.GoodputKnown {
			goodput = number(r.GoodputRPS)
		}
		fields = append(fields, goodput, measured(r.GoodputCIRPS), measured(r.SLOMS), measured(r.IdleP95MS))
	}
	return fields
}

// Write writes a profile with the columns that its rows need, header first.
func Write(w io.Writer, rows []Row) error {
	form := FormOf(rows)
	out := csv.NewWriter(w)
	if err := out.Write(form.Header()); err != nil {
		return err
	}
	for _, row := range rows {
		if err := out.Write(form.Record(row)); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}
