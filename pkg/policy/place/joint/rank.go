package joint

import (
	"cmp"
	"slices"
)

// If there are too few GPUs, placing spanning functions first may leave functions unserved that
// could serve far more requests. Functions are then ranked by their solo rates. A plan by rank
// places the first few spanning functions, then the functions that span one GPU and serve no less
// than the next spanning function, and then all others. The solver makes such a plan for several
// numbers of first functions and keeps the best.

const (
	mostRanks = 8 // about the number of plans by rank
	rankWork  = 4 // divisor of the work limit for each plan by rank
)

// ranked returns the best of the given draft and the plans by rank.
func (s *solver) ranked(best *draft, bound int) *draft {
	var order []int
	for f := range s.p.Funcs {
		if s.p.span(f) > 1 && s.requirement.solo[f] > 0 && s.p.Funcs[f].Demand > 0 {
			order = append(order, f)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(s.requirement.solo[b], s.requirement.solo[a]) })
	step := 1 + len(order)/mostRanks
	for first := 0; first <= len(order) && !s.expired(); first += step {
		if d := s.byRank(order, first, bound); d.betterThan(best) {
			best = d
		}
	}
	return best
}

// byRank makes a plan that places the first spanning functions of order before all others.
func (s *solver) byRank(order []int, first, bound int) *draft {
	price := slices.Repeat([]float64{1 / s.requirement.minSolo}, len(s.p.Funcs)) // all requests are worth the same
	d, until := newDraft(s.requirement), s.work+(s.until()-s.work)/rankWork
	if first < len(order) {
		d.minRate = s.requirement.solo[order[first]]
	}
	s.spans.serveInOrder(d, order[:first], price)
	s.dive(d, price, until)
	s.spans.serveInOrder(d, order[first:], price)
	d.minRate = 0
	s.spans.fillHosts(d, d.hosts, price)
	s.dive(d, price, until)
	s.search.run(d, price, bound, until)
	return d
}
