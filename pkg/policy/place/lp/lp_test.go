package lp

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// least is the dumb twin: the least cost over all bases of the program in
// standard form, missing parts and slacks included.
func least(rows []Row, columns []Column) float64 {
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

// solve solves the square system by elimination; false when it is singular or
// a value is negative.
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

func TestAgainstAllBases(t *testing.T) {
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
		want := least(rows, columns)
		if got := p.Value(); math.Abs(got-want) > 1e-4*(1+want) {
			t.Fatalf("cost %v, want %v", got, want)
		}
		checkDual(t, p, rows, columns, want)
	})
}

// checkDual holds that the prices prove the value: no column pays, and what
// the rows ask for is worth the cost.
func checkDual(t *rapid.T, p *Master, rows []Row, columns []Column, want float64) {
	worth := 0.0
	for i, price := range p.Prices() {
		if rows[i].Limit && price > 1e-6 || !rows[i].Limit && (price < -1e-6 || price > rows[i].Penalty+1e-6) {
			t.Fatalf("row %d has the price %v", i, price)
		}
		worth += price * rows[i].RHS
	}
	for j, c := range columns {
		if p.reduced(c) < -1e-6 {
			t.Fatalf("column %d would lower the cost by %v", j, -p.reduced(c))
		}
	}
	if math.Abs(worth-want) > 1e-4*(1+want) {
		t.Fatalf("the prices are worth %v, the cost is %v", worth, want)
	}
}

// Many pivots must not add up errors.
func TestManyColumns(t *testing.T) {
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
	worth := 0.0
	for i, price := range p.Prices() {
		worth += price * rows[i].RHS
	}
	if math.Abs(worth-p.Value()) > 1e-4*worth {
		t.Errorf("prices are worth %v, the cost is %v", worth, p.Value())
	}
	for j, c := range p.columns {
		if p.reduced(c) < -1e-6 {
			t.Errorf("column %d would lower the cost by %v", j, -p.reduced(c))
		}
	}
}
