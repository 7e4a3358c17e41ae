package profile

import (
	"strconv"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/profile"
)

// jsonRow is the form of a row under -o json. It omits columns that were not measured.
type jsonRow struct {
	Function        string  `json:"function"`
	GPU             string  `json:"gpu,omitempty"`
	SMPct           float64 `json:"sm_pct"`
	Quota           float64 `json:"quota"`
	Batch           int     `json:"batch"`
	ThroughputRPS   float64 `json:"throughput_rps"`
	P50MS           float64 `json:"p50_ms"`
	P95MS           float64 `json:"p95_ms"`
	P99MS           float64 `json:"p99_ms"`
	GPUMemMiB       float64 `json:"gpu_mem_mib,omitempty"`
	Errors          int64   `json:"errors"`
	Samples         int64   `json:"samples"`
	TrialS          float64 `json:"trial_s"`
	WarmMS          float64 `json:"warm_ms,omitempty"`
	ColdMS          float64 `json:"cold_ms,omitempty"`
	LoadMS          float64 `json:"load_ms,omitempty"`
	ModelMemMiB     float64 `json:"model_mem_mib,omitempty"`
	GPUUtilPct      float64 `json:"gpu_util_pct,omitempty"`
	SMOccupancyPct  float64 `json:"sm_occupancy_pct,omitempty"`
	PowerW          float64 `json:"power_w,omitempty"`
	ThroughputCIRPS float64 `json:"throughput_ci_rps,omitempty"`
	P95CIMS         float64 `json:"p95_ci_ms,omitempty"`
	Unstable        int64   `json:"unstable"`

	GoodputRPS   *float64 `json:"goodput_rps,omitempty"` // nil if unknown; 0 is a valid result
	GoodputCIRPS float64  `json:"goodput_ci_rps,omitempty"`
	SLOMS        float64  `json:"slo_ms,omitempty"`
	IdleP95MS    float64  `json:"idle_p95_ms,omitempty"`

	Instances  int     `json:"instances,omitempty"`
	SMLimitPct float64 `json:"sm_limit_pct,omitempty"`
	QuotaLimit float64 `json:"quota_limit,omitempty"`
}

// printRows prints rows under -o json or -o table.
func printRows(env *cli.Env, rows []profile.Row) error {
	list := make([]jsonRow, len(rows))
	for i, r := range rows {
		list[i] = jsonRow{
			Function: r.Function, GPU: r.GPU, SMPct: r.SMPct, Quota: r.Quota, Batch: r.Batch,
			ThroughputRPS: r.ThroughputRPS, P50MS: r.P50MS, P95MS: r.P95MS, P99MS: r.P99MS,
			GPUMemMiB: r.GPUMemMiB, Errors: r.Errors, Samples: r.Samples, TrialS: r.TrialS,
			WarmMS: r.WarmMS, ColdMS: r.ColdMS, LoadMS: r.LoadMS, ModelMemMiB: r.ModelMemMiB,
			GPUUtilPct: r.GPUUtilPct, SMOccupancyPct: r.SMOccupancyPct, PowerW: r.PowerW,
			ThroughputCIRPS: r.ThroughputCIRPS, P95CIMS: r.P95CIMS, Unstable: r.Unstable,
			GoodputCIRPS: r.GoodputCIRPS, SLOMS: r.SLOMS, IdleP95MS: r.IdleP95MS,
			Instances:  r.Instances,
			SMLimitPct: r.SMLimitPct, QuotaLimit: r.QuotaLimit,
		}
		if r.GoodputKnown {
			list[i].GoodputRPS = &rows[i].GoodputRPS
		}
	}
	return env.Show(list, func() [][]string { return table(rows) })
}

// table returns rows as a table.
func table(rows []profile.Row) [][]string {
	lines := [][]string{{"FUNCTION", "GPU", "SM%", "QUOTA", "BATCH", "RPS", "±95%", "P50 MS", "P95 MS", "P99 MS", "MEM MIB", "ERRORS", "RPS/GPU"}}
	form := profile.FormOf(rows)
	if form.Goodput {
		lines[0] = append(lines[0], "GOODPUT", "SLO MS")
	}
	if form.Instances {
		lines[0] = append(lines[0], "INSTANCES")
	}
	for _, r := range rows {
		line := []string{
			r.Function, r.GPU, number.Short(r.SMPct), number.Short(r.Quota), strconv.Itoa(r.Batch),
			number.Fixed(r.ThroughputRPS, 1), spread(r.ThroughputRPS, r.ThroughputCIRPS, r.Unstable), number.Fixed(r.P50MS, 1), number.Fixed(r.P95MS, 1),
			number.Fixed(r.P99MS, 1), cli.OrDash(r.GPUMemMiB > 0, number.Fixed(r.GPUMemMiB, 1)), strconv.FormatInt(r.Errors, 10), number.Fixed(r.Efficacy(), 1),
		}
		if form.Goodput {
			line = append(line, cli.OrDash(r.GoodputKnown, number.Fixed(r.GoodputRPS, 1)), cli.OrDash(r.SLOMS > 0, number.Short(r.SLOMS)))
		}
		if form.Instances {
			line = append(line, strconv.Itoa(r.Together()))
		}
		lines = append(lines, line)
	}
	return lines
}

// spread formats half the width of a throughput's confidence interval as a percentage of the throughput,
// and marks unstable trials.
func spread(rps, ci float64, unstable int64) string {
	text := cli.OrDash(ci > 0 && rps > 0, number.Percent(ci/rps, 1))
	if unstable > 0 {
		text += " unstable"
	}
	return text
}
