package joint

import (
	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/policy/place/lp"
)

// cells is the number of cells per side of the grid on which the twin tries all packings.
const cells = 3

const cell int64 = One / cells

// tiny returns a random problem that is small enough for the twin.
func tiny(t *rapid.T) Problem {
	p := Problem{Tokens: rapid.Bool().Draw(t, "tokens"), Keepers: []int64{2, 1}}
	p.Classes = []Class{{Room: Unlimited, Count: Elastic}}
	if rapid.Bool().Draw(t, "memory") {
		p.Classes[0].Room = int64(rapid.IntRange(4, 9).Draw(t, "room"))
	}
	for range rapid.IntRange(1, 2).Draw(t, "functions") {
		f := Func{Demand: float64(rapid.IntRange(1, 9).Draw(t, "demand")), Model: rapid.IntRange(NoModel, 1).Draw(t, "shared")}
		for range rapid.IntRange(1, 3).Draw(t, "options") {
			f.Options = append(f.Options, Option{
				W: cell * int64(rapid.IntRange(1, cells).Draw(t, "w")), H: cell * int64(rapid.IntRange(1, cells).Draw(t, "h")),
				Mem: int64(rapid.IntRange(0, 2).Draw(t, "mem")), Rate: float64(rapid.IntRange(1, 6).Draw(t, "rate")), On: []bool{true},
			})
		}
		p.Funcs = append(p.Funcs, f)
	}
	return p
}

// twin finds the least number of GPUs by trying all packings.
type twin struct {
	p        *Problem
	patterns [][]float64 // rates of the undominated ways to fill a GPU
}

func (w *twin) minGPUs() int {
	w.enumerate(nil, 0, 0)
	for n := 0; ; n++ {
		remaining := make([]float64, len(w.p.Funcs))
		for f := range remaining {
			remaining[f] = w.p.Funcs[f].Demand
		}
		if w.serves(remaining, n, 0) {
			return n
		}
	}
}

// serves reports whether n GPUs serve the remaining demand, with patterns from the given index on.
func (w *twin) serves(remaining []float64, n, from int) bool {
	done := true
	for _, v := range remaining {
		done = done && v <= 1e-9
	}
	if done || n == 0 {
		return done
	}
	for i := from; i < len(w.patterns); i++ {
		next := make([]float64, len(remaining))
		for f := range remaining {
			next[f] = remaining[f] - w.patterns[i][f]
		}
		if w.serves(next, n-1, i) {
			return true
		}
	}
	return false
}

// enumerate adds the rates of every set of instances that fits one GPU.
func (w *twin) enumerate(items []Item, f, o int) {
	if !w.fits(items) {
		return
	}
	rates := make([]float64, len(w.p.Funcs))
	for _, it := range items {
		rates[it.Func] += w.p.Funcs[it.Func].Options[it.Option].Rate
	}
	w.addPattern(rates)
	for ; f < len(w.p.Funcs); f, o = f+1, 0 {
		for ; o < len(w.p.Funcs[f].Options); o++ {
			w.enumerate(append(items[:len(items):len(items)], Item{Func: f, Option: o}), f, o)
		}
	}
}

// addPattern adds rates and removes patterns that serve no more than another.
func (w *twin) addPattern(rates []float64) {
	within := func(a, b []float64) bool {
		for f := range a {
			if a[f] > b[f] {
				return false
			}
		}
		return true
	}
	var kept [][]float64
	for _, other := range w.patterns {
		if within(rates, other) {
			return
		}
		if !within(other, rates) {
			kept = append(kept, other)
		}
	}
	w.patterns = append(kept, rates)
}

func (w *twin) fits(items []Item) bool {
	mem, area, seen := int64(0), int64(0), map[int]bool{}
	for _, it := range items {
		f := w.p.Funcs[it.Func]
		mem += f.Options[it.Option].Mem
		if f.Model != NoModel && !seen[f.Model] {
			mem += w.p.Keepers[f.Model]
		}
		seen[f.Model] = true
		area += f.Options[it.Option].W / cell * (f.Options[it.Option].H / cell)
	}
	if mem > w.p.Classes[0].Room || area > cells*cells {
		return false
	}
	if w.p.Tokens {
		return w.scheduled(items)
	}
	return w.packed(items, [cells][cells]bool{})
}

// packed reports whether the items fit. It tries every place for every item.
func (w *twin) packed(items []Item, busy [cells][cells]bool) bool {
	if len(items) == 0 {
		return true
	}
	o := w.p.Funcs[items[0].Func].Options[items[0].Option]
	for x := int64(0); x+o.W/cell <= cells; x++ {
		for y := int64(0); y+o.H/cell <= cells; y++ {
			next, ok := busy, true
			for i := x; i < x+o.W/cell; i++ {
				for j := y; j < y+o.H/cell; j++ {
					ok = ok && !busy[i][j]
					next[i][j] = true
				}
			}
			if ok && w.packed(items[1:], next) {
				return true
			}
		}
	}
	return false
}

// scheduled reports whether a timetable fits the window. It solves a linear program over all sets of
// instances that can run at the same time.
func (w *twin) scheduled(items []Item) bool {
	rows := make([]lp.Row, len(items))
	for i, it := range items {
		rows[i] = lp.Row{RHS: float64(w.p.Funcs[it.Func].Options[it.Option].W) / One, Penalty: 100}
	}
	m := lp.New(rows)
	for set := 1; set < 1<<len(items); set++ {
		c, sm := lp.Column{Cost: 1}, int64(0)
		for i, it := range items {
			if set>>i&1 == 1 {
				c.Rows, c.Coefs = append(c.Rows, i), append(c.Coefs, 1)
				sm += w.p.Funcs[it.Func].Options[it.Option].H
			}
		}
		if sm <= One {
			m.Add(c)
		}
	}
	m.Solve(10000, nil)
	return m.Value() <= 1+1e-4
}
