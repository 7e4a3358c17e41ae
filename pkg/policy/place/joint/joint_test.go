package joint

import (
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/policy/place/lp"
	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
)

// The twin below tries everything on a grid of a few cells.
const cells = 3

const cell int64 = One / cells

// tiny is a random problem small enough for the twin.
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

// twin finds the least number of GPUs by trying all.
type twin struct {
	p        *Problem
	patterns [][]float64 // what each way to fill a GPU serves
}

func (w *twin) least() int {
	w.enumerate(nil, 0, 0)
	for n := 0; ; n++ {
		left := make([]float64, len(w.p.Funcs))
		for f := range left {
			left[f] = w.p.Funcs[f].Demand
		}
		if w.serves(left, n, 0) {
			return n
		}
	}
}

// serves says whether n GPUs serve what is left, with patterns from on.
func (w *twin) serves(left []float64, n, from int) bool {
	done := true
	for _, v := range left {
		done = done && v <= 1e-9
	}
	if done || n == 0 {
		return done
	}
	for i := from; i < len(w.patterns); i++ {
		next := make([]float64, len(left))
		for f := range left {
			next[f] = left[f] - w.patterns[i][f]
		}
		if w.serves(next, n-1, i) {
			return true
		}
	}
	return false
}

// enumerate lists what every set of instances that fits one GPU serves.
func (w *twin) enumerate(items []Item, f, o int) {
	if !w.fits(items) {
		return
	}
	rates := make([]float64, len(w.p.Funcs))
	for _, it := range items {
		rates[it.Func] += w.p.Funcs[it.Func].Options[it.Option].Rate
	}
	w.keep(rates)
	for ; f < len(w.p.Funcs); f, o = f+1, 0 {
		for ; o < len(w.p.Funcs[f].Options); o++ {
			w.enumerate(append(items[:len(items):len(items)], Item{Func: f, Option: o}), f, o)
		}
	}
}

// keep drops patterns that serve no more than another.
func (w *twin) keep(rates []float64) {
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

// packed tries every place for every item.
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

// scheduled finds the shortest timetable as a linear program over all sets of
// instances that can run together.
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
	m.Solve(10000)
	return m.Value() <= 1+1e-4
}

// TestBoundOptimumPlan holds bound ≤ optimum ≤ plan, and that plans are
// packings that serve what they say.
func TestBoundOptimumPlan(t *testing.T) {
	gaps, plans := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		p := tiny(t)
		for f := range p.Funcs { // each alone must fit
			for i := range p.Funcs[f].Options {
				o := &p.Funcs[f].Options[i]
				if o.Mem+2 > p.Classes[0].Room {
					o.Mem = 0
				}
			}
		}
		sol := Solve(p, Options{Seed: uint64(rapid.IntRange(0, 9).Draw(t, "seed")), Work: 60_000})
		used := check(t, &p, sol)
		for f, left := range sol.Left {
			if left > 0 {
				t.Fatalf("%v of function %d are left", left, f)
			}
		}
		least := (&twin{p: &p}).least()
		if sol.Bound > least || used < least {
			t.Fatalf("bound %d, optimum %d, plan %d: %+v", sol.Bound, least, used, p)
		}
		plans++
		if used > least {
			gaps++
		}
	})
	if gaps > plans/10 {
		t.Errorf("%d of %d plans need a GPU more than the best", gaps, plans)
	}
}

