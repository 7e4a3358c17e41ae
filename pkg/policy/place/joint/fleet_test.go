package joint

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/policy/place/dff"
	"github.com/gfaas/gfaas/pkg/splitmix"
)

// Grids of SM shares, in percent. FaST-GShare's efficient shares fill at most 96% of a GPU; tenths
// fill it completely.
var (
	fastShares = []int64{6, 12, 24, 50, 60, 80, 100}
	tenths     = []int64{10, 20, 30, 40, 50, 80, 100}
)

// fleetSpec describes a problem for fleetOf.
type fleetSpec struct {
	functions int
	gib       int
	most      float64
	shares    []int64
	seed      uint64
}

// fleetOf returns a problem on GPUs with gib GiB. Each function has a demand of 5 to 200 requests per
// second and 35 configurations of 0.5 to 6 GB per instance. A GPU alone serves most/10 to most requests
// per second of it.
func fleetOf(s fleetSpec) Problem {
	p := Problem{Classes: []Class{{Room: int64(s.gib) << 30, Count: Elastic}}}
	rng := splitmix.Source(s.seed)
	for range s.functions {
		full, knee := s.most*(0.1+0.9*rng.Unit()), 10+80*rng.Unit()
		f := Func{Model: NoModel, Demand: 5 + 195*rng.Unit()}
		mem := 0.5e9 + 5.5e9*rng.Unit()
		for _, sm := range s.shares {
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

// usage returns the GPUs of a plan and the area and memory of its instances, in GPUs. SM shares are
// transformed by the dual feasible function that counts how often the least share fits.
func usage(p *Problem, sol Solution, least int64) (used int, area, mem float64) {
	for _, g := range sol.Groups {
		used += g.Count
		for _, it := range g.GPU.Items {
			o, n := p.option(it), float64(g.Count)
			f, whole := dff.Rounded(One, least*One/100)
			area += n * float64(o.W) / One * float64(f(o.H)) / float64(whole)
			mem += n * float64(o.Mem) / float64(p.Classes[0].Room)
		}
	}
	return used, area, mem
}

// The GPUs of a fleet stay close to the area or memory of its instances, and to the bound.
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
		{300, 40, 450, tenths, 21}, // memory is nearly as scarce as area, but has no price
		{1000, 40, 450, fastShares, 8},
	} {
		t.Run(fmt.Sprint(c.functions, c.gib, c.most, c.shares[0]), func(t *testing.T) {
			p := fleetOf(fleetSpec{functions: c.functions, gib: c.gib, most: c.most, shares: c.shares, seed: c.seed})
			sol := Solve(p, Options{})
			check(t, &p, sol)
			if remaining := sum(sol.Unserved); remaining > 0 {
				t.Errorf("unserved: got %v requests a second, want 0", remaining)
			}
			used, area, mem := usage(&p, sol, c.shares[0])
			t.Logf("%d GPUs, bound %d (%s), area %.1f, memory %.1f", used, sol.Bound, sol.Method, area, mem)
			if float64(used) > 1+1.03*max(area, mem) {
				t.Errorf("got %d GPUs for an area of %.1f and memory of %.1f, want at most %.1f", used, area, mem, 1+1.03*max(area, mem))
			}
			if float64(used) > 1.08*float64(sol.Bound) {
				t.Errorf("got %d GPUs, want at most 8%% more than the bound %d (%s)", used, sol.Bound, sol.Method)
			}
		})
	}
}

// Half of the GPUs that a fleet needs serve at least half of its demand.
func TestFleetWithTooFewGPUs(t *testing.T) {
	p := fleetOf(fleetSpec{functions: manyFuncs + 10, gib: 40, most: 450, shares: fastShares, seed: 1})
	wanted := 0.0
	for _, f := range p.Funcs {
		wanted += f.Demand
	}
	sol := Solve(p, Options{})
	all := sol.used()
	p.Classes[0].Count = all / 2
	sol = Solve(p, Options{})
	if used := check(t, &p, sol); used != all/2 {
		t.Errorf("with half of the GPUs: got %d GPUs used, want all %d", used, all/2)
	}
	if remaining := sum(sol.Unserved); remaining > wanted/2 {
		t.Errorf("got %v of %v requests a second unserved, with half of %d GPUs", remaining, wanted, all)
	}
}

// TestFleetTwin checks for tiny fleets that the bound is at most the optimum, and that the plan is a
// valid packing that serves everything.
func TestFleetTwin(t *testing.T) {
	fleets := 0
	rapid.Check(t, func(t *rapid.T) {
		p := tiny(t)
		s := newSolver(&p, Options{Seed: rapid.Uint64().Draw(t, "seed")})
		d := s.planFleet()
		if d == nil {
			return
		}
		sol := (&attempt{solver: s, draft: d.best, price: d.requestPrices()}).solution()
		used := check(t, &p, sol)
		for f, remaining := range sol.Unserved {
			if remaining > 0 && slices.ContainsFunc(d.rows, func(r row) bool { return r.fn == f }) {
				t.Fatalf("unserved requests of function %d: got %v, want 0", f, remaining)
			}
		}
		if sum(sol.Unserved) > 0 {
			return
		}
		fleets++
		least := (&twin{p: &p}).minGPUs()
		if roundUp(d.lower) > least || used < least {
			t.Fatalf("got a plan of %d GPUs and a bound of %v for an optimum of %d GPUs, want a plan of at least the optimum and a bound of at most the optimum: %+v", used, d.lower, least, p)
		}
	})
	if fleets == 0 {
		t.Error("planned fleets: got 0, want at least one")
	}
}

// TestSameFleetSamePlan checks that the same fleet and seed give the same plan.
func TestSameFleetSamePlan(t *testing.T) {
	p := fleetOf(fleetSpec{functions: manyFuncs + 10, gib: 24, most: 450, shares: fastShares, seed: 3})
	if a, b := Solve(p, Options{Seed: 5}), Solve(p, Options{Seed: 5}); !reflect.DeepEqual(a, b) {
		t.Errorf("plan of the same fleet and seed: got %+v of %d GPUs, want %+v of %d GPUs", b, b.used(), a, a.used())
	}
}

// A fleet has a plan whenever the time expires. If it is not hurried, the plan does not depend on the
// time.
func TestFleetExpired(t *testing.T) {
	p := fleetOf(fleetSpec{functions: 2*sampleSize + 10, gib: 24, most: 450, shares: fastShares, seed: 1})
	for _, limit := range []int{0, 5, 100} {
		checks := 0
		s := newSolver(&p, Options{Expired: func() bool { checks++; return checks > limit }})
		f := s.newFleet()
		f.hurried = true
		f.solve()
		bound := roundUp(f.bound())
		sol := (&attempt{solver: s, draft: f.draft(f.pack(bound)), price: f.requestPrices()}).solution()
		used := check(t, &p, sol)
		t.Logf("%d: %d GPUs, bound %d", limit, used, bound)
		if sum(sol.Unserved) > 0 || used < bound || float64(used) > 1.5*float64(bound) {
			t.Errorf("when time expires at check %d: got %d GPUs, bound %d, unserved %v; want at most 50%% more GPUs than the bound, and 0 unserved", limit, used, bound, sum(sol.Unserved))
		}
	}
	over := Solve(p, Options{Expired: func() bool { return true }})
	if all := Solve(p, Options{}); !reflect.DeepEqual(over, all) {
		t.Errorf("plan when time has expired: got %+v of %d GPUs, want %+v of %d GPUs", over, over.used(), all, all.used())
	}
}

// If each function has shares of its own, there are too many shapes for the linear program.
func TestFleetOfManyShapes(t *testing.T) {
	p := fleetOf(fleetSpec{functions: manyFuncs + 10, gib: 40, most: 450, shares: fastShares, seed: 1})
	rng := splitmix.Source(1)
	for f := range p.Funcs {
		for i := range p.Funcs[f].Options {
			o := &p.Funcs[f].Options[i]
			o.H = min(One, o.H*int64(900+rng.Below(300))/1000)
		}
	}
	sol := Solve(p, Options{})
	used := check(t, &p, sol)
	if t.Logf("%d GPUs, bound %d (%s)", used, sol.Bound, sol.Method); float64(used) > 1.25*float64(sol.Bound) || sum(sol.Unserved) > 0 {
		t.Errorf("got %d GPUs, bound %d (%s), unserved %v; want at most 25%% more GPUs than the bound, and 0 unserved", used, sol.Bound, sol.Method, sum(sol.Unserved))
	}
}

// A fleet includes the weights of models, and the bound stays valid.
func TestFleetOfModels(t *testing.T) {
	p := fleetOf(fleetSpec{functions: 60, gib: 40, most: 450, shares: fastShares, seed: 1})
	for f := range p.Funcs {
		p.Funcs[f].Model = f % 6
	}
	for range 6 {
		p.Keepers = append(p.Keepers, 3<<30)
	}
	sol := Solve(p, Options{})
	if used := check(t, &p, sol); used < sol.Bound || sum(sol.Unserved) > 0 {
		t.Errorf("got %d GPUs, bound %d, unserved %v; want at least as many GPUs as the bound, and 0 unserved", used, sol.Bound, sum(sol.Unserved))
	}
}

func BenchmarkFleet(b *testing.B) {
	for _, functions := range []int{100, 300, 1000, 3000} {
		for _, gib := range []int{24, 40, 80} {
			for _, most := range []float64{150, 450} {
				b.Run(fmt.Sprintf("functions=%d/gib=%d/most=%v", functions, gib, most), func(b *testing.B) {
					p := fleetOf(fleetSpec{functions: functions, gib: gib, most: most, shares: fastShares, seed: 1})
					benchmark(b, p)
					used, area, mem := usage(&p, Solve(p, Options{}), fastShares[0])
					b.ReportMetric(float64(used)/max(area, mem), "gpus/packed")
				})
			}
		}
	}
}
