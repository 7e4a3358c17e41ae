package joint

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/splitmix"
)

// Grids of SM shares, in percent. Of FaST-GShare's efficient ones a GPU holds no
// more than 96%; tenths fill it.
var (
	fastShares = []int64{6, 12, 24, 50, 60, 80, 100}
	tenths     = []int64{10, 20, 30, 40, 50, 80, 100}
)

// fleetOf is functions that want 5 to 200 requests a second each, of which a
// GPU alone serves a tenth of most to most, with 35 configurations of 0.5 to 6
// GB an instance, on GPUs with so many GiB.
func fleetOf(functions, gib int, most float64, shares []int64, seed uint64) Problem {
	p := Problem{Classes: []Class{{Room: int64(gib) << 30, Count: Elastic}}}
	rng := splitmix.Source(seed)
	for range functions {
		full, knee := most*(0.1+0.9*rng.Unit()), 10+80*rng.Unit()
		f := Func{Model: NoModel, Demand: 5 + 195*rng.Unit()}
		mem := 0.5e9 + 5.5e9*rng.Unit()
		for _, sm := range shares {
			for quota := int64(2); quota <= 10; quota += 2 {
				f.Options = append(f.Options, Option{
					W: quota * One / 10, H: sm * One / 100, Mem: int64(mem),
					Rate: full * float64(quota) / 10 * float64(sm) / (float64(sm) + knee) * (100 + knee) / 100, On: []bool{true},
				})
			}
		}
		p.Funcs = append(p.Funcs, f)
	}
	return p
}

// takes is what a plan takes of each resource, in GPUs. Shares count as dual
// feasible functions have them that say how often the least fits.
func takes(p *Problem, sol Solution, least int64) (used int, area, mem float64) {
	for _, g := range sol.Groups {
		used += g.Count
		for _, it := range g.GPU.Items {
			o, n := p.option(it), float64(g.Count)
			area += n * float64(o.W) / One * rounded(o.H, least*One/100)
			mem += n * float64(o.Mem) / float64(p.Classes[0].Room)
		}
	}
	return used, area, mem
}

// A fleet takes little more GPUs than its instances have area or memory, and
// than any plan must.
func TestFleets(t *testing.T) {
	for _, c := range []struct {
		functions, gib int
		most           float64
		shares         []int64
		seed           uint64
	}{
		{100, 40, 150, fastShares, 1},
		{300, 24, 450, fastShares, 2},
		{300, 80, 450, fastShares, 4},
		{300, 40, 450, tenths, 21}, // memory is nearly as short as area, and has no price
		{1000, 40, 450, fastShares, 8},
	} {
		t.Run(fmt.Sprint(c.functions, c.gib, c.most, c.shares[0]), func(t *testing.T) {
			p := fleetOf(c.functions, c.gib, c.most, c.shares, c.seed)
			sol := Solve(p, Options{})
			check(t, &p, sol)
			if left := sum(sol.Left); left > 0 {
				t.Errorf("%v requests a second are left", left)
			}
			used, area, mem := takes(&p, sol, c.shares[0])
			t.Logf("%d GPUs, bound %d (%s), area %.1f, memory %.1f", used, sol.Bound, sol.Method, area, mem)
			if float64(used) > 1+1.03*max(area, mem) {
				t.Errorf("%d GPUs for an area of %.1f and memory of %.1f", used, area, mem)
			}
			if float64(used) > 1.08*float64(sol.Bound) {
				t.Errorf("%d GPUs, bound %d (%s)", used, sol.Bound, sol.Method)
			}
		})
	}
}

// Where there are too few GPUs for a fleet, those there are serve what they
// can.
func TestFleetWithTooFewGPUs(t *testing.T) {
	p := fleetOf(manyFuncs+10, 40, 450, fastShares, 1)
	wanted := 0.0
	for _, f := range p.Funcs {
		wanted += f.Demand
	}
	sol := Solve(p, Options{})
	all := sol.used()
	p.Classes[0].Count = all / 2
	sol = Solve(p, Options{})
	if used := check(t, &p, sol); used != all/2 {
		t.Errorf("%d of %d GPUs are used", used, all/2)
	}
	if left := sum(sol.Left); left > wanted/2 {
		t.Errorf("%v of %v requests a second are left, with half of %d GPUs", left, wanted, all)
	}
}

