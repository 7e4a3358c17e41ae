package lp

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// minCost is a simple twin: it returns the least cost over all bases of the program in standard form, which has
// variables for the slack and surplus of each row.
func minCost(rows []Row, columns []Column) float64 {
	m := len(rows)
	var cost []float64
	var matrix [][]float64
	add := func(c float64, coefs []float64) { cost, matrix = append(cost, c), append(matrix, coefs) }
	for _, c := range columns {
		coefs := make([]float64, m)
		for k, row := range c.Rows {
			coefs[row] = c.Coefs[k]
		}
		add(c.Cost, coefs)
	}
	for i, row := range rows {
		unit := make([]float64, m)
		unit[i] = 1
		if row.Limit {
			add(0, unit)
			continue
		}
		add(row.Penalty, unit)
		minus := make([]float64, m)
		minus[i] = -1
		add(0, minus)
	}
	best := math.Inf(1)
	basis := make([]int, 0, m)
	var choose func(from int)
	choose = func(from int) {
		if len(basis) == m {
			if x, ok := solve(matrix, basis, rows); ok {
				sum := 0.0
				for i, j := range basis {
					sum += cost[j] * x[i]
				}
				best = min(best, sum)
			}
			return
		}
		for j := from; j < len(matrix); j++ {
			basis = append(basis, j)
			choose(j + 1)
			basis = basis[:len(basis)-1]
		}
	}
	choose(0)
	return best
}

// solve solves the square system by elimination. It returns false if the matrix is singular or a value is
// negative.
func solve(columns [][]float64, basis []int, rows []Row) ([]float64, bool) {
	m := len(rows)
	a := make([][]float64, m)
	for i := range a {
		a[i] = make([]float64, m+1)
		for k, j := range basis {
			a[i][k] = columns[j][i]
		}
		a[i][m] = rows[i].RHS
	}
	for c := range m {
		p := c
		for r := c; r < m; r++ {
			if math.Abs(a[r][c]) > math.Abs(a[p][c]) {
				p = r
			}
		}
		if math.Abs(a[p][c]) < 1e-9 {
			return nil, false
		}
		a[c], a[p] = a[p], a[c]
		for r := range m {
			if r != c {
				f := a[r][c] / a[c][c]
				for k := c; k <= m; k++ {
					a[r][k] -= f * a[c][k]
				}
			}
		}
	}
	x := make([]float64, m)
	for i := range x {
		x[i] = a[i][m] / a[i][i]
		if x[i] < -1e-9 {
			return nil, false
		}
	}
	return x, true
}

// TestMatchesMinimumOverAllBases compares the cost of random programs with minCost.
func TestMatchesMinimumOverAllBases(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Row {
			return Row{
				RHS:     float64(rapid.IntRange(0, 9).Draw(t, "rhs")),
				Penalty: float64(rapid.IntRange(1, 50).Draw(t, "penalty")),
				Limit:   rapid.IntRange(0, 3).Draw(t, "limit") == 0,
			}
		}), 1, 4).Draw(t, "rows")
		var columns []Column
		for range rapid.IntRange(0, 6).Draw(t, "columns") {
			c := Column{Cost: float64(rapid.IntRange(1, 5).Draw(t, "cost"))}
			for i := range rows {
				if v := rapid.IntRange(0, 4).Draw(t, "coef"); v > 0 {
					c.Rows, c.Coefs = append(c.Rows, i), append(c.Coefs, float64(v))
				}
			}
			columns = append(columns, c)
		}
		p := New(rows)
		for _, c := range columns {
			p.Add(c)
			p.Solve(1000, nil)
		}
		want := minCost(rows, columns)
		if got := p.Value(); math.Abs(got-want) > 1e-4*(1+want) {
			t.Fatalf("got a cost of %v, want %v", got, want)
		}
		checkDual(t, p, rows, columns, want)
	})
}

// checkDual checks that the prices prove the value: no column has a negative reduced cost, and the value of
// the rows at the prices equals the cost.
func checkDual(t *rapid.T, p *Master, rows []Row, columns []Column, want float64) {
	dual := 0.0 // the value of the dual program
	for i, price := range p.Prices() {
		if rows[i].Limit && price > 1e-6 || !rows[i].Limit && (price < -1e-6 || price > rows[i].Penalty+1e-6) {
			t.Fatalf("row %d: got a price of %v, want at most 0 for a limiting row, and 0 to the penalty, %v, otherwise", i, price, rows[i].Penalty)
		}
		dual += price * rows[i].RHS
	}
	for j, c := range columns {
		if p.reducedCost(c) < -1e-6 {
			t.Fatalf("column %d: got a reduced cost of %v, want at least 0", j, p.reducedCost(c))
		}
	}
	if math.Abs(dual-want) > 1e-4*(1+want) {
		t.Fatalf("got a value of %v for the rows at these prices, want the cost, %v", dual, want)
	}
}

// TestErrorsDoNotAccumulate solves a program after each of 1600 columns and checks that the prices prove the cost.
func TestErrorsDoNotAccumulate(t *testing.T) {
	const m = 40
	rows := make([]Row, m)
	for i := range rows {
		rows[i] = Row{RHS: float64(i + 1), Penalty: 1000}
	}
	p := New(rows)
	for i := range m {
		for j := range m {
			c := Column{Cost: 1, Rows: []int{i}, Coefs: []float64{1 + float64(j%7)/7}}
			if i != j {
				c.Rows, c.Coefs = append(c.Rows, j), append(c.Coefs, 0.5)
			}
			p.Add(c)
			p.Solve(10000, nil)
		}
	}
	dual := 0.0
	for i, price := range p.Prices() {
		dual += price * rows[i].RHS
	}
	if math.Abs(dual-p.Value()) > 1e-4*dual {
		t.Errorf("got a value of %v for the rows at the prices, want the cost, %v", dual, p.Value())
	}
	for j, c := range p.columns {
		if p.reducedCost(c) < -1e-6 {
			t.Errorf("column %d: got a reduced cost of %v, want at least 0", j, p.reducedCost(c))
		}
	}
}
