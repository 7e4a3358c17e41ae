package search

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/profile"
)

// Space is the set of configurations to choose from: each combination of SM share, quota and batch size.
type Space struct {
	SMPct []float64 // percent, (0, 100]
	Quota []float64 // fraction of a window, (0, 1]
	Batch []int     // requests in one invocation, at least 1
	// Only, unless nil, lists the configurations that exist; other combinations do not.
	Only []profile.Config
}

// Size returns the number of configurations in the space.
func (s Space) Size() int { return len(s.Configs()) }

// Configs returns the configurations of the space, in ascending order of SM share, then quota, then batch size.
func (s Space) Configs() []profile.Config {
	if s.Only != nil {
		return s.listed()
	}
	all := make([]profile.Config, 0, len(s.SMPct)*len(s.Quota)*len(s.Batch))
	for _, sm := range ascending(s.SMPct) {
		for _, quota := range ascending(s.Quota) {
			for _, batch := range ascending(s.Batch) {
				all = append(all, profile.Config{SMPct: sm, Quota: quota, Batch: batch})
			}
		}
	}
	return all
}

// listed returns those configurations in Only that are combinations of the space.
func (s Space) listed() []profile.Config {
	all := slices.DeleteFunc(slices.Clone(s.Only), func(c profile.Config) bool {
		return !slices.Contains(s.SMPct, c.SMPct) || !slices.Contains(s.Quota, c.Quota) || !slices.Contains(s.Batch, c.Batch)
	})
	slices.SortFunc(all, byConfig)
	return slices.Compact(all)
}

func ascending[T int | float64](values []T) []T {
	return slices.Compact(slices.Sorted(slices.Values(values)))
}

func byConfig(a, b profile.Config) int {
	return cmp.Or(cmp.Compare(a.SMPct, b.SMPct), cmp.Compare(a.Quota, b.Quota), cmp.Compare(a.Batch, b.Batch))
}

// Goal has the conditions for a configuration; the search looks for the best efficacy among those that meet
// them.
type Goal struct {
	SLOMS float64 // p95 latency objective in ms; 0: none
	// Goodput makes "fast" compare the rows' goodput for the objective instead of their throughput: it looks
	// for the best goodput per whole GPU. The other searches ignore it. It has no effect without an objective.
	Goodput bool
	// Error is the expected distance, as a fraction, between the efficacy of the choice and the best one at
	// which the search may end; 0: DefaultError.
	Error float64
	// CheckQuota makes "fast" check, with at least one more trial, that throughput is proportional to the
	// quota at the chosen SM share and batch.
	CheckQuota bool
}

// DefaultError is the default of Goal.Error.
const DefaultError = 0.02

// errorLimit returns Error or its default.
func (g Goal) errorLimit() float64 { return cmp.Or(max(g.Error, 0), DefaultError) }

// maxErrorShare is the largest share of failed requests in a row that can meet an objective. A failed request
// counts as late, and p95 allows 5%.
const maxErrorShare = 0.05

// byGoodput reports whether goodput is compared.
func (g Goal) byGoodput() bool { return g.Goodput && g.SLOMS > 0 }

// ranked returns the row with the compared quantity in place of its throughput.
func (g Goal) ranked(r profile.Row) profile.Row {
	if g.byGoodput() {
		r.ThroughputRPS, r.ThroughputCIRPS, _ = r.Goodput(g.SLOMS)
	}
	return r
}

// metricName returns the name of the compared quantity.
func (g Goal) metricName() string {
	if g.byGoodput() {
		return "goodput per GPU"
	}
	return "efficacy"
}

// Meets reports whether a row meets the objective. If goodput is compared, it reports whether the row has any;
// its p95 is then that of another load.
func (g Goal) Meets(r profile.Row) bool {
	if g.byGoodput() {
		return g.ranked(r).ThroughputRPS > 0
	}
	if r.ThroughputRPS <= 0 || float64(r.Errors) > maxErrorShare*float64(r.Errors+r.Samples) {
		return false
	}
	return g.SLOMS <= 0 || r.P95MS <= g.SLOMS
}

