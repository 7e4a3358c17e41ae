// Package lp solves linear programs by a small revised simplex method. It is made for column generation: a
// program (a Master) has few rows, the caller adds columns one by one, and after each Solve the caller reads the
// dual values of the rows (Prices) to find the next column. Packages joint and pack use it.
package lp

import "math"

// Column is a variable with its cost and its coefficients in the given rows.
type Column struct {
	Cost  float64
	Rows  []int
	Coefs []float64
}

// Row is one constraint on the sum of coefficient times value over all columns. A covering row requires a sum of
// at least RHS, and each unit below it costs Penalty. A limiting row (Limit) allows a sum of at most RHS. RHS must
// not be negative.
type Row struct {
	RHS     float64
	Penalty float64
	Limit   bool
}

// Master minimizes the cost of non-negative columns under its rows. It stores the inverse of the basis
// explicitly, because there are only tens to hundreds of rows.
type Master struct {
	rows    []Row
	columns []Column
	basis   []int     // by row: the basic variable, which is the index of a column, or a slack or surplus
	inverse []float64 // inverse of the basis matrix, rows × rows
	x       []float64 // by row: value of the basic variable
	price   []float64 // by row: the dual value
	inBasis []bool    // by column
	nonzero []int     // scratch space of pivot
	pivots  int       // number of pivots so far
	work    int64     // see Work
}

const (
	tolerance        = 1e-9
	minPivot         = 1e-9 // smaller elements of the entering column count as 0
	refactorInterval = 150  // number of pivots after which the inverse is computed from scratch
)

// New returns a program without columns. Its solution is 0, so each covering row costs its full penalty.
func New(rows []Row) *Master {
	m := len(rows)
	p := &Master{rows: rows, basis: make([]int, m), inverse: make([]float64, m*m), x: make([]float64, m), price: make([]float64, m)}
	for i := range rows {
		p.basis[i] = slack(i)
		p.inverse[i*m+i] = 1
	}
	p.computeValues()
	p.computePrices()
	return p
}

// Each variable has a number. That of a column is its index. The other variables have negative numbers: the slack
// of a row is the amount by which the sum is below RHS; the surplus of a covering row is the amount by which it is
// above.
func slack(row int) int   { return -1 - 2*row }
func surplus(row int) int { return -2 - 2*row }

// cost returns the cost of one unit of a variable.
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