// check counts the GPUs of a solution and checks each.
func check(t rapid.TB, p *Problem, sol Solution) (used int) {
	served := make([]float64, len(p.Funcs))
	of := make([]int, len(p.Classes))
	for _, g := range sol.Groups {
		used += g.Count
		of[g.GPU.Class] += g.Count
		mem, seen := int64(0), map[int]bool{}
		for i, it := range g.GPU.Items {
			o := p.Funcs[it.Func].Options[it.Option]
			served[it.Func] += float64(g.Count) * o.Rate
			mem += o.Mem
			if m := p.Funcs[it.Func].Model; m != NoModel && !seen[m] {
				mem += p.Keepers[m]
				seen[m] = true
			}
			if !o.On[g.GPU.Class] {
				t.Fatalf("%+v cannot be on class %d", it, g.GPU.Class)
			}
			if !p.Tokens {
				checkSpot(t, it, o, g.GPU.Items[:i])
			}
		}
		if mem > p.Classes[g.GPU.Class].Room {
			t.Fatalf("%d bytes on a GPU of %d", mem, p.Classes[g.GPU.Class].Room)
		}
		if p.Tokens {
			checkTurns(t, p, g.GPU.Items)
		}
	}
	checkGangs(t, p, sol)
	for k, c := range p.Classes {
		if c.Count != Elastic && of[k] > c.Count {
			t.Fatalf("%d GPUs of class %d, there are %d", of[k], k, c.Count)
		}
	}
	for f := range p.Funcs {
		if want := p.Funcs[f].left(served[f]); want != sol.Left[f] {
			t.Fatalf("function %d is served %v of %v, left is %v", f, served[f], p.Funcs[f].Demand, sol.Left[f])
		}
	}
	return used
}

// checkGangs holds that a spanning instance is on as many GPUs of one node as
// it must, alike on each, and that nodes have so many GPUs.
func checkGangs(t rapid.TB, p *Problem, sol Solution) {
	type key struct{ fn, gang int }
	type seen struct{ option, node, count int }
	gangs, taken := map[key]seen{}, map[[2]int]int{}
	for _, g := range sol.Groups {
		if g.GPU.Node != AnyNode {
			taken[[2]int{g.GPU.Class, g.GPU.Node}] += g.Count
		}
		for _, it := range g.GPU.Items {
			if p.Funcs[it.Func].Span <= 1 {
				continue
			}
			at := key{it.Func, it.Gang}
			was, ok := gangs[at]
			if now := (seen{it.Option, g.GPU.Node, was.count + 1}); it.Gang == 0 || g.Count != 1 || g.GPU.Node == AnyNode ||
				ok && (was.option != now.option || was.node != now.node) {
				t.Fatalf("%+v was %+v, is on %+v", it, was, g)
			}
			gangs[at] = seen{it.Option, g.GPU.Node, was.count + 1}
		}
	}
	for at, g := range gangs {
		if g.count != p.Funcs[at.fn].Span {
			t.Fatalf("an instance of function %d is on %d GPUs, expected %d", at.fn, g.count, p.Funcs[at.fn].Span)
		}
	}
	for at, n := range taken {
		if c := p.Classes[at[0]]; c.Count != Elastic && n > c.Nodes[at[1]] {
			t.Fatalf("%d GPUs of class %d on node %d, there are %d", n, at[0], at[1], c.Nodes[at[1]])
		}
	}
}

func checkSpot(t rapid.TB, it Item, o Option, before []Item) {
	if it.At.W != o.W || it.At.H != o.H || !(maxrect.Rect{W: One, H: One}).Contains(it.At) {
		t.Fatalf("%+v is not inside, or not %d × %d", it.At, o.W, o.H)
	}
	for _, other := range before {
		if it.At.Meets(other.At) {
			t.Fatalf("%+v meets %+v", it.At, other.At)
		}
	}
}

func checkTurns(t rapid.TB, p *Problem, items []Item) {
	for _, it := range items {
		o, sum := p.Funcs[it.Func].Options[it.Option], int64(0)
		for i, turn := range it.Turns {
			sum += turn.To - turn.From
			busy := int64(0)
			for _, other := range items {
				for _, u := range other.Turns {
					if u.From <= turn.From && turn.From < u.To {
						busy += p.Funcs[other.Func].Options[other.Option].H
					}
				}
			}
			for _, u := range it.Turns[:i] {
				if u.From < turn.To && turn.From < u.To {
					t.Fatalf("turns %v meet", it.Turns)
				}
			}
			if busy > One || turn.From < 0 || turn.To > One || turn.From >= turn.To {
				t.Fatalf("turn %v of %+v: %d busy", turn, items, busy)
			}
		}
		if sum != o.W {
			t.Fatalf("%v sums to %d, want %d", it.Turns, sum, o.W)
		}
	}
}

