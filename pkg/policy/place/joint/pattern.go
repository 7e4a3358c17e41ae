package joint

import (
	"encoding/binary"
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/place/lp"
	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
	"github.com/gfaas/gfaas/pkg/policy/place/timetable"
)

// pattern is what one GPU of a class can host, and serves so.
type pattern struct {
	gpu   GPU
	fns   []int     // functions served, ascending
	rates []float64 // of each
}

func (s *solver) pattern(g GPU) pattern {
	sum := make([]float64, len(s.p.Funcs))
	for _, it := range g.Items {
		sum[it.Func] += s.p.Funcs[it.Func].Options[it.Option].Rate
	}
	out := pattern{gpu: g}
	for f, r := range sum {
		if r > 0 {
			out.fns, out.rates = append(out.fns, f), append(out.rates, r)
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

// keep adds a pattern to the pool and says whether it is new.
func (s *solver) keep(t pattern) bool {
	key := t.key()
	if len(t.fns) == 0 || s.seen[key] {
		return false
	}
	s.seen[key] = true
	s.pool = append(s.pool, t)
	return true
}

// propose finds a most valuable pattern of a class, as far as guillotine cuts
// and filling find it, and a value that none exceeds.
func (s *solver) propose(class int, price, left []float64, enough float64) ([]pattern, float64) {
	s.cutters[class].solve(price, left, 0)
	most := s.relaxed[class].bound()
	best := s.settle(class, price, left)
	if room := s.p.Classes[class].Room; room != Unlimited && room > 0 {
		fuller := fuller{s: s, class: class, price: price, left: left, best: best, all: []pattern{best}, most: most}
		fuller.propose(enough)
		return fuller.all, fuller.most
	}
	return []pattern{best}, most
}

var wholeGPU = maxrect.Rect{W: One, H: One}

// settle makes a pattern of the cutter's solution: what of it fits memory, and
// what fits besides.
func (s *solver) settle(class int, price, left []float64) pattern {
	room := s.p.Classes[class].Room
	items := s.cutters[class].cut(nil, s.p, wholeGPU)
	if room == Unlimited && !s.p.Tokens {
		return s.pattern(GPU{class, AnyNode, items})
	}
	h, left := s.host(class, nil), slices.Clone(left)
	for _, it := range items {
		if (room == Unlimited || left[it.Func] > 0) && h.remembers(s.p, it) {
			s.serve(h, s.timed(it), left)
		}
	}
	s.fillUp(h, price, left)
	return s.pattern(GPU{class, AnyNode, h.items})
}

// timed gives an item of a cut its turn, under tokens.
func (s *solver) timed(it Item) Item {
	if s.p.Tokens {
		it.Turns = []timetable.Turn{{From: it.At.X, To: it.At.X + it.At.W}}
	}
	return it
}

// memory is what items need on one GPU.
func (s *solver) memory(items []Item) int64 {
	h := host{}
	for _, it := range items {
		h.used += h.cost(s.p, it)
		h.items = append(h.items, it)
	}
	return h.used
}

// master is the linear program of serving what is left with the pool's
// patterns, rows in units of what a GPU of a function's alone serves.
type master struct {
	*lp.Master
	rows    []int // of each function; -1 without
	classes []int // rows of classes; -1 if elastic
	fns     []int // function of each row
	left    []float64
	capped  bool
	of      []int // pattern of each column
}

// missing is what a GPU's worth that is not served costs, in GPUs: so much
// that nothing is missed that can be served.
const missing = 1000

// master starts a program on what is left. Capped, a pattern counts for what
// is left at most: it is tighter where little is.
func (s *solver) master(left []float64, counts []int, capped bool) *master {
	m := &master{capped: capped, rows: make([]int, len(left)), left: left, classes: make([]int, len(counts))}
	var rows []lp.Row
	for f, v := range left {
		m.rows[f] = -1
		if v > 0 && s.unit[f] > 0 {
			m.rows[f] = len(rows)
			m.fns = append(m.fns, f)
			rows = append(rows, lp.Row{RHS: v / s.unit[f], Penalty: missing * s.unit[f] / s.least})
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
	for i := range s.pool {
		s.offer(m, i)
	}
	return m
}

// solve solves the program as far as its columns go, in at most limit pivots.
func (s *solver) solve(m *master, limit int) {
	before := m.Work()
	m.Solve(limit)
	s.work += m.Work() - before
}

// cap is what patterns count for at most; nil if there is no such limit.
func (m *master) cap() []float64 {
	if m.capped {
		return m.left
	}
	return nil
}

// offer adds a pattern of the pool as a column.
func (s *solver) offer(m *master, i int) {
	t := s.pool[i]
	c := lp.Column{Cost: 1}
	for k, f := range t.fns {
		if row := m.rows[f]; row >= 0 {
			rate := t.rates[k]
			if m.capped {
				rate = min(rate, m.left[f])
			}
			c.Rows, c.Coefs = append(c.Rows, row), append(c.Coefs, rate/s.unit[f])
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

// priced is the price of a request a second of each function, and of one GPU
// more of each class (at most 0).
func (s *solver) priced(m *master) (price, scarce []float64) {
	price, scarce = make([]float64, len(m.rows)), make([]float64, len(m.classes))
	for f, row := range m.rows {
		if row >= 0 {
			price[f] = max(0, m.Prices()[row]) / s.unit[f]
		}
	}
	for k, row := range m.classes {
		if row >= 0 {
			scarce[k] = min(0, m.Prices()[row])
		}
	}
	return price, scarce
}
