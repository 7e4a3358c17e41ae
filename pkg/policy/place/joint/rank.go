package joint

import (
	"cmp"
	"slices"
)

// Where there are too few GPUs, placing what spans several of them first may leave
// functions that serve far more. Functions are then ranked by the requests a second
// that a GPU serves of each alone. Of the spanning ones the first few come first, then
// what spans one GPU and serves no less than the next of them, then the others of
// both kinds: for every number of those that come first a plan is made, and the one
// that leaves the least counts.

const (
	mostRanks = 8 // how many numbers are tried
	rankWork  = 4 // a plan by rank may take this part of the work limit
)

// ranked returns the best of a plan and those by rank.
func (s *solver) ranked(best *draft, bound int) *draft {
	var order []int
	for f := range s.p.Funcs {
		if s.span(f) > 1 && s.solo[f] > 0 && s.p.Funcs[f].Demand > 0 {
			order = append(order, f)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(s.solo[b], s.solo[a]) })
	step := 1 + len(order)/mostRanks
	for first := 0; first <= len(order) && !s.expired(); first += step {
		if d := s.byRank(order, first, bound); s.better(d, best) {
			best = d
		}
	}
	return best
}

// byRank plans with so many of the spanning functions first.
func (s *solver) byRank(order []int, first, bound int) *draft {
	price := slices.Repeat([]float64{1 / s.minSolo}, len(s.p.Funcs)) // a request is worth a request
	d, until := s.draft(), s.work+(s.workLimit()-s.work)/rankWork
	if first < len(order) {
		s.leastSolo = s.solo[order[first]]
	}
	s.serveInOrder(d, order[:first], price)
	s.dive(d, price, until)
	s.serveInOrder(d, order[first:], price)
	s.leastSolo = 0
	s.fillHosts(d, d.hosts, price)
	s.dive(d, price, until)
	s.search(d, price, bound, until)
	return d
}

// serveInOrder opens GPUs for one spanning function after the other.
func (s *solver) serveInOrder(d *draft, order []int, price []float64) {
	for _, f := range order {
		one := make([]bool, len(s.p.Funcs))
		one[f] = true
		s.serveSpans(d, price, one)
	}
}
