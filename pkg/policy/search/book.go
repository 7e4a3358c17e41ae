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

// Space is the set of configurations to choose from: every SM share with every
// quota and every batch size.
type Space struct {
	SMPct []float64 // percent, (0, 100]
	Quota []float64 // fraction of a window, (0, 1]
	Batch []int     // requests in one invocation, at least 1
	// Only, unless nil, are the configurations that there are; the others of
	// the space are holes.
	Only []profile.Config
}

// Size is the number of configurations in the space.
func (s Space) Size() int { return len(s.Configs()) }

// Configs are the configurations of the space, each once: SM shares ascending,
// for each the quotas ascending, for each the batch sizes ascending.
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

// listed are those of Only that are in the space.
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
	switch {
	case a.SMPct != b.SMPct:
		return cmp.Compare(a.SMPct, b.SMPct)
	case a.Quota != b.Quota:
		return cmp.Compare(a.Quota, b.Quota)
	}
	return a.Batch - b.Batch
}

// Goal is what a configuration must meet; among those that do, the search is
// for the one with the best efficacy.
type Goal struct {
	SLOMS float64 // p95 latency objective in ms; 0 for none
	// Goodput has fast decide by the goodput for the objective that rows have
	// instead of by their throughput: the best goodput per whole GPU, of those that
	// have any. The other searches are as published, and without an objective it
	// means nothing.
	Goodput bool
	// Error is how far below the best efficacy the chosen one is expected to
	// be at most, as a fraction; 0 for DefaultError.
	Error float64
	// CheckQuota has fast try whether throughput at the chosen SM share and
	// batch really is in proportion to the quota, by at least one more trial.
	CheckQuota bool
}

// DefaultError is the error that a search allows itself unless told.
const DefaultError = 0.02

// allowed is the error.
func (g Goal) allowed() float64 {
	if g.Error > 0 {
		return g.Error
	}
	return DefaultError
}

// maxErrorShare is the share of failed requests from which on a row misses any
// objective: a failed request is later than any other, and p95 forgives 5%.
const maxErrorShare = 0.05

// byGoodput tells whether it is the goodput that counts.
func (g Goal) byGoodput() bool { return g.Goodput && g.SLOMS > 0 }

// ranked is the row with what counts in place of its throughput.
func (g Goal) ranked(r profile.Row) profile.Row {
	if g.byGoodput() {
		r.ThroughputRPS, r.ThroughputCIRPS, _ = r.Goodput(g.SLOMS)
	}
	return r
}

// figure is what the best has most of.
func (g Goal) figure() string {
	if g.byGoodput() {
		return "goodput per GPU"
	}
	return "efficacy"
}

// Meets tells whether a row serves requests within the objective; where the
// goodput counts, whether it has any: p95 is then that of another load.
func (g Goal) Meets(r profile.Row) bool {
	if g.byGoodput() {
		return g.ranked(r).ThroughputRPS > 0
	}
	if r.ThroughputRPS <= 0 || float64(r.Errors) > maxErrorShare*float64(r.Errors+r.Samples) {
		return false
	}
	return g.SLOMS <= 0 || r.P95MS <= g.SLOMS
}

// surely tells whether a row meets the goal even if its p95 is as high as its
// confidence interval says it may be.
func (g Goal) surely(r profile.Row) bool {
	if g.byGoodput() {
		return g.Meets(r)
	}
	r.P95MS += r.P95CIMS
	return g.Meets(r)
}

// book is what a strategy was told and what it may still ask.
type book struct {
	goal Goal
	size int              // of the space
	open []profile.Config // not told about, in order
	rows []profile.Row    // measured, in the order of telling
	dead []profile.Config // could not be measured, or sustain nothing
}

// tell enters a result; false when the configuration was not open.
func (b *book) tell(c profile.Config, row profile.Row, ok bool) bool {
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
		b.dead = append(b.dead, c)
	}
	return true
}

// at is what was measured at a configuration.
func (b *book) at(c profile.Config) (profile.Row, bool) {
	for _, r := range b.rows {
		if r.Config == c {
			return r, true
		}
	}
	return profile.Row{}, false
}

func (b *book) isOpen(c profile.Config) bool { return slices.Contains(b.open, c) }

// rounding is the part of an efficacy that a file's decimals may hide.
const rounding = 1e-4

// best is the row with the best efficacy of those that meet the goal, but for
// noise: of those that differ from it by no more than their confidence
// intervals explain, or by rounding, the larger quota wins (fewer, wider
// instances), then the smaller SM share, then the lower latency. So a search
// that is repeated chooses the same of several that are equally good.
func (b *book) best() (profile.Row, bool) { return b.bestBy(b.goal.Meets) }

