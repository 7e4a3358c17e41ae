package joint

import (
	"testing"

	"github.com/gfaas/gfaas/pkg/splitmix"
)

// batches returns a problem in which the demand of each function is about the given part of a GPU. Larger
// batches have a higher throughput and need more memory, about 10 to 90% of a GPU's.
func batches(functions int, part float64, seed uint64) Problem {
	p := Problem{Classes: []Class{{Room: 8192, Count: Elastic}}}
	rng := splitmix.Source(seed)
	for range functions {
		full, base := 20+200*rng.Unit(), 800+3000*rng.Unit()
		f := Func{Model: NoModel, Demand: full * part * (0.2 + 1.6*rng.Unit())}
		for _, batch := range []float64{1, 2, 4, 8} {
			for sm := 10.0; sm <= 100; sm += 10 {
				for quota := 0.2; quota < 1.01; quota += 0.2 {
					f.Options = append(f.Options, Option{
						W: int64(quota*10+0.5) * One / 10, H: int64(sm) * One / 100, Mem: int64(base * (1 + 0.12*batch)),
						Rate: full * quota * sm / (sm + 40) * batch / (batch + 1), On: []bool{true},
					})
				}
			}
		}
		p.Funcs = append(p.Funcs, f)
	}
	return p
}

// If memory is scarce and demands are small, plans stay close to the bound.
func TestLittleInTightMemory(t *testing.T) {
	used, bound := 0, 0
	for seed := range uint64(3) {
		for _, part := range []float64{0.1, 0.4} {
			for _, tokens := range []bool{false, true} {
				p := batches(15, part, seed)
				p.Tokens = tokens
				sol := Solve(p, Options{})
				n := check(t, &p, sol)
				t.Logf("seed %d, part %v, tokens %v: %d GPUs, bound %d (%s)", seed, part, tokens, n, sol.Bound, sol.Method)
				used, bound = used+n, bound+sol.Bound
			}
		}
	}
	if float64(used) > 1.1*float64(bound) {
		t.Errorf("got %d GPUs, want at most 10%% more than the sum of the bounds, %d", used, bound)
	}
}

// A GPU hosts no more instances of a function than its demand needs, even if it has room.
func TestNoMoreThanWanted(t *testing.T) {
	for _, tokens := range []bool{false, true} {
		p := Problem{Tokens: tokens, Classes: []Class{{Room: 100, Count: Elastic}}}
		p.Funcs = []Func{{Demand: 4, Model: NoModel, Options: []Option{{W: One / 5, H: One / 10, Mem: 1, Rate: 1, On: []bool{true}}}}}
		sol := Solve(p, Options{})
		if items := sol.Groups[0].GPU.Items; len(items) != 4 {
			t.Errorf("tokens %v: got %d instances, want 4, which serve the demand", tokens, len(items))
		}
	}
}

// Enlarging the instances of a function serves its remaining demand without more memory.
func TestEnlarge(t *testing.T) {
	p := Problem{Classes: []Class{{Room: 10, Count: Elastic}}}
	small := Option{W: One / 2, H: One / 2, Mem: 5, Rate: 1, On: []bool{true}}
	large := Option{W: One, H: One / 2, Mem: 5, Rate: 1.1, On: []bool{true}}
	for range 6 {
		p.Funcs = append(p.Funcs, Func{Demand: 1.1, Model: NoModel, Options: []Option{small, large}})
	}
	sol := Solve(p, Options{})
	if used := check(t, &p, sol); used != 3 || sol.Bound != 3 {
		t.Errorf("got %d GPUs, bound %d, want 3 and 3: %+v", used, sol.Bound, sol.Groups)
	}
	s := newSolver(&p, Options{})
	h, remaining := s.pack.newHost(0, nil), []float64{1.1, 1.1, 0, 0, 0, 0}
	for f := range 2 {
		it := Item{Func: f, Option: 0}
		s.pack.makeRoom(h, &it)
		s.pack.serve(h, it, remaining)
	}
	s.pack.enlarge(h, []float64{1, 1, 1, 1, 1, 1}, remaining)
	if sum(remaining) > 0 {
		t.Errorf("after enlarging: got %v unserved with %+v, want 0", remaining, h.items)
	}
}

// Whole instances need more than fractional ones. Each of three functions needs two instances, and each
// instance needs most of a GPU's memory, so the bound must be six GPUs.
func TestWholeInstancesCount(t *testing.T) {
	p := Problem{Classes: []Class{{Room: 10, Count: Elastic}}}
	for range 3 {
		p.Funcs = append(p.Funcs, Func{Demand: 1.1, Model: NoModel, Options: []Option{
			{W: One / 5, H: One / 5, Mem: 9, Rate: 1, On: []bool{true}},
			{W: One / 5, H: One / 10, Mem: 6, Rate: 0.6, On: []bool{true}},
		}})
	}
	sol := Solve(p, Options{})
	if used := check(t, &p, sol); used != 6 || sol.Bound != 6 {
		t.Errorf("got %d GPUs, bound %d (%s); want 6 and 6", used, sol.Bound, sol.Method)
	}
}

// The weights of each model are on at least one GPU, in addition to the memory of instances.
func TestWeightsCount(t *testing.T) {
	p := Problem{Classes: []Class{{Room: 10, Count: Elastic}}}
	for m := range 3 {
		p.Funcs = append(p.Funcs, Func{Demand: 1, Model: m, Options: []Option{{W: One / 5, H: One / 5, Mem: 1, Rate: 1, On: []bool{true}}}})
		p.Keepers = append(p.Keepers, 6)
	}
	sol := Solve(p, Options{})
	if used := check(t, &p, sol); used != 3 || sol.Bound != 3 {
		t.Errorf("got %d GPUs, bound %d (%s); want 3 and 3", used, sol.Bound, sol.Method)
	}
}

// A program that stops before it is solved returns the solution with its newest patterns.
func TestUnsolvedProgram(t *testing.T) {
	p := batches(20, 0.05, 1)
	s := newSolver(&p, Options{})
	s.work += rootWork
	root := s.columns.generate(s.requirement.demand, p.counts())
	gpus := 0.0
	for _, u := range root.use {
		gpus += u.count
	}
	if alone := float64(len(p.Funcs)); gpus > 0.75*alone {
		t.Errorf("GPUs after one round: got %v, want at most 0.75 × %v, the number of functions", gpus, alone)
	}
}
