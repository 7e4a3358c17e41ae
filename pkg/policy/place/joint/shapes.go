package joint

import (
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/place/lp"
)

// shapeProgram is the linear program of a fleet. A column is either a GPU, described by the
// shapes that it hosts, or a choice of instances for all functions of one group. The rows
// require that the GPUs host the shape of every chosen instance, that they have enough
// memory, and that the weights of each group's choices sum to 1. The program minimizes the
// number of GPUs. Columns of both kinds are generated as needed: GPUs by guillotine cuts,
// choices by covers at the program's prices (Dantzig and Wolfe 1960, Decomposition
// principle for linear programs).
type shapeProgram struct {
	f       *fleet
	m       *lp.Master
	choices [][][]chosen
	of      []source // origin of each column
}

// source is the origin of a column: the index of its choice, or -1 if the column is a GPU;
// and the group of functions that the choice is for.
type source struct{ choice, group int }

// groups is the number of groups of functions. Each group mixes choices with its own
// weights. Function i belongs to group i % groups.
const groups = 8

const (
	shapeRounds = 60    // limit on rounds of generating choices
	shapeGap    = 0.001 // relative gap between the program's value and its bound at which generation stops
	// maxStalledRounds is the number of rounds without a decrease of the program's value by at
	// least shapeGap/4 after which generation stops.
	maxStalledRounds = 10
	// minWeight and maxWeight limit the weight of the program's prices, compared with the prices
	// of the best bound, in the prices at which functions choose next.
	minWeight, maxWeight = 0.25, 0.8
	// sampleSize is about the number of functions whose program gives the first prices for more.
	sampleSize = 300
	// memoryFloor is the least price of a GPU's memory when functions choose, so that they
	// prefer the instance with the least memory among equals.
	memoryFloor = 0.02
	// memoryTie is the same for the program's choices. It is so small that it only breaks
	// ties.
	memoryTie = 0.001
)

func (f *fleet) newProgram() *shapeProgram {
	n := len(f.class.cutter.shapes)
	rows := make([]lp.Row, n+1+groups) // shapes, memory, and the sum of weights of each group
	for i := range rows {
		rows[i].Penalty = missingPenalty
	}
	for g := range min(groups, len(f.from)-1) {
		rows[n+1+g] = lp.Row{RHS: 1, Penalty: missingPenalty * float64(len(f.from))}
	}
	return &shapeProgram{f: f, m: lp.New(rows)}
}

// addGPU adds a GPU that hosts the given shapes, in ascending order.
func (p *shapeProgram) addGPU(shapes []int) {
	c := lp.Column{Cost: 1}
	for i, k := range shapes {
		if n := len(c.Rows) - 1; i > 0 && c.Rows[n] == k {
			c.Coefs[n]++
			continue
		}
		c.Rows, c.Coefs = append(c.Rows, k), append(c.Coefs, 1)
	}
	c.Rows, c.Coefs = append(c.Rows, len(p.f.price)-1), append(c.Coefs, 1)
	p.m.Add(c)
	p.of = append(p.of, source{-1, 0})
}

// offer adds a choice of instances for all functions. It adds a column for each group for which
// the choice is cheaper, at the program's prices, than the group's present mix, and for all groups
// if it is the first choice. It reports whether it added any column.
func (p *shapeProgram) offer(of [][]chosen) (added bool) {
	last, price := len(p.f.price)-1, p.m.Prices()
	for g := range min(groups, len(of)) {
		provided := make([]float64, last+1)
		for i := g; i < len(of); i += groups {
			for _, x := range of[i] {
				provided[p.f.shape[x.row]] -= float64(x.count)
				provided[last] -= float64(x.count) * p.f.mem[x.row]
			}
		}
		c := lp.Column{Cost: memoryTie * -provided[last], Rows: []int{last + 1 + g}, Coefs: []float64{1}}
		worth := c.Cost
		for i, v := range provided {
			if v != 0 {
				c.Rows, c.Coefs = append(c.Rows, i), append(c.Coefs, v)
				worth -= v * price[i]
			}
		}
		if len(p.choices) == 0 || worth < price[last+1+g]*(1-1e-9) {
			p.m.Add(c)
			p.of = append(p.of, source{len(p.choices), g})
			added = true
		}
	}
	p.choices = append(p.choices, of)
	return added
}

