package joint

import (
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/place/lp"
)

// shapeProgram is the linear program of a fleet: GPUs by the shapes that they
// host, and choices of instances for all functions, of which the parts sum to
// one. Of each shape there must be as many places as instances, and all GPUs
// together have the memory that these take. Both are generated: GPUs by
// guillotine cuts, choices by covers at prices (Dantzig and Wolfe 1960,
// Decomposition principle for linear programs).
type shapeProgram struct {
	f       *fleet
	m       *lp.Master
	choices [][][]chosen
	of      []source // of each column
}

// source is where a column comes from: which choice, -1 for GPUs, and the group
// of functions that it is for.
type source struct{ choice, group int }

// groups is in how many groups functions are, each of which takes parts of
// choices of its own. The function i is in the group i % groups.
const groups = 8

const (
	shapeRounds = 60    // bounds how often choices are generated
	shapeGap    = 0.001 // between the program and its bound, that makes no difference
	// stalled ends generating when so many rounds lower the program's value by
	// less than a part of shapeGap.
	stalled = 10
	// nearest and farthest are how near to the program's prices the next are at
	// least and at most, while these bring something new.
	nearest, farthest = 0.25, 0.8
	// sampled is about how many functions find the prices with which more begin.
	sampled = 300
	// memoryFloor is what a GPU's memory costs at least when functions choose:
	// of instances as good otherwise those with the least are taken.
	memoryFloor = 0.02
	// memoryTie is the same of what the program chooses, so little that it
	// decides ties only.
	memoryTie = 0.001
)

func (f *fleet) newProgram() *shapeProgram {
	n := len(f.s.classes[0].cutter.shapes)
	rows := make([]lp.Row, n+1+groups) // of shapes, memory, and the sum of choices of each group
	for i := range rows {
		rows[i].Penalty = missingPenalty
	}
	for g := range min(groups, len(f.from)-1) {
		rows[n+1+g] = lp.Row{RHS: 1, Penalty: missingPenalty * float64(len(f.from))}
	}
	return &shapeProgram{f: f, m: lp.New(rows)}
}

// addGPU adds a GPU that hosts these shapes.
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

// offer adds instances of all functions, for the groups for which these take
// less at the program's prices than what it has, or that have none. It says
// whether any were.
func (p *shapeProgram) offer(of [][]chosen) (some bool) {
	last, price := len(p.f.price)-1, p.m.Prices()
	for g := range min(groups, len(of)) {
		taken := make([]float64, last+1)
		for i := g; i < len(of); i += groups {
			for _, x := range of[i] {
				taken[p.f.shape[x.row]] -= float64(x.count)
				taken[last] -= float64(x.count) * p.f.mem[x.row]
			}
		}
		c := lp.Column{Cost: memoryTie * -taken[last], Rows: []int{last + 1 + g}, Coefs: []float64{1}}
		worth := c.Cost
		for i, v := range taken {
			if v != 0 {
				c.Rows, c.Coefs = append(c.Rows, i), append(c.Coefs, v)
				worth -= v * price[i]
			}
		}
		if len(p.choices) == 0 || worth < price[last+1+g]*(1-1e-9) {
			p.m.Add(c)
			p.of = append(p.of, source{len(p.choices), g})
			some = true
		}
	}
	p.choices = append(p.choices, of)
	return some
}

