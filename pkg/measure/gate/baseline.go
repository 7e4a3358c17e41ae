package gate

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/measure"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/profile"
)

// Baseline is an older profile that a run must not be worse than.
type Baseline struct {
	path    string
	rows    map[measure.Point]profile.Row
	allowed float64 // fraction by which a figure may be worse
}

// NewBaseline returns the rows of the profile at path that the job measures again, on
// the same model of GPU. If a point has rows with and without a model, the row with the
// job's model counts. NewBaseline fails if there are no such rows, since the baseline could
// never trip. A figure may be worse by the fraction allowed.
func NewBaseline(path string, rows []profile.Row, job measure.Job, allowed float64) (*Baseline, error) {
	wanted := job.Points()
	b := &Baseline{path: path, rows: map[measure.Point]profile.Row{}, allowed: allowed}
	var others []string
	var together int // the number of instances of a row of this configuration, if it differs from the job's
	for _, row := range rows {
		switch at := measure.PointOf(row); {
		case !wanted[at]:
		case row.Together() != job.Together():
			together = row.Together()
		case row.GPU != "" && row.GPU != job.GPU:
			others = append(others, row.GPU)
		case row.GPU == "" && b.rows[at].GPU != "": // the row of the model counts
		default:
			b.rows[at] = row
		}
	}
	if len(b.rows) > 0 {
		return b, nil
	}
	if together > 0 {
		return nil, fmt.Errorf("%s was measured with %s at the same time and this run measures %d: expected the same number", path, number.Count(together, "instance"), job.Together())
	}
	if len(others) > 0 {
		slices.Sort(others)
		return nil, fmt.Errorf("%s was measured on %s and this run measures on %s: expected the same GPU model",
			path, strings.Join(slices.Compact(others), ", "), job.GPU)
	}
	return nil, noneInCommon(path, rows, job)
}

// noneInCommon returns the error about a baseline without any point of the job.
func noneInCommon(path string, rows []profile.Row, job measure.Job) error {
	if len(rows) == 0 {
		return fmt.Errorf("%s has no rows", path)
	}
	var asked, found []string
	for _, fn := range job.Functions {
		for _, c := range job.Space.Configs() {
			asked = append(asked, measure.Point{Function: fn.Name, Config: c}.String())
		}
	}
	seen := map[measure.Point]bool{}
	for _, row := range rows {
		if at := measure.PointOf(row); !seen[at] {
			seen[at] = true
			found = append(found, at.String())
		}
	}
	return fmt.Errorf("%s has none of the configurations of this run\n  the run measures %s\n  the file has %s", path, shortList(asked), shortList(found))
}

// shortList joins the first texts, and tells the number of the others.
func shortList(texts []string) string {
	const most = 3
	if len(texts) > most+1 {
		texts = append(slices.Clone(texts[:most]), fmt.Sprintf("and %d more", len(texts)-most))
	}
	return strings.Join(texts, "; ")
}

// judge compares a row with the older one; it returns nil if there is none. The row is
// worse if a figure is worse by more than the allowed fraction and the confidence
// intervals of both, where they are known, do not explain the rest. It is doubtful if
// they do, or if either row is unstable.
func (b *Baseline) judge(row profile.Row) []Finding {
	old, ok := b.rows[measure.PointOf(row)]
	if !ok {
		return nil
	}
	out := []Finding{b.errors(row, old)}
	if old.ThroughputRPS > 0 {
		out = append(out, b.metric("throughput_rps", row, old, -1, old.ThroughputRPS, row.ThroughputRPS, old.ThroughputCIRPS, row.ThroughputCIRPS))
	}
	if old.P95MS > 0 {
		out = append(out, b.metric("p95_ms", row, old, +1, old.P95MS, row.P95MS, old.P95CIMS, row.P95CIMS))
	}
	return out
}

// metric compares one figure. worse is +1 if a higher figure is worse, and -1 if a lower
// one is.
func (b *Baseline) metric(name string, row, old profile.Row, worse, before, after, ciBefore, ciAfter float64) Finding {
	f := Finding{Subject: BaselineSubject, Name: name + " for " + measure.PointOf(row).String()}
	by := worse * (after - before) / before
	noise, known := math.Hypot(ciBefore, ciAfter)/before, ciBefore > 0 && ciAfter > 0
	if by <= b.allowed {
		return f
	}
	f.Verdict = Tripped
	margin := "; the noise is unknown"
	if known {
		margin = fmt.Sprintf("; the noise is ±%s%%", percent(noise))
	}
	switch {
	case row.Unstable > 0:
		f.Verdict, margin = Doubtful, "; this run is unstable: measure for longer with --duration"
	case old.Unstable > 0:
		f.Verdict, margin = Doubtful, "; the baseline is unstable: measure it for longer with --duration"
	case known && by-noise <= b.allowed:
		f.Verdict = Doubtful
		margin += ": measure for longer with --duration"
	}
	f.Text = fmt.Sprintf("%s is %s%% worse for %s: %s, was %s: more than %s%%%s", name, percent(by),
		measure.PointOf(row), number.Plain(after), number.Plain(before), percent(b.allowed), margin)
	return f
}

// errors compares the fractions of failed requests.
func (b *Baseline) errors(row, old profile.Row) Finding {
	f := Finding{Subject: BaselineSubject, Name: "errors for " + measure.PointOf(row).String()}
	share := func(r profile.Row) float64 { return float64(r.Errors) / math.Max(1, float64(r.Errors+r.Samples)) }
	if share(row)-share(old) > b.allowed {
		f.Verdict = Tripped
		f.Text = fmt.Sprintf("errors are %s%% of the requests for %s, were %s%%: %s percentage points more, allowed are %s",
			percent(share(row)), measure.PointOf(row), percent(share(old)), percent(share(row)-share(old)), percent(b.allowed))
	}
	return f
}

// percent formats a fraction as a percentage with three digits, without its sign.
func percent(v float64) string { return number.Significant(100*v, 3) }