// solveShapes solves the program and sets the fleet's prices to the prices of the best
// bound. Functions choose at a mix of these and the program's own prices (Wentges 1997,
// Weighted Dantzig-Wolfe decomposition for linear mixed-integer programming). The weight of
// the program's own prices grows if the bound improves and shrinks if it does not. If a
// choice adds no column, the weight moves halfway to 1.
func (f *fleet) solveShapes() *shapeProgram {
	many := len(f.from) - 1
	if many > 2*sampleSize {
		sampled := f.sample((many + sampleSize - 1) / sampleSize)
		sampled.solveShapes()
		f.price = sampled.price
	} else {
		f.startPrices()
	}
	p := f.newProgram()
	for k := range len(f.price) - 1 {
		p.addGPU([]int{k})
	}
	p.addGPU(f.cutPrices(f.price))
	value, stalled, weight := 0.0, 0, 0.5 // weight is that of the program's prices
	low, of := f.choose(f.price)
	p.offer(of)
	for range shapeRounds {
		p.pack()
		if current := p.m.Value(); value == 0 || current < value*(1-shapeGap/4) {
			value, stalled = current, 0
		} else {
			stalled++
		}
		if p.m.Value()-low < shapeGap*value || stalled >= maxStalledRounds || f.expired() {
			break
		}
		between := p.prices()
		for i := range between {
			between[i] = (1-weight)*f.price[i] + weight*between[i]
		}
		f.normalize(between)
		total, of := f.choose(between)
		if total > low {
			low, f.price = total, between
			weight = min(maxWeight, weight*1.3)
		} else {
			weight = max(minWeight, weight*0.7)
		}
		if !p.offer(of) {
			if weight = 1 - (1-weight)/2; weight > 0.99 {
				break
			}
		}
	}
	return p
}

// sample returns a fleet of every nth function.
func (f *fleet) sample(n int) *fleet {
	out := &fleet{p: f.p, budget: f.budget, requirement: f.requirement, sizer: f.sizer, class: f.class}
	for i := 0; i+1 < len(f.from); i += n {
		out.from = append(out.from, len(out.rows))
		from, to := f.from[i], f.from[i+1]
		out.rows = append(out.rows, f.rows[from:to]...)
		out.shape, out.mem = append(out.shape, f.shape[from:to]...), append(out.mem, f.mem[from:to]...)
	}
	out.from = append(out.from, len(out.rows))
	return out
}

// startPrices sets the prices to sizes by dual feasible functions, mixed with memory.
func (f *fleet) startPrices() {
	c := f.class.cutter
	areas, _ := f.sizer.areas(f.rows)
	area := areas[len(areas)-1]
	t := 0.0
	if f.p.memoryLimited() {
		t = f.balanced(area)
	}
	f.price = make([]float64, len(c.shapes)+1)
	for i, k := range f.shape {
		f.price[k] = max(f.price[k], (1-t)*area[i])
	}
	f.price[len(c.shapes)] = t
	f.normalize(f.price)
}

// normalize scales prices so that no GPU can host more than 1.
func (f *fleet) normalize(price []float64) {
	f.cutPrices(price)
	largest := f.class.relaxed.bound() + price[len(price)-1]
	for i := range price {
		price[i] /= largest
	}
}

// cutPrices returns the shapes of the most valuable cutting of a GPU at the prices, in ascending
// order.
func (f *fleet) cutPrices(price []float64) []int {
	c := f.class.cutter
	copy(c.best, price)
	c.fill()
	var out []int
	c.trace(c.nx-1, c.ny-1, 0, 0, func(shape int, _, _ int64) { out = append(out, shape) })
	slices.Sort(out)
	return out
}

// choose returns the covers at the given prices and their total price.
func (f *fleet) choose(price []float64) (total float64, of [][]chosen) {
	size := f.sizes(price, f.mem)
	by := slices.Clone(price)
	by[len(by)-1] = max(memoryFloor, by[len(by)-1])
	of = f.covers(f.sizes(by, f.mem))
	for _, x := range slices.Concat(of...) {
		total += size[x.row] * float64(x.count)
	}
	return total, of
}

// pack solves the program for the present choices, and generates GPUs for it.
func (p *shapeProgram) pack() {
	for range rounds {
		p.m.Solve(rounds*10, nil)
		price := p.prices()
		gpu := p.f.cutPrices(price)
		sum := price[len(price)-1]
		for _, k := range gpu {
			sum += price[k]
		}
		if sum <= 1+1e-6 {
			return
		}
		p.addGPU(gpu)
	}
}

// prices returns the program's prices of shapes and, last, of a GPU's memory.
func (p *shapeProgram) prices() []float64 {
	out := slices.Clone(p.m.Prices()[:len(p.f.price)])
	for i := range out {
		out[i] = max(0, out[i])
	}
	return out
}

// weightedChoice is a choice and its weight for a group in a solution.
type weightedChoice struct {
	weight float64
	source
}

// weightedChoices returns the choices of the solution with their weights, by group.
func (p *shapeProgram) weightedChoices() (out [groups][]weightedChoice) {
	var sum [groups]float64
	p.m.Solution(func(column int, value float64) {
		if by := p.of[column]; by.choice >= 0 {
			out[by.group] = append(out[by.group], weightedChoice{value, by})
			sum[by.group] += value
		}
	})
	for g := range out {
		for i := range out[g] {
			out[g][i].weight /= sum[g]
		}
	}
	return out
}

// heaviestChoices returns the choices with the largest weights in the solution, at most n.
func (p *shapeProgram) heaviestChoices(n int) (out [][][]chosen) {
	weight := make([]float64, len(p.choices))
	p.m.Solution(func(column int, value float64) {
		if by := p.of[column]; by.choice >= 0 {
			weight[by.choice] += value
		}
	})
	for range n {
		at := 0
		for i, w := range weight {
			if w > weight[at] {
				at = i
			}
		}
		if weight[at] > 0 {
			out = append(out, p.choices[at])
		}
		weight[at] = 0
	}
	return out
}
