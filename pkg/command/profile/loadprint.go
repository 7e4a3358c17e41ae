package profile

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/profile/report"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/measure/loadtest"
	"github.com/gfaas/gfaas/pkg/number"
)

// loadCSV returns the header and the row of a result.
func loadCSV(l loadtest.Result) [][]string {
	measured := func(v float64) string {
		if v == 0 {
			return ""
		}
		return csvfile.Format(v)
	}
	share := func(pct *float64) string {
		if pct == nil {
			return ""
		}
		return csvfile.Format(*pct)
	}
	count := func(n int64) string { return strconv.FormatInt(n, 10) }
	return [][]string{
		{"target", "load", "throughput_rps", "throughput_ci_rps", "mean_ms", "p50_ms", "p95_ms", "p95_ci_ms", "p99_ms", "max_ms",
			"errors", "error_pct", "samples", "trial_s", "unstable", "slo_ms", "within_pct"},
		{l.Target, l.Load, csvfile.Format(l.ThroughputRPS), measured(l.ThroughputCIRPS), measured(l.MeanMS), measured(l.P50MS),
			measured(l.P95MS), measured(l.P95CIMS), measured(l.P99MS), measured(l.MaxMS),
			count(l.Errors), share(l.ErrorPct), count(l.Samples), csvfile.Format(l.TrialS), count(l.Unstable), measured(l.SLOMS), share(l.WithinPct)},
	}
}

// loadTable returns the table of a result.
func loadTable(l loadtest.Result) [][]string {
	ms := func(v float64) string {
		if l.Samples == 0 {
			return "-"
		}
		return number.Fixed(v, 1)
	}
	rows := [][]string{
		{"TARGET", "LOAD", "RPS", "±95%", "MEAN MS", "P50 MS", "P95 MS", "P99 MS", "MAX MS", "SAMPLES", "ERRORS"},
		{l.Target, l.Load, number.Fixed(l.ThroughputRPS, 1), spread(l.ThroughputRPS, l.ThroughputCIRPS, l.Unstable), ms(l.MeanMS), ms(l.P50MS), ms(l.P95MS), ms(l.P99MS), ms(l.MaxMS),
			strconv.FormatInt(l.Samples, 10), strconv.FormatInt(l.Errors, 10)},
	}
	if l.WithinPct != nil {
		rows[0] = append(rows[0], "WITHIN "+number.Plain(l.SLOMS)+" MS")
		rows[1] = append(rows[1], number.Significant(*l.WithinPct, 5)+"%")
	}
	return rows
}

// showLoad prints a result in the form of -o. With hist, it adds the histogram to a table.
func showLoad(env *cli.Env, l loadtest.Result, hist bool) error {
	if env.Output != "table" {
		return env.Show(l, func() [][]string { return loadCSV(l) })
	}
	return env.Emit(func(w io.Writer) error {
		if err := cli.Table(w, loadTable(l)); err != nil || !hist {
			return err
		}
		_, err := fmt.Fprintln(w)
		return errors.Join(err, cli.Table(w, histogramTable(l.Histogram)))
	})
}

// histogramTable returns a histogram as a table with bars.
func histogramTable(buckets []loadtest.Bucket) [][]string {
	var total, sum, highest int64
	for _, b := range buckets {
		total += b.Count
		highest = max(highest, b.Count)
	}
	rows := [][]string{{"UP TO MS", "SAMPLES", "SO FAR", ""}}
	for _, b := range buckets {
		sum += b.Count
		rows = append(rows, []string{
			number.Plain(b.UpToMS), strconv.FormatInt(b.Count, 10), number.Percent(math.Floor(1e4*float64(sum)/float64(total))/1e4, 2),
			report.Bar(float64(b.Count) / float64(highest)),
		})
	}
	return rows
}
