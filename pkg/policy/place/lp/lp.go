// Package lp is a small revised simplex for the master programs of column
// generation: few rows, columns that come one by one, and prices of the rows
// wanted after each.
package lp

import "math"

// Column is a variable's cost and its coefficients in the rows named.
type Column struct {
	Cost  float64
	Rows  []int
	Coefs []float64
}

// Row is one constraint. A covering row asks for a sum of at least RHS and
// prices what is missing at Penalty a unit; a limiting row (Limit) allows a
// sum of at most RHS. RHS is never negative.
type Row struct {
	RHS     float64
	Penalty float64
	Limit   bool
}

// Master minimizes the cost of non-negative columns under its rows. The
// inverse of the basis is kept explicitly: rows are tens to hundreds.
type Master struct {
	rows    []Row
	columns []Column
	basis   []int     // of each row: a column's number, or see entry
	inverse []float64 // rows × rows
	x       []float64 // value of each basic variable
	price   []float64
	inBasis []bool // of each column
	nonzero []int  // of pivot, kept for its memory
	pivots  int
	work    int64
}

const (
	tolerance  = 1e-9
	pivotLeast = 1e-9
	refactor   = 150 // pivots between two inversions from scratch
)

// New is a master program without columns: everything is missing.
func New(rows []Row) *Master {
	m := len(rows)
	p := &Master{rows: rows, basis: make([]int, m), inverse: make([]float64, m*m), x: make([]float64, m), price: make([]float64, m)}
	for i := range rows {
		p.basis[i] = own(i)
		p.inverse[i*m+i] = 1
	}
	p.values()
	p.prices()
	return p
}

// Basic variables that are no columns have negative numbers: own is the
// missing part of a covering row or the unused part of a limiting one, surplus
// is what exceeds a covering row.
func own(row int) int     { return -1 - 2*row }
func surplus(row int) int { return -2 - 2*row }

func (p *Master) cost(v int) float64 {
	switch {
	case v >= 0:
		return p.columns[v].Cost
	case v%2 != 0:
		if row := (-1 - v) / 2; !p.rows[row].Limit {
			return p.rows[row].Penalty
		}
	}
	return 0
}

// each calls f with every coefficient of a variable.
func (p *Master) each(v int, f func(row int, coef float64)) {
	switch {
	case v >= 0:
		c := p.columns[v]
		for k, row := range c.Rows {
			f(row, c.Coefs[k])
		}
	case v%2 != 0:
		f((-1-v)/2, 1)
	default:
		f((-2-v)/2, -1)
	}
}

// Add adds a column and gives its number.
func (p *Master) Add(c Column) int {
	p.columns = append(p.columns, c)
	p.inBasis = append(p.inBasis, false)
	return len(p.columns) - 1
}

// reduced is a column's reduced cost at the present prices.
func (p *Master) reduced(c Column) float64 {
	sum := c.Cost
	for k, row := range c.Rows {
		sum -= p.price[row] * c.Coefs[k]
	}
	return sum
}

// Prices are the rows' dual values, for reading: what one unit more costs.
func (p *Master) Prices() []float64 { return p.price }

// Work is about how many steps were taken so far, some nanoseconds each.
func (p *Master) Work() int64 { return p.work }

// Value is the cost of the present solution.
func (p *Master) Value() float64 {
	sum := 0.0
	for i, v := range p.basis {
		sum += p.cost(v) * p.x[i]
	}
	return sum
}

// Solution calls f with each column of positive value, in the order of rows.
func (p *Master) Solution(f func(column int, value float64)) {
	for i, v := range p.basis {
		if v >= 0 && p.x[i] > 0 {
			f(v, p.x[i])
		}
	}
}

// Solve takes columns into the basis until none lowers the cost, at most limit
// of them, or until stop says so; nil never does.
func (p *Master) Solve(limit int, stop func() bool) {
	for range limit {
		if stop != nil && stop() {
			return
		}
		v, ok := p.entering()
		if !ok || !p.enter(v) {
			return
		}
	}
}

// entering is the variable of the most negative reduced cost.
func (p *Master) entering() (v int, ok bool) {
	least := -tolerance
	p.work += int64(len(p.columns))
	for j, c := range p.columns {
		if p.inBasis[j] {
			continue
		}
		if r := p.reduced(c); r < least {
			least, v, ok = r, j, true
		}
	}
	for i, row := range p.rows {
		slack, r := own(i), p.cost(own(i))-p.price[i]
		if !row.Limit && p.price[i] < r {
			slack, r = surplus(i), p.price[i]
		}
		if r < least && p.basis[i] != slack {
			least, v, ok = r, slack, true
		}
	}
	return v, ok
}