// meetsSurely reports whether a row meets the goal at the upper end of the confidence interval of its p95.
func (g Goal) meetsSurely(r profile.Row) bool {
	if g.byGoodput() {
		return g.Meets(r)
	}
	r.P95MS += r.P95CIMS
	return g.Meets(r)
}

// book has the measurements and the open configurations.
type book struct {
	goal   Goal
	size   int              // number of configurations in the space
	open   []profile.Config // not measured yet, in order
	rows   []profile.Row    // measured, in order
	failed []profile.Config // could not be measured, or have no throughput
}

// record adds a result. It returns false if the configuration was not open.
func (b *book) record(c profile.Config, row profile.Row, ok bool) bool {
	i := slices.Index(b.open, c)
	if i < 0 {
		return false
	}
	b.open = slices.Delete(b.open, i, i+1)
	if ok {
		row.Config = c
		b.rows = append(b.rows, row)
	}
	if !ok || row.ThroughputRPS <= 0 {
		b.failed = append(b.failed, c)
	}
	return true
}

// measurement returns the measurement of a configuration.
func (b *book) measurement(c profile.Config) (profile.Row, bool) {
	i := slices.IndexFunc(b.rows, func(r profile.Row) bool { return r.Config == c })
	if i < 0 {
		return profile.Row{}, false
	}
	return b.rows[i], true
}

func (b *book) isOpen(c profile.Config) bool { return slices.Contains(b.open, c) }

// rounding is the fraction of an efficacy that the decimals of a file may hide.
const rounding = 1e-4

// best returns the row with the best efficacy among those that meet the goal. Among rows that differ from it by
// no more than their confidence intervals or rounding explain, it prefers the larger quota (fewer, wider
// instances), then the smaller SM share, then the lower latency. So a repeated search makes the same choice
// among equally good configurations.
func (b *book) best() (profile.Row, bool) { return b.bestBy(b.goal.Meets) }

// bestBy is best with another condition for the goal.
func (b *book) bestBy(meets func(profile.Row) bool) (best profile.Row, ok bool) {
	var top profile.Row
	for _, row := range b.rows {
		r := b.goal.ranked(row)
		if meets(row) && (top.ThroughputRPS == 0 || r.Efficacy() > top.Efficacy()) {
			top = r
		}
	}
	for _, r := range b.rows {
		if meets(r) && equal(b.goal.ranked(r), top) && (!ok || wider(r, best)) {
			best, ok = r, true
		}
	}
	return best, ok
}

const (
	// noiseFactor is the factor by which a difference of two figures must exceed their joint 95% interval: about
	// three standard errors, because among many rows some are two off by chance.
	noiseFactor = 1.5
	// minNoise and maxNoise bound the fraction of an efficacy that noise may explain, because two trials
	// differ by more than their own intervals show.
	minNoise, maxNoise = 0.01, 0.05
)

// equal reports whether a row's efficacy may be as good as the best one's.
func equal(r, top profile.Row) bool {
	allowed := rounding
	if n := noise(r, top); n > 0 {
		allowed = min(max(n, minNoise), maxNoise)
	}
	return 1-r.Efficacy()/top.Efficacy() <= allowed
}

// noise returns the relative difference between the throughputs of two rows that chance may explain; 0 if it is
// unknown.
func noise(a, b profile.Row) float64 {
	if a.ThroughputCIRPS <= 0 || b.ThroughputCIRPS <= 0 || a.ThroughputRPS <= 0 || b.ThroughputRPS <= 0 {
		return 0
	}
	return noiseFactor * math.Hypot(a.ThroughputCIRPS/a.ThroughputRPS, b.ThroughputCIRPS/b.ThroughputRPS)
}

// wider reports whether a is preferred to b, which is as good.
func wider(a, b profile.Row) bool {
	return cmp.Or(cmp.Compare(b.Quota, a.Quota), cmp.Compare(a.SMPct, b.SMPct), cmp.Compare(a.P95MS, b.P95MS)) < 0
}

