package joint

import (
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
)

// TestBoundOptimumPlan checks bound ≤ optimum ≤ plan, and that plans are valid packings that serve the
// stated demand.
func TestBoundOptimumPlan(t *testing.T) {
	gaps, plans := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		p := tiny(t)
		for f := range p.Funcs { // each instance must fit an empty GPU
			for i := range p.Funcs[f].Options {
				o := &p.Funcs[f].Options[i]
				if o.Mem+2 > p.Classes[0].Room {
					o.Mem = 0
				}
			}
		}
		sol := Solve(p, Options{Seed: uint64(rapid.IntRange(0, 9).Draw(t, "seed")), Work: 60_000})
		used := check(t, &p, sol)
		for f, remaining := range sol.Unserved {
			if remaining > 0 {
				t.Fatalf("%v of function %d are left", remaining, f)
			}
		}
		least := (&twin{p: &p}).minGPUs()
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

// TestTurnsTakeNoMore checks that plans under tokens leave no more demand and use no more GPUs than
// plans of rectangles, and have valid turns.
func TestTurnsTakeNoMore(t *testing.T) {
	compare := func(t rapid.TB, p Problem, o Options) {
		p.Tokens = false
		flat := Solve(p, o)
		p.Tokens = true
		turns := Solve(p, o)
		if used := check(t, &p, turns); flat.better(turns) {
			t.Fatalf("%d GPUs and %v left under tokens, %d and %v without", used, sum(turns.Unserved), flat.used(), sum(flat.Unserved))
		}
		if sum(turns.Unserved) == 0 && turns.used() < turns.Bound {
			t.Fatalf("%d GPUs, bound %d", turns.used(), turns.Bound)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		p := tiny(t)
		if rapid.Bool().Draw(t, "few") {
			p.Classes[0].Count = rapid.IntRange(1, 3).Draw(t, "gpus")
		}
		compare(t, p, Options{Seed: rapid.Uint64().Draw(t, "seed"), Work: 20_000})
	})
	compare(t, fleetOf(60, 40, 450, fastShares, 1), Options{Work: 2_000_000})
	compare(t, fleetOf(manyFuncs+10, 24, 450, fastShares, 1), Options{})
}

// check validates a solution and returns its number of GPUs.
func check(t rapid.TB, p *Problem, sol Solution) (used int) {
	served := make([]float64, len(p.Funcs))
	of := make([]int, len(p.Classes))
	for _, g := range sol.Groups {
		used += g.Count
		of[g.GPU.Class] += g.Count
		mem, counted := int64(0), map[int]bool{}
		for i, it := range g.GPU.Items {
			o := p.Funcs[it.Func].Options[it.Option]
			served[it.Func] += float64(g.Count) * o.Rate
			mem += o.Mem
			if m := p.Funcs[it.Func].Model; m != NoModel && !counted[m] {
				mem += p.Keepers[m]
				counted[m] = true
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
		if want := p.Funcs[f].remaining(served[f]); want != sol.Unserved[f] {
			t.Fatalf("function %d is served %v of %v, left is %v", f, served[f], p.Funcs[f].Demand, sol.Unserved[f])
		}
	}
	return used
}

// checkGangs checks that each spanning instance uses GPUs of one node, as many as its span and with the
// same option on each, and that no node has too few GPUs.
func checkGangs(t rapid.TB, p *Problem, sol Solution) {
	type key struct{ fn, gang int }
	type gangPlace struct{ option, node, count int }
	gangs, taken := map[key]gangPlace{}, map[[2]int]int{}
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
			if now := (gangPlace{it.Option, g.GPU.Node, was.count + 1}); it.Gang == 0 || g.Count != 1 || g.GPU.Node == AnyNode ||
				ok && (was.option != now.option || was.node != now.node) {
				t.Fatalf("%+v was %+v, is on %+v", it, was, g)
			}
			gangs[at] = gangPlace{it.Option, g.GPU.Node, was.count + 1}
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

// TestInventories checks plans for few GPUs of several classes, and that the same seed gives the same
// plan.
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
		if sum(sol.Unserved) == 0 && sol.Bound > used {
			t.Fatalf("bound %d, plan %d", sol.Bound, used)
		}
		if again := Solve(p, o); !reflect.DeepEqual(sol, again) {
			t.Fatalf("%+v and %+v", sol, again)
		}
	})
}

// TestSpansAreServed checks that spanning functions are served completely if GPUs are unlimited.
func TestSpansAreServed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := tiny(t)
		p.Classes[0].Room = Unlimited
		for f := range p.Funcs {
			p.Funcs[f].Span = rapid.IntRange(1, 4).Draw(t, "span")
		}
		sol := Solve(p, Options{Work: 20_000})
		if used := check(t, &p, sol); sum(sol.Unserved) > 0 || used < sol.Bound {
			t.Fatalf("%d GPUs, bound %d, left %v", used, sol.Bound, sol.Unserved)
		}
	})
}

// If memory is scarcer than SMs, plans stay close to the bound.
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

// Searching for a place must not assign new turns to the items of a GPU, because a place found by
// another search may depend on them.
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

// TestHopelessCostsNothing checks that functions without a configuration are not searched one by one,
// which would cost work for each pair of them.
func TestHopelessCostsNothing(t *testing.T) {
	p := Problem{
		Classes: []Class{{Room: Unlimited, Count: Elastic}},
		Funcs:   []Func{{Demand: 1, Span: 1, Model: NoModel, Options: []Option{{W: One / 2, H: One, Rate: 1, On: []bool{true}}}}},
	}
	served := testing.AllocsPerRun(1, func() { Solve(p, Options{}) })
	const more = 2000
	for range more {
		p.Funcs = append(p.Funcs, Func{Demand: 1, Span: 1, Model: NoModel})
	}
	if all := testing.AllocsPerRun(1, func() { Solve(p, Options{}) }); all > served+more/2 {
		t.Errorf("%d functions without a configuration take %v allocations more", more, all-served)
	}
}

// Once the time has expired, no improvement starts, not even the first program, but all demand is
// placed.
func TestExpired(t *testing.T) {
	p := grid(100, 300, Unlimited)
	over := Options{Expired: func() bool { return true }}
	sol := Solve(p, over)
	if used := check(t, &p, sol); sum(sol.Unserved) > 0 || sol.Bound > used {
		t.Errorf("%v is left on %d GPUs, bound %d", sol.Unserved, used, sol.Bound)
	}
	s := newSolver(&p, over)
	if root := s.columns.solveRoot(); len(s.columns.pool.patterns) > len(p.Funcs) || len(root.use) > 0 {
		t.Errorf("%d patterns of %d functions, %d used by a program that there was no time for", len(s.columns.pool.patterns), len(p.Funcs), len(root.use))
	}
}
