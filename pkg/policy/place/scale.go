package place

import (
	"cmp"
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/profile"
)

// TieBreak says which of equally efficient configurations is preferred. They
// are common, since throughput is proportional to quota.
type TieBreak string

// The larger quota makes fewer and wider instances and is the default: it
// needs fewer GPUs as measured. The paper does not say which it takes.
const (
	LargerQuota  TieBreak = "larger-quota"
	SmallerQuota TieBreak = "smaller-quota"
)

// alike is how far apart, relatively, two efficacies may be and still tie:
// profiles print three or four digits.
const alike = 1e-3

// Group is a number of instances of one configuration.
type Group struct {
	Row   profile.Row
	Count int
}

// ScaleUp chooses what to start so that a function serves gap more requests a
// second (FaST-GShare, section 3.4.1, Algorithm 1): as many instances of the
// most efficient configuration as the gap fills whole, then the configuration
// of least throughput that covers the rest. Rows are the function's
// configurations that meet its SLO; those that sustain nothing are passed over.
// It returns nothing when none remains or the gap is not positive.
func ScaleUp(rows []profile.Row, gap float64, tie TieBreak) []Group {
	eff, ok := mostEfficient(rows, tie)
	if !ok || gap <= 0 {
		return nil
	}
	var out []Group
	n := math.Floor(gap/eff.ThroughputRPS + served)
	rest := gap - n*eff.ThroughputRPS
	if n > 0 {
		out = append(out, Group{eff, int(min(n, math.MaxInt32))})
	}
	if !(rest > served*gap) { // also when the gap is so large that rest is not a number
		return out
	}
	if ideal, ok := leastCovering(rows, rest, tie); ok {
		out = append(out, Group{ideal, 1})
	}
	return out
}

// served is the part of a demand that may be missing because of rounding.
const served = 1e-9

// mostEfficient is the row of the largest RPR (requests a second for SM share
// × quota); of those that tie, the one the tie-break prefers.
func mostEfficient(rows []profile.Row, tie TieBreak) (profile.Row, bool) {
	best := 0.0
	for _, r := range rows {
		if r.ThroughputRPS > 0 {
			best = max(best, r.Efficacy())
		}
	}
	var out profile.Row
	found := false
	for _, r := range rows {
		if r.ThroughputRPS > 0 && r.Efficacy() >= best*(1-alike) && (!found || tie.prefers(r, out)) {
			out, found = r, true
		}
	}
	return out, found
}

// leastCovering is the row of the least throughput that is at least rest; of
// those that tie, the smaller rectangle, then what the tie-break prefers.
func leastCovering(rows []profile.Row, rest float64, tie TieBreak) (profile.Row, bool) {
	var out profile.Row
	found := false
	for _, r := range rows {
		if r.ThroughputRPS < rest {
			continue
		}
		less := r.ThroughputRPS < out.ThroughputRPS
		if r.ThroughputRPS == out.ThroughputRPS {
			a, b := area(r), area(out)
			less = a < b || a == b && tie.prefers(r, out)
		}
		if !found || less {
			out, found = r, true
		}
	}
	return out, found
}

// area is a configuration's rectangle, in billionths by billionths.
func area(r profile.Row) int64 { return share(r.SMPct/100) * share(r.Quota) }

// prefers orders equally efficient rows totally, so that the order of a file
// decides nothing.
func (t TieBreak) prefers(a, b profile.Row) bool {
	switch {
	case a.Quota != b.Quota:
		return (a.Quota < b.Quota) == (t == SmallerQuota)
	case a.SMPct != b.SMPct:
		return a.SMPct < b.SMPct
	case a.Batch != b.Batch:
		return a.Batch < b.Batch
	}
	return a.GPU < b.GPU
}

// efficient are the rows, the most efficient first.
func efficient(rows []profile.Row, tie TieBreak) []profile.Row {
	rows = slices.Clone(rows)
	slices.SortStableFunc(rows, func(a, b profile.Row) int {
		if c := cmp.Compare(b.Efficacy(), a.Efficacy()); c != 0 {
			return c
		}
		if tie.prefers(a, b) {
			return -1
		}
		return 1
	})
	return rows
}

// Running is an instance as scaling down sees it.
type Running struct {
	ID  string
	Row profile.Row
}

// ScaleDown chooses what to stop of a function that serves excess requests a
// second too many (section 3.4.1, Algorithm 1): from the least efficient
// instance on, as long as what remains still suffices. It stops at the first
// that is needed; the loop as printed would never end there.
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