// noChoice returns the Choice when no row meets the goal.
func (b *book) noChoice() Choice {
	if len(b.rows) == 0 {
		reason := fmt.Sprintf("none of the %d configurations has both the largest quota and the smallest batch, where this search begins", b.size)
		if len(b.failed) > 0 {
			reason = fmt.Sprintf("none of the %d configurations tried (of %d) could be measured: the first was %s",
				len(b.failed), b.size, describe(b.failed[0]))
		}
		return Choice{Reason: reason}
	}
	var fastest *profile.Row
	for i, r := range b.rows {
		if r.ThroughputRPS > 0 && (fastest == nil || r.P95MS < fastest.P95MS) {
			fastest = &b.rows[i]
		}
	}
	if fastest == nil {
		return Choice{Reason: fmt.Sprintf("none of the %d measured configurations answered a request", len(b.rows))}
	}
	if b.goal.byGoodput() {
		return Choice{Reason: fmt.Sprintf("none of the %d measured configurations (of %d) has a known goodput above 0 for %s ms", len(b.rows), b.size, num(b.goal.SLOMS))}
	}
	bound, lowest := distinct(b.goal.SLOMS, fastest.P95MS)
	reason := fmt.Sprintf("none of the %d measured configurations (of %d) has p95_ms <= %s: the lowest is %s at %s",
		len(b.rows), b.size, bound, lowest, describe(fastest.Config))
	if fastest.P95MS <= b.goal.SLOMS || b.goal.SLOMS <= 0 {
		reason = fmt.Sprintf("more than %s%% of the requests failed in each of the %d measured configurations (of %d)",
			num(100*maxErrorShare), len(b.rows), b.size)
	}
	return Choice{Reason: reason}
}

// describe formats a configuration for reasons.
func describe(c profile.Config) string {
	return fmt.Sprintf("sm_pct %s, quota %s, batch %d", num(c.SMPct), num(c.Quota), c.Batch)
}

// num formats a number with at most four significant digits; whole numbers have no fraction.
func num(v float64) string {
	if v == float64(int64(v)) {
		return strconv.FormatInt(int64(v), 10)
	}
	return number.Significant(v, 4)
}

// distinct formats two numbers like num, with more digits if they would look equal.
func distinct(a, b float64) (string, string) {
	x, y := num(a), num(b)
	for digits := 5; x == y && digits <= 17; digits++ {
		x, y = number.Significant(a, digits), number.Significant(b, digits)
	}
	return x, y
}

// uncertainty returns the median of the relative half widths of the rows' confidence intervals of p95, as an
// estimate for the next row.
func (b *book) uncertainty() float64 {
	var parts []float64
	for _, r := range b.rows {
		if r.ThroughputRPS > 0 && r.P95MS > 0 {
			parts = append(parts, r.P95CIMS/r.P95MS)
		}
	}
	if len(parts) == 0 {
		return 0
	}
	slices.Sort(parts)
	return parts[len(parts)/2]
}

// runProbability returns the chance that a configuration can run: 1 up to a batch size that did, and the least
// from one that did not, for example because of too little memory. In between, the log of the largest possible
// batch size is taken as uniformly distributed. A larger SM share may, but need not, come with proportionally
// more memory.
func (b *book) runProbability(c profile.Config) float64 {
	const lowest = 0.01
	works, fails, batch := 1.0, math.Inf(1), float64(c.Batch)
	for _, d := range b.failed {
		fails = min(fails, float64(d.Batch)*max(1, c.SMPct/d.SMPct))
	}
	for _, r := range b.rows {
		if r.ThroughputRPS > 0 {
			works = max(works, float64(r.Batch)*min(1, c.SMPct/r.SMPct))
		}
	}
	switch {
	case math.IsInf(fails, 1) || batch <= works:
		return 1
	case batch >= fails:
		return lowest
	}
	return max(lowest, math.Log(fails/batch)/math.Log(fails/works))
}
