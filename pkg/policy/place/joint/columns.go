package joint

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/place/lp"
	"github.com/gfaas/gfaas/pkg/splitmix"
)

// pattern describes one GPU of a class: the items that it hosts and the rates that they serve.
type pattern struct {
	gpu   GPU
	fns   []int     // functions served, ascending
	rates []float64 // of each
}

// pattern returns the pattern of a GPU of the class that hosts the items.
func (p *Problem) pattern(class int, items []Item) pattern {
	out := pattern{gpu: GPU{class, AnyNode, items}}
	for _, it := range items {
		if p.option(it).Rate > 0 {
			out.fns = append(out.fns, it.Func)
		}
	}
	slices.Sort(out.fns)
	out.fns = slices.Compact(out.fns)
	out.rates = make([]float64, len(out.fns))
	for _, it := range items {
		if k, served := slices.BinarySearch(out.fns, it.Func); served {
			out.rates[k] += p.option(it).Rate
		}
	}
	return out
}

// worth returns the value of the served rates at the given prices. Unless remaining is nil, a
// rate counts for at most the remaining demand.
func (t pattern) worth(price, remaining []float64) float64 {
	sum := 0.0
	for k, f := range t.fns {
		rate := t.rates[k]
		if remaining != nil {
			rate = min(rate, remaining[f])
		}
		sum += price[f] * rate
	}
	return sum
}

// key returns a string that is equal for patterns of the same class with the same items.
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

// pool holds the patterns found so far.
type pool struct {
	patterns []pattern
	known    map[string]bool // by key
}

// add adds a pattern and reports whether it is new. It ignores patterns that serve no function.
func (p *pool) add(t pattern) bool {
	key := t.key()
	if len(t.fns) == 0 || p.known[key] {
		return false
	}
	p.known[key] = true
	p.patterns = append(p.patterns, t)
	return true
}

// generator solves linear programs by column generation.
type generator struct {
	requirement *requirement
	pack        *packer
	pricing     *pricing
	pool        *pool
}

// newGenerator returns a generator and sets the solo rates of its requirement.
func newGenerator(t *requirement, pack *packer, rng *splitmix.Source) *generator {
	g := &generator{t, pack, &pricing{pack: pack, rng: rng}, &pool{known: map[string]bool{}}}
	g.findSolo()
	return g
}

// master is the linear program that serves the remaining demand with the fewest patterns of the
// pool. A function's row is in units of its solo rate.
type master struct {
	requirement *requirement
	pool        *pool
	budget      *budget
	*lp.Master
	rows      []int // by function: its row, or -1
	classes   []int // by class: its row, or -1 if elastic
	remaining []float64
	capped    bool
	of        []int // by column: its pattern
}

// missingPenalty is the cost, in GPUs, of one GPU's worth of unserved demand. It is so large
// that the program serves all demand that it can.
const missingPenalty = 1000

