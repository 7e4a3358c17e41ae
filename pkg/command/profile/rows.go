package profile

import (
	"strconv"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/profile"
)

// jsonRow is the form of a row under -o json. It omits columns that were not measured.
type jsonRow struct {
	profile.Row
	GoodputRPS *float64 `json:"goodput_rps,omitempty"` // nil if unknown; 0 is a valid result
}

// printRows prints rows under -o json or -o table.
func printRows(env *cli.Env, rows []profile.Row) error {
	list := make([]jsonRow, len(rows))
	for i, r := range rows {
		list[i].Row = r
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