// forEachCoef calls f with every coefficient of a variable.
func (p *Master) forEachCoef(v int, f func(row int, coef float64)) {
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

// Add adds a column.
func (p *Master) Add(c Column) {
	p.columns = append(p.columns, c)
	p.inBasis = append(p.inBasis, false)
}

// reducedCost returns a column's reduced cost at the current prices.
func (p *Master) reducedCost(c Column) float64 {
	sum := c.Cost
	for k, row := range c.Rows {
		sum -= p.price[row] * c.Coefs[k]
	}
	return sum
}

// Prices returns the dual values of the rows: how much one more unit of RHS costs. The caller must not change them.
func (p *Master) Prices() []float64 { return p.price }

// Work returns the approximate number of elementary steps that all calls so far have taken. A step takes some
// nanoseconds.
func (p *Master) Work() int64 { return p.work }

// Value returns the cost of the current solution.
func (p *Master) Value() float64 {
	sum := 0.0
	for i, v := range p.basis {
		sum += p.cost(v) * p.x[i]
	}
	return sum
}

// Solution calls f with each column that has a positive value, in the order of rows.
func (p *Master) Solution(f func(column int, value float64)) {
	for i, v := range p.basis {
		if v >= 0 && p.x[i] > 0 {
			f(v, p.x[i])
		}
	}
}

// Solve performs pivots until none lowers the cost, but at most limit pivots. It also ends when stop, which
// may be nil, returns true.
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

// entering returns the variable with the most negative reduced cost. It returns false if there is none.
func (p *Master) entering() (v int, ok bool) {
	least := -tolerance
	p.work += int64(len(p.columns))
	for j, c := range p.columns {
		if p.inBasis[j] {
			continue
		}
		if r := p.reducedCost(c); r < least {
			least, v, ok = r, j, true
		}
	}
	for i, row := range p.rows {
		u, r := slack(i), p.cost(slack(i))-p.price[i]
		if !row.Limit && p.price[i] < r {
			u, r = surplus(i), p.price[i]
		}
		if r < least && p.basis[i] != u {
			least, v, ok = r, u, true
		}
	}
	return v, ok
}

// enter moves a variable into the basis. It returns false if the variable is unbounded, which happens only
// through rounding errors if all costs are positive.
func (p *Master) enter(v int) bool {
	m := len(p.rows)
	d := make([]float64, m) // the column of v in terms of the basis
	p.forEachCoef(v, func(row int, coef float64) {
		for i := range m {
			d[i] += p.inverse[i*m+row] * coef
		}
	})
	leaving, least := -1, math.Inf(1) // row of the variable that leaves the basis
	for i := range m {
		if d[i] <= minPivot {
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
	p.forEachCoef(v, func(row int, coef float64) { reduced -= p.price[row] * coef })
	p.setInBasis(p.basis[leaving], false)
	p.basis[leaving] = v
	p.setInBasis(v, true)
	p.updateValues(leaving, d)
	p.pivot(leaving, d)
	for j := range m {
		p.price[j] += reduced * p.inverse[leaving*m+j]
	}
	if p.pivots++; p.pivots%refactorInterval == 0 {
		p.invert()
		p.computeValues()
		p.computePrices()
	}
	return true
}

// updateValues updates the values of the basic variables after a variable has replaced that of row r. d is its
// column in terms of the old basis.
func (p *Master) updateValues(r int, d []float64) {
	step := p.x[r] / d[r]
	for i := range p.x {
		p.x[i] = max(0, p.x[i]-step*d[i])
	}
	p.x[r] = step
}

// setInBasis records whether a variable is in the basis, if it is a column.
func (p *Master) setInBasis(v int, in bool) {
	if v >= 0 {
		p.inBasis[v] = in
	}
}

// pivot updates the inverse after the column d (in terms of the old basis) has replaced the basic column of row r.
func (p *Master) pivot(r int, d []float64) {
	m := len(p.rows)
	pivotRow := p.inverse[r*m : r*m+m]
	p.nonzero = p.nonzero[:0]
	for j, a := range pivotRow {
		if a != 0 {
			pivotRow[j] = a / d[r]
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
				row[j] -= d[i] * pivotRow[j]
			}
			continue
		}
		for j, a := range pivotRow {
			row[j] -= d[i] * a
		}
	}
}

// invert computes the inverse from scratch, which removes accumulated rounding errors. It starts with the identity
// matrix and pivots on each basic variable, which may change the rows of the variables.
func (p *Master) invert() {
	m := len(p.rows)
	basis := append([]int(nil), p.basis...)
	old := append([]float64(nil), p.inverse...)
	clear(p.inverse)
	for i := range m {
		p.inverse[i*m+i] = 1
	}
	assigned := make([]bool, m) // by row: whether it has its basic variable
	d := make([]float64, m)
	for _, v := range basis {
		clear(d)
		p.forEachCoef(v, func(row int, coef float64) {
			if !assigned[row] { // this column of the inverse is still that of the identity matrix
				d[row] += coef
				return
			}
			for i := range m {
				d[i] += p.inverse[i*m+row] * coef
			}
		})
		r := -1
		for i := range m {
			if !assigned[i] && (r < 0 || math.Abs(d[i]) > math.Abs(d[r])) {
				r = i
			}
		}
		if math.Abs(d[r]) < 1e-11 { // nearly singular: keep the old inverse
			p.inverse, p.basis = old, basis
			return
		}
		assigned[r], p.basis[r] = true, v
		p.pivot(r, d)
	}
}

// computeValues computes the values of the basic variables. It adds a different tiny amount to the RHS of each row,
// so that ratios never tie and the simplex method does not cycle.
func (p *Master) computeValues() {
	m := len(p.rows)
	for i := range m {
		sum := 0.0
		for j, row := range p.rows {
			sum += p.inverse[i*m+j] * (row.RHS + perturbation*(1+row.RHS)*float64(j+1)/float64(m))
		}
		p.x[i] = max(0, sum)
	}
}

// perturbation scales the amounts that computeValues adds.
const perturbation = 1e-8

// computePrices computes the prices from the costs of the basic variables.
func (p *Master) computePrices() {
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
