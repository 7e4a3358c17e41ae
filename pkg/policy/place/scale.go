package place

import (
	"cmp"
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/profile"
)

// TieBreak selects among equally efficient configurations. Ties are common, because throughput is
// proportional to quota.
type TieBreak string

// Tie-breaks. The default is the larger quota: it gives fewer and wider instances and needs fewer
// GPUs in measurements. The paper leaves the choice open.
const (
	LargerQuota  TieBreak = "larger-quota"
	SmallerQuota TieBreak = "smaller-quota"
)

// efficacyTolerance is the largest relative difference between efficacies that count as equal.
// Profiles have three or four digits.
const efficacyTolerance = 1e-3

// Group is a number of instances of one configuration.
type Group struct {
	Row   profile.Row
	Count int
}

// ScaleUp chooses instances to start so that a function serves gap more requests per second
// (FaST-GShare, section 3.4.1, Algorithm 1). It takes as many instances of the most efficient
// configuration as the gap fully uses, and then the configuration with the least throughput that
// covers the rest. The rows are the function's configurations that meet its objective; rows without
// throughput are ignored. ScaleUp returns nil if no row remains or if gap is not positive.
func ScaleUp(rows []profile.Row, gap float64, tie TieBreak) []Group {
	eff, ok := mostEfficient(rows, tie)
	if !ok || gap <= 0 {
		return nil
	}
	var out []Group
	n := math.Floor(gap/eff.ThroughputRPS + roundingTolerance)
	remainder := gap - n*eff.ThroughputRPS
	if n > 0 {
		out = append(out, Group{eff, int(min(n, math.MaxInt32))})
	}
	if !(remainder > roundingTolerance*gap) { // also true if the gap is so large that the remainder is NaN
		return out
	}
	if ideal, ok := leastCovering(rows, remainder, tie); ok {
		out = append(out, Group{ideal, 1})
	}
	return out
}

// roundingTolerance is the fraction of a demand that may be missing because of rounding errors.
const roundingTolerance = 1e-9

// mostEfficient returns the row with the largest RPR (requests per second per SM share × quota).
// The tie-break selects among equal rows.
func mostEfficient(rows []profile.Row, tie TieBreak) (profile.Row, bool) {
	rows = filter(rows, func(r profile.Row) bool { return r.ThroughputRPS > 0 })
	if len(rows) == 0 {
		return profile.Row{}, false
	}
	best := 0.0
	for _, r := range rows {
		best = max(best, r.Efficacy())
	}
	equal := filter(rows, func(r profile.Row) bool { return r.Efficacy() >= best*(1-efficacyTolerance) })
	return slices.MinFunc(equal, tie.compare), true
}

// leastCovering returns the row with the least throughput that is at least remainder. Among equal
// rows it prefers the smaller rectangle, then the tie-break's choice.
func leastCovering(rows []profile.Row, remainder float64, tie TieBreak) (profile.Row, bool) {
	rows = filter(rows, func(r profile.Row) bool { return r.ThroughputRPS >= remainder })
	if len(rows) == 0 {
		return profile.Row{}, false
	}
	return slices.MinFunc(rows, func(a, b profile.Row) int {
		return cmp.Or(cmp.Compare(a.ThroughputRPS, b.ThroughputRPS), cmp.Compare(area(a), area(b)), tie.compare(a, b))
	}), true
}

// area returns the area of a configuration's rectangle, in billionths by billionths.
func area(r profile.Row) int64 { return share(r.SMPct/100) * share(r.Quota) }

// compare orders equally efficient rows, the preferred one first. It is a total order, so that
// their order in a file does not matter.
func (t TieBreak) compare(a, b profile.Row) int {
	quota := cmp.Compare(b.Quota, a.Quota)
	if t == SmallerQuota {
		quota = -quota
	}
	return cmp.Or(quota, cmp.Compare(a.SMPct, b.SMPct), cmp.Compare(a.Batch, b.Batch), cmp.Compare(a.GPU, b.GPU))
}

// efficient returns the rows, the most efficient first.
func efficient(rows []profile.Row, tie TieBreak) []profile.Row {
	rows = slices.Clone(rows)
	slices.SortStableFunc(rows, func(a, b profile.Row) int {
		return cmp.Or(cmp.Compare(b.Efficacy(), a.Efficacy()), tie.compare(a, b))
	})
	return rows
}

// Running is a running instance, as input of ScaleDown.
type Running struct {
	ID  string
	Row profile.Row
}

// ScaleDown chooses instances to stop for a function that serves excess requests per second too
// many (section 3.4.1, Algorithm 1). It begins with the least efficient instance and continues
// while the others still suffice. It ends at the first instance that is needed; the loop printed in
// the paper would not end there.
func ScaleDown(running []Running, excess float64) []Running {
	queue := slices.Clone(running)
	slices.SortStableFunc(queue, func(a, b Running) int { return cmp.Compare(a.Row.Efficacy(), b.Row.Efficacy()) })
	for i, r := range queue {
		if r.Row.ThroughputRPS > excess {
			return queue[:i]
		}
		excess -= r.Row.ThroughputRPS
	}
	return queue
}
