package verify

import (
	"slices"

	"github.com/gfaas/gfaas/pkg/plan"
)

// skyline holds, for each SM, the added instance that uses it until the latest time of the window. Its
// spans are in order of their SMs and do not overlap, so an instance is compared only with
// neighbouring instances.
type skyline []smRange

// smRange is a range of SMs, in percent, and the instance that uses it.
type smRange struct {
	from, to float64
	of       *plan.Instance
}

func end(in *plan.Instance) float64 { return *in.X + in.QuotaRequest }

// add adds an instance, which must not begin before the instances added earlier. It returns an
// instance that it overlaps, or nil.
func (s *skyline) add(in *plan.Instance) (overlapped *plan.Instance) {
	from, to := *in.Y, *in.Y+in.SMPct
	if !(from < to) || !(in.QuotaRequest > 0) {
		return nil // an invalid share, which another rule reports
	}
	first, _ := slices.BinarySearchFunc(*s, from, func(t smRange, y float64) int {
		if t.to <= y {
			return -1
		}
		return 1
	})
	var now []smRange // replaces the spans from first to last
	put := func(from, to float64, of *plan.Instance) {
		switch n := len(now); {
		case from >= to:
		case n > 0 && now[n-1].of == of && now[n-1].to == from:
			now[n-1].to = to
		default:
			now = append(now, smRange{from, to, of})
		}
	}
	last, next := first, from
	for ; last < len(*s) && (*s)[last].from < to; last++ {
		t := (*s)[last]
		if overlapped == nil && *in.X < end(t.of)-shareEps && from < t.to-100*shareEps && t.from < to-100*shareEps {
			overlapped = t.of
		}
		low, high, longest := max(t.from, from), min(t.to, to), in
		if end(t.of) > end(in) {
			longest = t.of
		}
		put(t.from, from, t.of)
		put(next, low, in)
		put(low, high, longest)
		put(to, t.to, t.of)
		next = high
	}
	put(next, to, in)
	*s = slices.Replace(*s, first, last, now...)
	return overlapped
}
