package joint

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/place/lp"
)

// pattern is what one GPU of a class can host, and serves so.
type pattern struct {
	gpu   GPU
	fns   []int     // functions served, ascending
	rates []float64 // of each
}

func (s *solver) pattern(g GPU) pattern {
	out := pattern{gpu: g}
	for _, it := range g.Items {
		if s.p.option(it).Rate > 0 {
			out.fns = append(out.fns, it.Func)
		}
	}
	slices.Sort(out.fns)
	out.fns = slices.Compact(out.fns)
	out.rates = make([]float64, len(out.fns))
	for _, it := range g.Items {
		if k, served := slices.BinarySearch(out.fns, it.Func); served {
			out.rates[k] += s.p.option(it).Rate
		}
	}
	return out
}

// worth is the value of what a pattern serves; of what is left, if that is
// given.
func (t pattern) worth(price, left []float64) float64 {
	sum := 0.0
	for k, f := range t.fns {
		rate := t.rates[k]
		if left != nil {
			rate = min(rate, left[f])
		}
		sum += price[f] * rate
	}
	return sum
}

// key tells patterns apart by their class and what they host.
func (t pattern) key() string {
	codes := make([]uint64, 0, len(t.gpu.Items)+1)
	for _, it := range t.gpu.Items {
		codes = append(codes, uint64(it.Func)<<32|uint64(it.Option))
	}
	slices.Sort(codes)
	var b []byte
	b = binary.AppendUvarint(b, uint64(t.gpu.Class))
	for _, c := range codes {
		b = binary.AppendUvarint(b, c)
	}
	return string(b)
}

// pool is the patterns found so far.
type pool struct {
	patterns []pattern
	known    map[string]bool // by key
}

// add adds a pattern and says whether it is new.
func (p *pool) add(t pattern) bool {
	key := t.key()
	if len(t.fns) == 0 || p.known[key] {
		return false
	}
	p.known[key] = true
	p.patterns = append(p.patterns, t)
	return true
}

// master is the linear program of serving what is left with the pool's
// patterns, rows in units of what a GPU of a function's alone serves.
type master struct {
	*lp.Master
	rows    []int // of each function; -1 without
	classes []int // rows of classes; -1 if elastic
	left    []float64
	capped  bool
	of      []int // pattern of each column
}

// missingPenalty is what a GPU's worth that is not served costs, in GPUs: so
// much that nothing is missed that can be served.
const missingPenalty = 1000

// master starts a program on what is left. Capped, a pattern counts for what
// is left at most: it is tighter where little is.
func (s *solver) master(left []float64, counts []int, capped bool) *master {
	m := &master{capped: capped, rows: make([]int, len(left)), left: left, classes: make([]int, len(counts))}
	var rows []lp.Row
	for f, v := range left {
		m.rows[f] = -1
		if v > 0 && s.solo[f] > 0 {
			m.rows[f] = len(rows)
			rows = append(rows, lp.Row{RHS: v / s.solo[f], Penalty: missingPenalty * s.solo[f] / s.minSolo})
		}
	}
	for k, n := range counts {
		m.classes[k] = -1
		if n != Elastic {
			m.classes[k] = len(rows)
			rows = append(rows, lp.Row{RHS: float64(n), Limit: true})
		}
	}
	m.Master = lp.New(rows)
	for i := range s.pool.patterns {
		s.addColumn(m, i)
	}
	return m
}

// addColumn adds a pattern of the pool as a column.
func (s *solver) addColumn(m *master, i int) {
	t := s.pool.patterns[i]
	c := lp.Column{Cost: 1}
	for k, f := range t.fns {
		if row := m.rows[f]; row >= 0 {
			rate := t.rates[k]
			if m.capped {
				rate = min(rate, m.left[f])
			}
			c.Rows, c.Coefs = append(c.Rows, row), append(c.Coefs, rate/s.solo[f])
		}
	}
	if len(c.Rows) == 0 {
		return
	}
	if row := m.classes[t.gpu.Class]; row >= 0 {
		c.Rows, c.Coefs = append(c.Rows, row), append(c.Coefs, 1)
	}
	m.Add(c)
	m.of = append(m.of, i)
}

// offer adds a pattern to the pool and the program, if it is worth more than
// cost and new.
func (s *solver) offer(m *master, t pattern, price, cap []float64, cost float64) bool {
	if t.worth(price, cap) <= cost || !s.pool.add(t) {
		return false
	}
	s.addColumn(m, len(s.pool.patterns)-1)
	return true
}

// solve solves the program as far as its columns go, in at most limit pivots, or
// as far as there is time.
func (s *solver) solve(m *master, limit int) {
	before := m.Work()
	m.Solve(limit, s.o.Expired)
	s.work += m.Work() - before
}

// cap is what patterns count for at most; nil if there is no such limit.
func (m *master) cap() []float64 {
	if m.capped {
		return m.left
	}
	return nil
}

// masterPrices are those of a request a second of each function, and of one GPU
// more
// of each class (at most 0).
func (s *solver) masterPrices(m *master) (price, scarce []float64) {
	price, scarce = make([]float64, len(m.rows)), make([]float64, len(m.classes))
	for f, row := range m.rows {
		if row >= 0 {
			price[f] = max(0, m.Prices()[row]) / s.solo[f]
		}
	}
	for k, row := range m.classes {
		if row >= 0 {
			scarce[k] = min(0, m.Prices()[row])
		}
	}
	return price, scarce
}