// TestFleetTwin holds of tiny fleets that their bounds are at most the optimum,
// and that their plans are packings that serve all.
func TestFleetTwin(t *testing.T) {
	fleets := 0
	rapid.Check(t, func(t *rapid.T) {
		p := tiny(t)
		s := newSolver(&p, Options{Seed: rapid.Uint64().Draw(t, "seed")})
		d := s.planFleet()
		if d == nil {
			return
		}
		sol := s.solution(d.draft, d.price)
		used := check(t, &p, sol)
		for f, left := range sol.Left {
			if left > 0 && slices.ContainsFunc(d.f.rows, func(r row) bool { return r.fn == f }) {
				t.Fatalf("%v of function %d are left", left, f)
			}
		}
		if sum(sol.Left) > 0 {
			return
		}
		fleets++
		least := (&twin{p: &p}).least()
		if roundUp(d.bound) > least || used < least {
			t.Fatalf("bound %v, optimum %d, plan %d: %+v", d.bound, least, used, p)
		}
	})
	if fleets == 0 {
		t.Error("no fleet was planned")
	}
}

// The same fleet and seed have the same plan.
func TestFleetAgain(t *testing.T) {
	p := fleetOf(manyFuncs+10, 24, 450, fastShares, 3)
	if a, b := Solve(p, Options{Seed: 5}), Solve(p, Options{Seed: 5}); !reflect.DeepEqual(a, b) {
		t.Errorf("%d GPUs, then %d, or others", a.used(), b.used())
	}
}

// A fleet has a plan whenever time is over, the worse the sooner; where it need
// not hurry always the same.
func TestFleetExpired(t *testing.T) {
	p := fleetOf(2*sampled+10, 24, 450, fastShares, 1)
	for _, limit := range []int{0, 5, 100} {
		asked := 0
		s := newSolver(&p, Options{Expired: func() bool { asked++; return asked > limit }})
		s.findSolo()
		f := s.newFleet()
		f.hurried = true
		f.solve()
		bound := roundUp(f.bound())
		sol := s.solution(f.draft(f.pack(bound)), f.requestPrices())
		used := check(t, &p, sol)
		t.Logf("%d: %d GPUs, bound %d", limit, used, bound)
		if sum(sol.Left) > 0 || used < bound || float64(used) > 1.5*float64(bound) {
			t.Errorf("%d GPUs, bound %d, left %v, after asking %d times", used, bound, sum(sol.Left), limit)
		}
	}
	over := Solve(p, Options{Expired: func() bool { return true }})
	if all := Solve(p, Options{}); !reflect.DeepEqual(over, all) {
		t.Errorf("%d GPUs when time is over, %d otherwise, or others", over.used(), all.used())
	}
}

// Where each function has shares of its own there are too many shapes for a
// program of them.
func TestFleetOfManyShapes(t *testing.T) {
	p := fleetOf(manyFuncs+10, 40, 450, fastShares, 1)
	rng := splitmix.Source(1)
	for f := range p.Funcs {
		for i := range p.Funcs[f].Options {
			o := &p.Funcs[f].Options[i]
			o.H = min(One, o.H*int64(900+rng.Below(300))/1000)
		}
	}
	sol := Solve(p, Options{})
	used := check(t, &p, sol)
	if t.Logf("%d GPUs, bound %d (%s)", used, sol.Bound, sol.Method); float64(used) > 1.25*float64(sol.Bound) || sum(sol.Left) > 0 {
		t.Errorf("%d GPUs, bound %d (%s), left %v", used, sol.Bound, sol.Method, sum(sol.Left))
	}
}

// The weights of models count for a fleet, and no bound says that they take
// less.
func TestFleetOfModels(t *testing.T) {
	p := fleetOf(60, 40, 450, fastShares, 1)
	for f := range p.Funcs {
		p.Funcs[f].Model = f % 6
	}
	for range 6 {
		p.Keepers = append(p.Keepers, 3<<30)
	}
	sol := Solve(p, Options{})
	if used := check(t, &p, sol); used < sol.Bound || sum(sol.Left) > 0 {
		t.Errorf("%d GPUs, bound %d, left %v", used, sol.Bound, sum(sol.Left))
	}
}

func BenchmarkFleet(b *testing.B) {
	for _, functions := range []int{100, 300, 1000, 3000} {
		for _, gib := range []int{24, 40, 80} {
			for _, most := range []float64{150, 450} {
				b.Run(fmt.Sprintf("functions=%d/gib=%d/most=%v", functions, gib, most), func(b *testing.B) {
					p := fleetOf(functions, gib, most, fastShares, 1)
					benchmark(b, p)
					used, area, mem := takes(&p, Solve(p, Options{}), fastShares[0])
					b.ReportMetric(float64(used)/max(area, mem), "gpus/packed")
				})
			}
		}
	}
}
