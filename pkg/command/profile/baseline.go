package profile

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/measure"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/profile"
)

// baseline is an older profile that a run must not be worse than.
type baseline struct {
	path string
	rows map[measure.Point]profile.Row
	most float64 // worse by so much is allowed, as a fraction
}

// loadBaseline reads the rows that the job will measure again, if there is a
// baseline. It is an error when there are none: the gate could never trip.
func (o *runOptions) loadBaseline() error {
	if o.baselinePath == "" {
		return nil
	}
	rows, err := cli.Load(o.env, o.baselinePath, profile.Read)
	if err != nil {
		return err
	}
	wanted := o.Wants()
	o.baseline = &baseline{path: o.baselinePath, most: o.regression, rows: map[measure.Point]profile.Row{}}
	var others []string
	for _, row := range rows {
		switch at := measure.PointOf(row); {
		case !wanted[at]:
		case row.GPU != "" && row.GPU != o.GPU:
			others = append(others, row.GPU)
		case row.GPU == "" && o.baseline.rows[at].GPU != "": // that of the model counts
		default:
			o.baseline.rows[at] = row
		}
	}
	if len(o.baseline.rows) > 0 {
		return nil
	}
	if len(others) > 0 {
		slices.Sort(others)
		return fmt.Errorf("--baseline %s is of %s, this run of %s: expected the same model of GPU",
			o.baselinePath, strings.Join(slices.Compact(others), ", "), o.GPU)
	}
	return fmt.Errorf("--baseline %s has none of the configurations to be measured", o.baselinePath)
}

// judge compares a row with the older one, if there is one. It is worse when it is
// so by more than is allowed, whatever the noise of the two, as far as that is
// known, may have added; in doubt when that noise may be why, or one of the two is
// unstable.
func (b *baseline) judge(row profile.Row) []finding {
	old, ok := b.rows[measure.PointOf(row)]
	if !ok {
		return nil
	}
	out := []finding{b.errors(row, old)}
	if old.ThroughputRPS > 0 {
		out = append(out, b.metric("throughput_rps", row, old, -1, old.ThroughputRPS, row.ThroughputRPS, old.ThroughputCIRPS, row.ThroughputCIRPS))
	}
	if old.P95MS > 0 {
		out = append(out, b.metric("p95_ms", row, old, +1, old.P95MS, row.P95MS, old.P95CIMS, row.P95CIMS))
	}
	return out
}

// metric compares one figure; worse is +1 where more is worse, else -1.
func (b *baseline) metric(name string, row, old profile.Row, worse, before, after, ciBefore, ciAfter float64) finding {
	f := finding{about: aboutBaseline, name: name + " for " + measure.PointOf(row).String()}
	by := worse * (after - before) / before
	noise, known := math.Hypot(ciBefore, ciAfter)/before, ciBefore > 0 && ciAfter > 0
	if by <= b.most {
		return f
	}
	f.verdict = tripped
	margin := "; its noise is not known"
	if known {
		margin = fmt.Sprintf(", its noise is ±%s%%", percent(noise))
	}
	switch {
	case row.Unstable > 0:
		f.verdict, margin = doubtful, "; this run is unstable: measure for longer"
	case old.Unstable > 0:
		f.verdict, margin = doubtful, "; the baseline is unstable: measure it for longer"
	case known && by-noise <= b.most:
		f.verdict = doubtful
		margin += ": measure for longer"
	}
	f.text = fmt.Sprintf("%s is %s%% worse for %s: %s, was %s: more than %s%%%s", name, percent(by),
		measure.PointOf(row), number.Plain(after), number.Plain(before), percent(b.most), margin)
	return f
}

// errors compares the shares of requests that failed, in percentage points.
func (b *baseline) errors(row, old profile.Row) finding {
	f := finding{about: aboutBaseline, name: "errors for " + measure.PointOf(row).String()}
	share := func(r profile.Row) float64 { return float64(r.Errors) / math.Max(1, float64(r.Errors+r.Samples)) }
	if share(row)-share(old) > b.most {
		f.verdict = tripped
		f.text = fmt.Sprintf("errors are %s%% of the requests for %s, were %s%%: %s points more than %s",
			percent(share(row)), measure.PointOf(row), percent(share(old)), percent(share(row)-share(old)), percent(b.most))
	}
	return f
}
