package joint

import (
	"cmp"
	"math"
	"slices"
)

// relaxation is a linear program solved as far as the cutter's patterns go.
type relaxation struct {
	value  float64   // its cost: GPUs, and the penalty of what is missing
	use    []use     // patterns used
	price  []float64 // of a request a second of each function
	proven float64   // what no solution of the program can cost less than, in GPUs
}

type use struct {
	pattern int
	count   float64
}

// rounds bounds how often patterns are generated for one program.
const rounds = 2000

// rootWork bounds the first program, in steps: what is proven by then counts.
const rootWork = 50_000_000

// generate solves the linear program of what is left by column generation
// (Gilmore and Gomory 1961). It stops when the cutter knows no pattern worth
// more than its GPU, or the proven bound is as close as makes no difference.
func (s *solver) generate(left []float64, counts []int) relaxation {
	m := s.master(left, counts, s.limited())
	out := relaxation{}
	for range rounds {
		s.solve(m, rounds*10)
		price, scarce := s.priced(m)
		added, most := false, make([]float64, len(counts))
		for k := range counts {
			if counts[k] == 0 {
				continue
			}
			var found []pattern
			found, most[k] = s.propose(k, price, left, 1-scarce[k]+1e-7)
			for _, t := range found {
				if t.worth(price, m.cap()) > 1-scarce[k]+1e-7 && s.keep(t) {
					s.offer(m, len(s.pool)-1)
					added = true
				}
			}
		}
		if proven := s.proven(price, left, most, counts); proven > out.proven {
			out.proven = proven
		}
		out.price = price
		if !added || out.proven > m.Value()*(1-1e-6) || s.done()-s.closing > rootWork {
			break
		}
	}
	s.solve(m, rounds*10) // with what the last round found
	out.price, _ = s.priced(m)
	out.value = m.Value()
	m.Solution(func(column int, value float64) {
		out.use = append(out.use, use{m.of[column], value})
	})
	return out
}

// proven is a number of GPUs that serving what is left takes at least: at any
// prices, what is left is worth a sum, and no GPU of a class serves more of it
// than most. The best GPUs are counted first; when they are not enough, there
// are imagined to be more of them.
func (s *solver) proven(price, left, most []float64, counts []int) float64 {
	sum := 0.0
	for f, p := range price {
		if s.unit[f] > 0 {
			sum += p * left[f]
		}
	}
	order := make([]int, 0, len(most))
	for k := range most {
		if most[k] > 0 {
			order = append(order, k)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(most[b], most[a]) })
	gpus := 0.0
	for _, k := range order {
		if math.IsInf(most[k], 1) {
			return gpus
		}
		n := sum / most[k]
		if counts[k] != Elastic {
			n = min(n, float64(counts[k]))
		}
		gpus += n
		if sum -= n * most[k]; sum <= 0 {
			return gpus
		}
	}
	if len(order) > 0 {
		gpus += sum / most[order[0]]
	}
	return gpus
}
