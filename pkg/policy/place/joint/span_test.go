package joint

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// spanTwin finds the least number of GPUs for spanning functions by trying all options of every
// instance on all sets of GPUs.
type spanTwin struct {
	twin
	fit            map[string]bool // by items
	visited        map[string]bool // states that were tried
	remainingTries int             // remaining tries before it gives up
}

// minGPUs returns the least number of GPUs, given that most suffice.
func (w *spanTwin) minGPUs(most int) int {
	w.fit = map[string]bool{}
	for n := 1; n < most; n++ {
		w.visited = map[string]bool{}
		if w.serve(make([][]Item, n), 0, 0, w.p.Funcs[0].Demand) {
			return n
		}
	}
	return most
}

// serve reports whether the GPUs can also serve the remaining demand of function f, by options from
// the given one on, and all functions after f.
func (w *spanTwin) serve(gpus [][]Item, f, from int, remaining float64) bool {
	if remaining <= tolerance {
		if f++; f == len(w.p.Funcs) {
			return true
		}
		return w.serve(gpus, f, 0, w.p.Funcs[f].Demand)
	}
	var contents []string
	for _, items := range gpus {
		contents = append(contents, fmt.Sprint(items))
	}
	slices.Sort(contents)
	key := fmt.Sprint(f, from, remaining, contents)
	if w.visited[key] {
		return false
	}
	w.visited[key] = true
	if w.remainingTries--; w.remainingTries < 0 {
		return false
	}
	span := max(1, w.p.Funcs[f].Span)
	for o := from; o < len(w.p.Funcs[f].Options); o++ {
		for set := range 1 << len(gpus) {
			next := slices.Clone(gpus)
			count, ok := 0, true
			for i := range gpus {
				if set>>i&1 == 1 {
					count++
					next[i] = append(slices.Clone(gpus[i]), Item{Func: f, Option: o})
				}
			}
			for i := 0; i < len(gpus) && ok && count == span; i++ {
				ok = w.fitsCached(next[i])
			}
			if ok && count == span && w.serve(next, f, o, remaining-float64(span)*w.p.Funcs[f].Options[o].Rate) {
				return true
			}
		}
	}
	return false
}

// fitsCached reports whether items fit a GPU. It caches the results.
func (w *spanTwin) fitsCached(items []Item) bool {
	key := fmt.Sprint(items)
	ok, known := w.fit[key]
	if !known {
		ok = w.fits(items)
		w.fit[key] = ok
	}
	return ok
}

// tinySpans returns a tiny random problem of functions that may span GPUs, each with a demand of one or
// two instances.
func tinySpans(t *rapid.T) Problem {
	p := tiny(t)
	for range rapid.IntRange(0, 1).Draw(t, "more") {
		p.Funcs = append(p.Funcs, p.Funcs[0])
	}
	for f := range p.Funcs {
		fn := &p.Funcs[f]
		fn.Span = rapid.IntRange(1, 3).Draw(t, "span")
		for i := range fn.Options {
			if fn.Options[i].Mem+2 > p.Classes[0].Room {
				fn.Options[i].Mem = 0
			}
		}
		fn.Demand = float64(fn.Span*rapid.IntRange(1, 2).Draw(t, "instances")) * fn.Options[0].Rate
	}
	return p
}

// TestSpansBoundOptimumPlan checks bound ≤ optimum ≤ plan with functions that span GPUs.
func TestSpansBoundOptimumPlan(t *testing.T) {
	gaps, plans := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		p := tinySpans(t)
		sol := Solve(p, Options{Work: 200_000})
		used := check(t, &p, sol)
		if sum(sol.Unserved) > 0 {
			t.Fatalf("unserved: got %v, want 0", sol.Unserved)
		}
		all := spanTwin{twin: twin{p: &p}, remainingTries: 2000}
		least := all.minGPUs(used)
		if all.remainingTries < 0 {
			return
		}
		if sol.Bound > least {
			t.Fatalf("bound: got %d (%s), want at most the optimum %d; plan of %d GPUs: %+v", sol.Bound, sol.Method, least, used, p)
		}
		plans++
		if used > least {
			gaps++
		}
	})
	if gaps > plans/5 || plans == 0 {
		t.Errorf("plans with more GPUs than the optimum: got %d of %d, want at most %d, and at least one plan", gaps, plans, plans/5)
	}
}

// small returns a function with one small configuration and the demand of one instance.
func small(span int) Func {
	return Func{Demand: float64(span), Model: NoModel, Span: span, Options: []Option{{W: One / 5, H: One / 100 * 6, Mem: 10, Rate: 1, On: []bool{true}}}}
}

// TestSpansShareGPUs checks that small instances with different spans share GPUs, no more than the
// largest span needs.
func TestSpansShareGPUs(t *testing.T) {
	elastic := Class{Room: Unlimited, Count: Elastic}
	for name, tc := range map[string]struct {
		funcs  []Func
		class  Class
		tokens bool
		want   int
	}{
		"rectangles": {[]Func{small(2), small(3), small(1)}, elastic, false, 3},
		"tokens":     {[]Func{small(2), small(3), small(1)}, elastic, true, 3},
		"memory":     {[]Func{small(2), small(3), small(1)}, Class{Room: 20, Count: Elastic}, false, 3},
		"no memory":  {[]Func{small(2), small(3), small(1)}, Class{Room: 19, Count: Elastic}, false, 6},
		"nodes":      {[]Func{small(2), small(2), small(3)}, Class{Room: 10, Count: 7, Nodes: []int{4, 3}}, false, 7},
		"co-primes":  {[]Func{small(7), small(5), small(3), small(2)}, elastic, false, 7},
	} {
		t.Run(name, func(t *testing.T) {
			p := Problem{Funcs: tc.funcs, Classes: []Class{tc.class}, Tokens: tc.tokens}
			sol := Solve(p, Options{})
			used := 0
			for _, g := range sol.Groups {
				used += g.Count
			}
			if used != tc.want || sum(sol.Unserved) > 0 {
				t.Errorf("got %d GPUs, unserved %v; want %d GPUs: %+v", used, sol.Unserved, tc.want, sol.Groups)
			}
			if widest := tc.funcs[0].Span; sol.Bound < widest || sol.Bound > used {
				t.Errorf("bound: got %d (%s), want %d to %d", sol.Bound, sol.Method, widest, used)
			}
		})
	}
}

// TestWidest checks that the bound ignores functions that cannot be served.
func TestWidest(t *testing.T) {
	idle, unfit := small(4), small(5)
	idle.Demand, unfit.Options[0].On = 0, []bool{false}
	sol := Solve(Problem{Funcs: []Func{small(2), idle, unfit}, Classes: []Class{{Room: Unlimited, Count: Elastic}}}, Options{})
	if sol.Bound != 2 {
		t.Errorf("bound: got %d (%s), want 2", sol.Bound, sol.Method)
	}
}