// newMaster returns a program on the remaining demand. If it is capped, a pattern counts for
// at most the remaining demand, which is tighter where little remains.
func (g *generator) newMaster(remaining []float64, counts []int, capped bool) *master {
	m := &master{requirement: g.requirement, pool: g.pool, budget: g.pack.budget, capped: capped, rows: make([]int, len(remaining)), remaining: remaining, classes: make([]int, len(counts))}
	var rows []lp.Row
	for f, v := range remaining {
		m.rows[f] = -1
		if v > 0 && g.requirement.solo[f] > 0 {
			m.rows[f] = len(rows)
			rows = append(rows, lp.Row{RHS: v / g.requirement.solo[f], Penalty: missingPenalty * g.requirement.solo[f] / g.requirement.minSolo})
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
	for i := range g.pool.patterns {
		m.addColumn(i)
	}
	return m
}

// addColumn adds pattern i of the pool as a column, unless it serves no function of the program.
func (m *master) addColumn(i int) {
	t := m.pool.patterns[i]
	c := lp.Column{Cost: 1}
	for k, f := range t.fns {
		if row := m.rows[f]; row >= 0 {
			rate := t.rates[k]
			if m.capped {
				rate = min(rate, m.remaining[f])
			}
			c.Rows, c.Coefs = append(c.Rows, row), append(c.Coefs, rate/m.requirement.solo[f])
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

// offer adds a pattern to the pool and the program if it is new and worth more than cost. It
// reports whether it did.
func (m *master) offer(t pattern, price, cap []float64, cost float64) bool {
	if t.worth(price, cap) <= cost || !m.pool.add(t) {
		return false
	}
	m.addColumn(len(m.pool.patterns) - 1)
	return true
}

// solve runs the simplex method on the present columns, for at most limit pivots or until the
// time expires.
func (m *master) solve(limit int) {
	before := m.Work()
	m.Solve(limit, m.budget.hasExpired)
	m.budget.work += m.Work() - before
}

// cap returns the largest rates that patterns count for, or nil if there is no limit.
func (m *master) cap() []float64 {
	if m.capped {
		return m.remaining
	}
	return nil
}

// prices returns the price of one request per second of each function, and the price of one more
// GPU of each class (at most 0).
func (m *master) prices() (price, scarce []float64) {
	price, scarce = make([]float64, len(m.rows)), make([]float64, len(m.classes))
	for f, row := range m.rows {
		if row >= 0 {
			price[f] = max(0, m.Prices()[row]) / m.requirement.solo[f]
		}
	}
	for k, row := range m.classes {
		if row >= 0 {
			scarce[k] = min(0, m.Prices()[row])
		}
	}
	return price, scarce
}

// use is a pattern of the program's solution and the number of GPUs that have it.
type use struct {
	pattern pattern
	count   float64
}

func (m *master) uses() (out []use) {
	m.Solution(func(column int, value float64) { out = append(out, use{m.pool.patterns[m.of[column]], value}) })
	return out
}

// relaxation is the solution of a linear program over the patterns generated so far.
type relaxation struct {
	use    []use
	price  []float64 // of one request per second, by function
	proven float64   // lower bound of the program's value, in GPUs
}

const (
	// rounds limits the rounds of pattern generation for one program.
	rounds = 2000
	// rootWork limits the steps for the first program. The bound proven by then counts.
	rootWork = 50_000_000
	// margin is the least amount by which a new pattern must be worth more than its GPU.
	margin = 1e-7
)

// solveRoot solves the program for the whole demand.
func (g *generator) solveRoot() relaxation {
	return g.generate(g.requirement.demand, g.pack.p.counts())
}

// findSolo sets the target's solo rates: the most that one GPU serves of each function alone.
func (g *generator) findSolo() {
	if g.pack.p.fleetOnly() {
		g.soloAlike()
		return
	}
	price := make([]float64, len(g.pack.p.Funcs))
	for f := range g.pack.p.Funcs {
		if len(g.pack.p.Funcs[f].Options) == 0 {
			continue
		}
		price[f] = 1
		largest := 0.0
		for k, class := range g.pack.p.Classes {
			if class.Count == 0 {
				continue
			}
			found, _ := g.pricing.findPatterns(k, price, g.requirement.demand, 0)
			for _, t := range found {
				if g.pool.add(t) {
					largest = max(largest, t.rates[0])
				}
			}
		}
		price[f] = 0
		g.requirement.setSolo(f, largest)
	}
}

// soloAlike sets the solo rates to the most that a GPU serves with identical instances, which
// suffices for a fleet.
func (g *generator) soloAlike() {
	room := g.pack.p.Classes[0].Room
	for f := range g.pack.p.Funcs {
		largest := 0.0
		for _, o := range g.pack.p.Funcs[f].Options {
			if !o.On[0] || o.Mem > room {
				continue
			}
			n := (One / o.W) * (One / o.H)
			if o.Mem > 0 {
				n = min(n, room/o.Mem)
			}
			largest = max(largest, float64(n)*o.Rate)
		}
		g.requirement.setSolo(f, largest)
	}
}

// generate solves the linear program of the remaining demand by column generation (Gilmore and
// Gomory 1961, A linear programming approach to the cutting-stock problem). It stops when no new
// pattern is worth more than its GPU, when the proven bound nearly equals the program's value, or
// when the work or time is spent.
func (g *generator) generate(remaining []float64, counts []int) relaxation {
	m := g.newMaster(remaining, counts, g.pack.p.memoryLimited())
	out := relaxation{}
	for range rounds {
		m.solve(rounds * 10)
		if g.pack.expired() {
			break
		}
		price, scarce := m.prices()
		added, largest := false, make([]float64, len(counts))
		for k := range counts {
			if counts[k] == 0 {
				continue
			}
			var found []pattern
			cost := 1 - scarce[k] + margin
			found, largest[k] = g.pricing.findPatterns(k, price, remaining, cost)
			for _, t := range found {
				added = m.offer(t, price, m.cap(), cost) || added
			}
		}
		out.proven = max(out.proven, g.provenBound(price, remaining, largest, counts))
		if !added || out.proven > m.Value()*(1-1e-6) || g.pack.work-g.pricing.extraWork > rootWork {
			break
		}
	}
	m.solve(rounds * 10) // with the patterns of the last round
	out.price, _ = m.prices()
	out.use = m.uses()
	return out
}

// provenBound returns a lower bound on the number of GPUs that the remaining demand needs: the
// demand's value at the given prices, divided by the most that a GPU of each class can serve of
// it (the Lagrangian bound of column generation: Farley 1990, A note on bounding a class of
// linear programming problems). It fills the best classes first, and assumes more GPUs of the
// best class if all together do not suffice.
func (g *generator) provenBound(price, remaining, largest []float64, counts []int) float64 {
	sum := 0.0
	for f, p := range price {
		if g.requirement.solo[f] > 0 {
			sum += p * remaining[f]
		}
	}
	order := make([]int, 0, len(largest))
	for k := range largest {
		if largest[k] > 0 {
			order = append(order, k)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(largest[b], largest[a]) })
	gpus := 0.0
	for _, k := range order {
		if math.IsInf(largest[k], 1) {
			return gpus
		}
		n := sum / largest[k]
		if counts[k] != Elastic {
			n = min(n, float64(counts[k]))
		}
		gpus += n
		if sum -= n * largest[k]; sum <= 0 {
			return gpus
		}
	}
	if len(order) > 0 {
		gpus += sum / largest[order[0]]
	}
	return gpus
}