// enter takes a variable into the basis. It is refused when nothing bounds it,
// which no program with costs above zero has but for rounding.
func (p *Master) enter(v int) bool {
	m := len(p.rows)
	d := make([]float64, m)
	p.each(v, func(row int, coef float64) {
		for i := range m {
			d[i] += p.inverse[i*m+row] * coef
		}
	})
	leaving, least := -1, math.Inf(1)
	for i := range m {
		if d[i] <= pivotLeast {
			continue
		}
		ratio := p.x[i] / d[i]
		if ratio < least-tolerance || ratio < least+tolerance && leaving >= 0 && d[i] > d[leaving] {
			leaving, least = i, min(least, ratio)
		}
	}
	if leaving < 0 {
		return false
	}
	p.work += int64(m * m / 4)
	reduced := p.cost(v)
	p.each(v, func(row int, coef float64) { reduced -= p.price[row] * coef })
	p.mark(p.basis[leaving], false)
	p.basis[leaving] = v
	p.mark(v, true)
	p.move(leaving, d)
	p.pivot(leaving, d)
	for j := range m {
		p.price[j] += reduced * p.inverse[leaving*m+j]
	}
	if p.pivots++; p.pivots%refactor == 0 {
		p.invert()
		p.values()
		p.prices()
	}
	return true
}

// move gives the basic variables the values they have once the variable of the
// column d is in for that of row r.
func (p *Master) move(r int, d []float64) {
	step := p.x[r] / d[r]
	for i := range p.x {
		p.x[i] = max(0, p.x[i]-step*d[i])
	}
	p.x[r] = step
}

func (p *Master) mark(v int, in bool) {
	if v >= 0 {
		p.inBasis[v] = in
	}
}

// pivot makes the inverse that of the basis with the column d (in terms of the
// old basis) at row r.
func (p *Master) pivot(r int, d []float64) {
	m := len(p.rows)
	at := p.inverse[r*m : r*m+m]
	p.nonzero = p.nonzero[:0]
	for j, a := range at {
		if a != 0 {
			at[j] = a / d[r]
			p.nonzero = append(p.nonzero, j)
		}
	}
	sparse := 4*len(p.nonzero) < m
	for i := range m {
		if i == r || d[i] == 0 {
			continue
		}
		row := p.inverse[i*m : i*m+m]
		if sparse {
			for _, j := range p.nonzero {
				row[j] -= d[i] * at[j]
			}
			continue
		}
		for j, a := range at {
			row[j] -= d[i] * a
		}
	}
}

// invert computes the inverse from scratch, which ends what rounding added up.
func (p *Master) invert() {
	m := len(p.rows)
	basis := append([]int(nil), p.basis...)
	old := append([]float64(nil), p.inverse...)
	clear(p.inverse)
	for i := range m {
		p.inverse[i*m+i] = 1
	}
	done := make([]bool, m) // rows that have got their variable
	d := make([]float64, m)
	for _, v := range basis {
		clear(d)
		p.each(v, func(row int, coef float64) {
			if !done[row] { // its column is still that of the identity
				d[row] += coef
				return
			}
			for i := range m {
				d[i] += p.inverse[i*m+row] * coef
			}
		})
		r := -1
		for i := range m {
			if !done[i] && (r < 0 || math.Abs(d[i]) > math.Abs(d[r])) {
				r = i
			}
		}
		if math.Abs(d[r]) < 1e-11 { // nearly singular: go on with what there was
			p.inverse, p.basis = old, basis
			return
		}
		done[r], p.basis[r] = true, v
		p.pivot(r, d)
	}
}

// values computes the basic variables. A tiny part is added to each row, of a
// different size for each, so that no two ratios tie and the simplex does not
// turn in circles.
func (p *Master) values() {
	m := len(p.rows)
	for i := range m {
		sum := 0.0
		for j, row := range p.rows {
			sum += p.inverse[i*m+j] * (row.RHS + perturbation*(1+row.RHS)*float64(j+1)/float64(m))
		}
		p.x[i] = max(0, sum)
	}
}

const perturbation = 1e-8

func (p *Master) prices() {
	m := len(p.rows)
	clear(p.price)
	for i, v := range p.basis {
		if c := p.cost(v); c != 0 {
			for j := range m {
				p.price[j] += c * p.inverse[i*m+j]
			}
		}
	}
}