// TestInventories holds that few and different GPUs are filled rightly, and
// that the same seed gives the same plan.
func TestInventories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := tiny(t)
		p.Classes = nil
		for range rapid.IntRange(1, 3).Draw(t, "classes") {
			c := Class{Room: int64(rapid.IntRange(1, 9).Draw(t, "room"))}
			for range 2 {
				n := rapid.IntRange(0, 3).Draw(t, "count")
				c.Nodes, c.Count = append(c.Nodes, n), c.Count+n
			}
			p.Classes = append(p.Classes, c)
		}
		for f := range p.Funcs {
			p.Funcs[f].Span = rapid.SampledFrom([]int{0, 0, 1, 2, 3}).Draw(t, "span")
			for i := range p.Funcs[f].Options {
				o := &p.Funcs[f].Options[i]
				o.On = nil
				for _, c := range p.Classes {
					o.On = append(o.On, o.Mem+2 <= c.Room && rapid.IntRange(0, 3).Draw(t, "on") > 0)
				}
			}
		}
		o := Options{Seed: 1, Work: 30_000}
		sol := Solve(p, o)
		used := check(t, &p, sol)
		if sum(sol.Left) == 0 && sol.Bound > used {
			t.Fatalf("bound %d, plan %d", sol.Bound, used)
		}
		if again := Solve(p, o); !reflect.DeepEqual(sol, again) {
			t.Fatalf("%+v and %+v", sol, again)
		}
	})
}

// TestSpansAreServed holds that without an inventory spanning functions are
// served like others.
func TestSpansAreServed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := tiny(t)
		p.Classes[0].Room = Unlimited
		for f := range p.Funcs {
			p.Funcs[f].Span = rapid.IntRange(1, 4).Draw(t, "span")
		}
		sol := Solve(p, Options{Work: 20_000})
		if used := check(t, &p, sol); sum(sol.Left) > 0 || used < sol.Bound {
			t.Fatalf("%d GPUs, bound %d, left %v", used, sol.Bound, sol.Left)
		}
	})
}

// Where memory binds more than SMs, plans and bounds stay close.
func TestTightMemory(t *testing.T) {
	for _, room := range []int64{3500, 5000, 7000, 10_000} {
		sol := Solve(grid(8, 1600, room), Options{})
		used := 0
		for _, g := range sol.Groups {
			used += g.Count
		}
		t.Logf("room %d: %d GPUs, bound %d", room, used, sol.Bound)
		if float64(used) > 1.02*float64(sol.Bound) {
			t.Errorf("room %d: %d GPUs, bound %d", room, used, sol.Bound)
		}
	}
}

// A look for a spot must not give the items of a GPU turns anew, on which a
// spot that another look found relies.
func TestLooksChangeNothing(t *testing.T) {
	p := Problem{Tokens: true, Classes: []Class{{Room: Unlimited, Count: Elastic}}}
	option := func(w, h int64) Option { return Option{W: w * cell, H: h * cell, Rate: 1, On: []bool{true}} }
	p.Funcs = []Func{
		{Demand: 4, Span: 3, Model: NoModel, Options: []Option{option(1, 1)}},
		{Demand: 3, Span: 2, Model: NoModel, Options: []Option{option(2, 2), option(2, 3)}},
	}
	for demand := 1.0; demand <= 12; demand++ {
		p.Funcs[0].Demand = demand
		for other := 1.0; other <= 12; other++ {
			p.Funcs[1].Demand = other
			check(t, &p, Solve(p, Options{Work: 20_000}))
		}
	}
}