// solveShapes solves the program and sets the fleet's prices to those of the best
// bound that was found. Prices at which functions choose are between these and
// the program's, nearer to the best where nothing new is chosen (Wentges 1997,
// Weighted Dantzig-Wolfe decomposition for linear mixed-integer programming).
func (f *fleet) solveShapes() *shapeProgram {
	many := len(f.from) - 1
	if many > 2*sampled {
		some := f.every((many + sampled - 1) / sampled)
		some.solveShapes()
		f.price = some.price
	} else {
		f.startPrices()
	}
	p := f.newProgram()
	for k := range len(f.price) - 1 {
		p.addGPU([]int{k})
	}
	p.addGPU(f.cutPrices(f.price))
	value, since, near := 0.0, 0, 0.5 // near is how near to the program's prices to look
	low, of := f.choose(f.price)
	p.offer(of)
	for range shapeRounds {
		p.pack()
		if now := p.m.Value(); value == 0 || now < value*(1-shapeGap/4) {
			value, since = now, 0
		} else {
			since++
		}
		if p.m.Value()-low < shapeGap*value || since >= stalled || f.expired() {
			break
		}
		between := p.prices()
		for i := range between {
			between[i] = (1-near)*f.price[i] + near*between[i]
		}
		f.normalize(between)
		total, of := f.choose(between)
		if total > low {
			low, f.price = total, between
			near = min(farthest, near*1.3)
		} else {
			near = max(nearest, near*0.7)
		}
		if !p.offer(of) {
			if near = 1 - (1-near)/2; near > 0.99 {
				break
			}
		}
	}
	return p
}

// every is a fleet of each nth function.
func (f *fleet) every(n int) *fleet {
	out := &fleet{s: f.s}
	for i := 0; i+1 < len(f.from); i += n {
		out.from = append(out.from, len(out.rows))
		from, to := f.from[i], f.from[i+1]
		out.rows = append(out.rows, f.rows[from:to]...)
		out.shape, out.mem = append(out.shape, f.shape[from:to]...), append(out.mem, f.mem[from:to]...)
	}
	out.from = append(out.from, len(out.rows))
	return out
}

// startPrices are sizes by dual feasible functions, mixed with memory.
func (f *fleet) startPrices() {
	c := f.s.classes[0].cutter
	areas, _ := f.s.areas(f.rows)
	area := areas[len(areas)-1]
	t := 0.0
	if f.s.memoryLimited() {
		t = f.balanced(area)
	}
	f.price = make([]float64, len(c.shapes)+1)
	for i, k := range f.shape {
		f.price[k] = max(f.price[k], (1-t)*area[i])
	}
	f.price[len(c.shapes)] = t
	f.normalize(f.price)
}

// normalize makes prices such that what a GPU hosts never sums to more than 1.
func (f *fleet) normalize(price []float64) {
	f.cutPrices(price)
	most := f.s.classes[0].relaxed.bound() + price[len(price)-1]
	for i := range price {
		price[i] /= most
	}
}

// cutPrices are the shapes of a GPU that has the most by the prices, ascending.
func (f *fleet) cutPrices(price []float64) []int {
	c := f.s.classes[0].cutter
	copy(c.best, price)
	c.fill()
	out := c.traceShapes(nil, c.nx-1, c.ny-1)
	slices.Sort(out)
	return out
}

// choose are the covers by prices, and what they take.
func (f *fleet) choose(price []float64) (total float64, of [][]chosen) {
	size := f.sizes(price, f.mem)
	by := slices.Clone(price)
	by[len(by)-1] = max(memoryFloor, by[len(by)-1])
	of = f.covers(f.sizes(by, f.mem))
	for _, c := range of {
		for _, x := range c {
			total += size[x.row] * float64(x.count)
		}
	}
	return total, of
}

// pack solves the program for the choices there are.
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

// prices are the program's, of shapes and of a GPU's memory.
func (p *shapeProgram) prices() []float64 {
	out := slices.Clone(p.m.Prices()[:len(p.f.price)])
	for i := range out {
		out[i] = max(0, out[i])
	}
	return out
}

// part is a choice and how much of it a group takes in a solution.
type part struct {
	weight float64
	source
}

// parts are the choices of the solution, by group.
func (p *shapeProgram) parts() (out [groups][]part) {
	var sum [groups]float64
	p.m.Solution(func(column int, value float64) {
		if by := p.of[column]; by.choice >= 0 {
			out[by.group] = append(out[by.group], part{value, by})
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

// most are the choices of which the solution takes the most, at most n.
func (p *shapeProgram) most(n int) (out [][][]chosen) {
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
