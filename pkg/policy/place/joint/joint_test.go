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
				t.Fatalf("unserved requests of function %d: got %v, want 0", f, remaining)
			}
		}
		least := (&twin{p: &p}).minGPUs()
		if sol.Bound > least || used < least {
			t.Fatalf("got a plan of %d GPUs and a bound of %d for an optimum of %d GPUs, want a plan of at least the optimum and a bound of at most the optimum: %+v", used, sol.Bound, least, p)
		}
		plans++
		if used > least {
			gaps++
		}
	})
	if gaps > plans/10 {
		t.Errorf("plans with a GPU more than the optimum: got %d of %d, want at most %d", gaps, plans, plans/10)
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
			t.Fatalf("with tokens: got %d GPUs and %v unserved, want no worse than without: %d and %v", used, sum(turns.Unserved), flat.used(), sum(flat.Unserved))
		}
		if sum(turns.Unserved) == 0 && turns.used() < turns.Bound {
			t.Fatalf("GPUs with tokens: got %d, want at least the bound %d", turns.used(), turns.Bound)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		p := tiny(t)
		if rapid.Bool().Draw(t, "few") {
			p.Classes[0].Count = rapid.IntRange(1, 3).Draw(t, "gpus")
		}
		compare(t, p, Options{Seed: rapid.Uint64().Draw(t, "seed"), Work: 20_000})
	})
	compare(t, fleetOf(fleetSpec{functions: 60, gib: 40, most: 450, shares: fastShares, seed: 1}), Options{Work: 2_000_000})
	compare(t, fleetOf(fleetSpec{functions: manyFuncs + 10, gib: 24, most: 450, shares: fastShares, seed: 1}), Options{})
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
				t.Fatalf("%+v is on a GPU of class %d, want an allowed class", it, g.GPU.Class)
			}
			if !p.Tokens {
				checkSpot(t, it, o, g.GPU.Items[:i])
			}
		}
		if mem > p.Classes[g.GPU.Class].Room {
			t.Fatalf("memory on a GPU: got %d bytes, want at most %d", mem, p.Classes[g.GPU.Class].Room)
		}
		if p.Tokens {
			checkTurns(t, p, g.GPU.Items)
		}
	}
	checkGangs(t, p, sol)
	for k, c := range p.Classes {
		if c.Count != Elastic && of[k] > c.Count {
			t.Fatalf("GPUs of class %d: got %d, want at most %d", k, of[k], c.Count)
		}
	}
	for f := range p.Funcs {
		if want := p.Funcs[f].remaining(served[f]); want != sol.Unserved[f] {
			t.Fatalf("function %d: got %v of %v requests a second served and %v unserved, want the demand as their sum", f, served[f], p.Funcs[f].Demand, sol.Unserved[f])
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
				t.Fatalf("instance over several GPUs: got %+v on %+v, want one configuration and one node for all its GPUs, as in %+v", it, g, was)
			}
			gangs[at] = gangPlace{it.Option, g.GPU.Node, was.count + 1}
		}
	}
	for at, g := range gangs {
		if g.count != p.Funcs[at.fn].Span {
			t.Fatalf("GPUs of an instance of function %d: got %d, want %d", at.fn, g.count, p.Funcs[at.fn].Span)
		}
	}
	for at, n := range taken {
		if c := p.Classes[at[0]]; c.Count != Elastic && n > c.Nodes[at[1]] {
			t.Fatalf("GPUs of class %d on node %d: got %d, want at most %d", at[0], at[1], n, c.Nodes[at[1]])
		}
	}
}

func checkSpot(t rapid.TB, it Item, o Option, before []Item) {
	if it.At.W != o.W || it.At.H != o.H || !(maxrect.Rect{W: One, H: One}).Contains(it.At) {
		t.Fatalf("rectangle of an instance: got %+v, want one of %d × %d inside the GPU", it.At, o.W, o.H)
	}
	for _, other := range before {
		if it.At.Meets(other.At) {
			t.Fatalf("rectangle of an instance: got %+v, which overlaps with %+v, want no overlap", it.At, other.At)
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
					t.Fatalf("turns of an instance: got %v, which overlap, want no overlap", it.Turns)
				}
			}
			if busy > One || turn.From < 0 || turn.To > One || turn.From >= turn.To {
				t.Fatalf("turn %v of %+v: got %d SMs busy, want a turn inside the window and at most %d", turn, items, busy, One)
			}
		}
		if sum != o.W {
			t.Fatalf("turns %v: got a sum of %d, want %d", it.Turns, sum, o.W)
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
			t.Fatalf("bound: got %d, want at most %d, the GPUs of the plan", sol.Bound, used)
		}
		if again := Solve(p, o); !reflect.DeepEqual(sol, again) {
			t.Fatalf("plan of the same problem: got %+v, want %+v", again, sol)
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
			t.Fatalf("got %d GPUs, bound %d, unserved %v; want at least as many GPUs as the bound, and 0 unserved", used, sol.Bound, sol.Unserved)
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
			t.Errorf("room %d: got %d GPUs, want at most 2%% more than the bound %d", room, used, sol.Bound)
		}
	}
}

// Searching for a place must not assign new turns to the items of a GPU, because a place found by
// another search may depend on them.
func TestSearchDoesNotChangeTurns(t *testing.T) {
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

// TestFunctionsWithoutConfigurationCostLittle checks that functions without a configuration are not searched one by one,
// which would cost work for each pair of them.
func TestFunctionsWithoutConfigurationCostLittle(t *testing.T) {
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
		t.Errorf("allocations for %d functions without a configuration: got %v, want at most %v", more, all-served, more/2)
	}
}

// Once the time has expired, no improvement starts, not even the first program, but all demand is
// placed.
func TestExpired(t *testing.T) {
	p := grid(100, 300, Unlimited)
	over := Options{Expired: func() bool { return true }}
	sol := Solve(p, over)
	if used := check(t, &p, sol); sum(sol.Unserved) > 0 || sol.Bound > used {
		t.Errorf("when time has expired: got %v unserved on %d GPUs, bound %d; want 0 unserved and at least as many GPUs as the bound", sol.Unserved, used, sol.Bound)
	}
	s := newSolver(&p, over)
	if root := s.columns.solveRoot(); len(s.columns.pool.patterns) > len(p.Funcs) || len(root.use) > 0 {
		t.Errorf("when time has expired: got %d patterns of %d functions, %d used; want at most one for each function and none used", len(s.columns.pool.patterns), len(p.Funcs), len(root.use))
	}
}