// bestBy is best with another sense of what meets the goal.
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
	// certain is how much more than their joint 95% interval two figures must
	// differ by: about three standard errors, since of many rows some are two
	// off by chance.
	certain = 1.5
	// leastNoise and mostNoise bound the part of an efficacy that noise explains:
	// two trials differ by more than each of them shows.
	leastNoise, mostNoise = 0.01, 0.05
)

// equal tells whether a row's efficacy may be as good as the best one's.
func equal(r, top profile.Row) bool {
	allowed := rounding
	if n := noise(r, top); n > 0 {
		allowed = min(max(n, leastNoise), mostNoise)
	}
	return 1-r.Efficacy()/top.Efficacy() <= allowed
}

// noise is the part by which the throughputs of two rows, each as a part of
// its own, differ by chance; 0 where nobody knows.
func noise(a, b profile.Row) float64 {
	if a.ThroughputCIRPS <= 0 || b.ThroughputCIRPS <= 0 || a.ThroughputRPS <= 0 || b.ThroughputRPS <= 0 {
		return 0
	}
	return certain * math.Hypot(a.ThroughputCIRPS/a.ThroughputRPS, b.ThroughputCIRPS/b.ThroughputRPS)
}

func wider(a, b profile.Row) bool {
	switch {
	case a.Quota != b.Quota:
		return a.Quota > b.Quota
	case a.SMPct != b.SMPct:
		return a.SMPct < b.SMPct
	}
	return a.P95MS < b.P95MS
}

// none is the choice when no row meets the goal.
func (b *book) none() Choice {
	if len(b.rows) == 0 {
		why := fmt.Sprintf("none of the %d configurations is where this search begins: at the largest quota and the smallest batch", b.size)
		if len(b.dead) > 0 {
			why = fmt.Sprintf("none of the %d configurations tried (of %d) could be measured: the first was %s",
				len(b.dead), b.size, name(b.dead[0]))
		}
		return Choice{Reason: why}
	}
	var fastest *profile.Row
	for i, r := range b.rows {
		if r.ThroughputRPS > 0 && (fastest == nil || r.P95MS < fastest.P95MS) {
			fastest = &b.rows[i]
		}
	}
	if fastest == nil {
		return Choice{Reason: fmt.Sprintf("none of the %d configurations measured sustains any request", len(b.rows))}
	}
	if b.goal.byGoodput() {
		return Choice{Reason: fmt.Sprintf("none of the %d configurations measured (of %d) has a goodput for %s ms that is known and above 0", len(b.rows), b.size, num(b.goal.SLOMS))}
	}
	bound, least := distinct(b.goal.SLOMS, fastest.P95MS)
	why := fmt.Sprintf("none of the %d configurations measured (of %d) has p95_ms <= %s: the least is %s at %s",
		len(b.rows), b.size, bound, least, name(fastest.Config))
	if fastest.P95MS <= b.goal.SLOMS || b.goal.SLOMS <= 0 {
		why = fmt.Sprintf("at each of the %d configurations measured (of %d) more than %s%% of the requests failed, or all",
			len(b.rows), b.size, num(100*maxErrorShare))
	}
	return Choice{Reason: why}
}

// name is how reasons call a configuration.
func name(c profile.Config) string {
	return fmt.Sprintf("sm_pct %s, quota %s, batch %d", num(c.SMPct), num(c.Quota), c.Batch)
}

// num prints a number with at most four significant digits, whole ones whole.
func num(v float64) string {
	if v == float64(int64(v)) {
		return strconv.FormatInt(int64(v), 10)
	}
	return number.Significant(v, 4)
}

// distinct prints two numbers as num does, with more digits if those print as one.
func distinct(a, b float64) (string, string) {
	x, y := num(a), num(b)
	for digits := 5; x == y && digits <= 17; digits++ {
		x, y = number.Significant(a, digits), number.Significant(b, digits)
	}
	return x, y
}

// uncertainty is half the width of the rows' confidence intervals of p95 as a
// fraction of it, at the median: the next row is taken to be known as well.
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

// runs is the chance that a configuration runs at all: 1 up to a batch that
// did, and least from one that did not, as when memory is short. The logarithm
// of the limit is equally likely anywhere between; a larger SM share may, but
// need not, come with as much more memory.
func (b *book) runs(c profile.Config) float64 {
	const least = 0.01
	works, fails, batch := 1.0, math.Inf(1), float64(c.Batch)
	for _, d := range b.dead {
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
		return least
	}
	return max(least, math.Log(fails/batch)/math.Log(fails/works))
}
