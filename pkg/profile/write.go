package profile

import (
	"encoding/csv"
	"io"
	"strconv"

	"github.com/gfaas/gfaas/pkg/csvfile"
)

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