// use is how often a solution of the program takes a pattern of the pool.
type use struct {
	pattern int
	count   float64
}

func (m *master) uses() (out []use) {
	m.Solution(func(column int, value float64) { out = append(out, use{m.of[column], value}) })
	return out
}

// relaxation is a linear program solved as far as the patterns that were found
// go.
type relaxation struct {
	use    []use
	price  []float64 // of a request a second of each function
	proven float64   // what no solution of the program can cost less than, in GPUs
}

const (
	// rounds bounds how often patterns are generated for one program.
	rounds = 2000
	// rootWork bounds the first program, in steps: what is proven by then counts.
	rootWork = 50_000_000
	// margin is how much more than its GPU a pattern must be worth to come in.
	margin = 1e-7
)

// solveRoot solves the program of all that is wanted.
func (s *solver) solveRoot() relaxation {
	s.findSolo()
	return s.generate(s.demand, s.counts())
}

// findSolo finds what one GPU serves of each function alone, once.
func (s *solver) findSolo() {
	if s.solo != nil {
		return
	}
	s.solo = make([]float64, len(s.p.Funcs))
	s.minSolo = math.Inf(1)
	if s.fleetOnly() {
		s.soloAlike()
		return
	}
	price := make([]float64, len(s.p.Funcs))
	for f := range s.p.Funcs {
		if len(s.p.Funcs[f].Options) == 0 {
			continue
		}
		price[f] = 1
		for k, class := range s.p.Classes {
			if class.Count == 0 {
				continue
			}
			found, _ := s.findPatterns(k, price, s.demand, 0)
			for _, t := range found {
				if s.pool.add(t) {
					s.solo[f] = max(s.solo[f], t.rates[0])
				}
			}
		}
		price[f] = 0
		if s.solo[f] > 0 {
			s.minSolo = min(s.minSolo, s.solo[f])
		}
	}
}

// soloAlike finds what a GPU serves of each function with instances that are
// alike, which is enough for a fleet.
func (s *solver) soloAlike() {
	room := s.p.Classes[0].Room
	for f := range s.p.Funcs {
		for _, o := range s.p.Funcs[f].Options {
			if !o.On[0] || o.Mem > room {
				continue
			}
			n := (One / o.W) * (One / o.H)
			if o.Mem > 0 {
				n = min(n, room/o.Mem)
			}
			s.solo[f] = max(s.solo[f], float64(n)*o.Rate)
		}
		if s.solo[f] > 0 {
			s.minSolo = min(s.minSolo, s.solo[f])
		}
	}
}

func (s *solver) counts() []int {
	out := make([]int, len(s.p.Classes))
	for k, c := range s.p.Classes {
		out[k] = c.Count
	}
	return out
}

// generate solves the linear program of what is left by column generation
// (Gilmore and Gomory 1961, A linear programming approach to the cutting-stock
// problem). It stops when no pattern is found that is worth more than its GPU,
// the proven bound is as close as makes no difference, or time is over.
func (s *solver) generate(left []float64, counts []int) relaxation {
	m := s.master(left, counts, s.memoryLimited())
	out := relaxation{}
	for range rounds {
		s.solve(m, rounds*10)
		if s.expired() {
			break
		}
		price, scarce := s.masterPrices(m)
		added, most := false, make([]float64, len(counts))
		for k := range counts {
			if counts[k] == 0 {
				continue
			}
			var found []pattern
			cost := 1 - scarce[k] + margin
			found, most[k] = s.findPatterns(k, price, left, cost)
			for _, t := range found {
				added = s.offer(m, t, price, m.cap(), cost) || added
			}
		}
		out.proven = max(out.proven, s.proven(price, left, most, counts))
		if !added || out.proven > m.Value()*(1-1e-6) || s.work-s.pricing.extraWork > rootWork {
			break
		}
	}
	s.solve(m, rounds*10) // with what the last round found
	out.price, _ = s.masterPrices(m)
	out.use = m.uses()
	return out
}

// proven is a number of GPUs that serving what is left takes at least: at any
// prices, what is left is worth a sum, and no GPU of a class serves more of it
// than most (the Lagrangian bound of column generation: Farley 1990, A note on
// bounding a class of linear programming problems). The best GPUs are counted
// first; when they are not enough, there are imagined to be more of them.
func (s *solver) proven(price, left, most []float64, counts []int) float64 {
	sum := 0.0
	for f, p := range price {
		if s.solo[f] > 0 {
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

// withLeastPrices are prices at which everything is wanted: what the program
// gets for nothing costs a little.
func (s *solver) withLeastPrices(price []float64) []float64 {
	out := slices.Clone(price)
	for f := range out {
		if s.solo[f] > 0 {
			out[f] = max(out[f], leastPrice/s.solo[f])
		}
	}
	return out
}

// leastPrice is a part of what a function costs when it has GPUs of its own.
const leastPrice = 0.05

// memoryLimited says whether memory is limited on any GPU.
func (s *solver) memoryLimited() bool {
	return slices.ContainsFunc(s.p.Classes, func(c Class) bool { return c.Room != Unlimited })
}
