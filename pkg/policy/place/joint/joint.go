// Package joint chooses configurations for functions and packs their instances onto GPUs in one
// step. Solve returns a Solution with a proven lower bound (Bound) on the number of GPUs. Package
// place calls it and translates functions and GPUs into numbers.
//
// The method combines known parts:
//
//  1. A pattern is a set of instances that one GPU can host. Column generation (Gilmore and
//     Gomory 1961) solves the linear program that serves all demands with the fewest patterns
//     (columns.go).
//  2. New patterns result from guillotine cuts (Gilmore and Gomory 1965, cutter.go), knapsacks
//     (knapsack.go) and greedy filling (pack.go); pricing.go combines these.
//  3. The value of the linear program, and sizes of instances by dual feasible functions
//     (sizebound.go), bound the number of GPUs from below.
//  4. Rounding and diving turn the fractional solution into whole GPUs (round.go). Instances that
//     span several GPUs are placed first (span.go).
//  5. Ruin and recreate improves the plan (search.go).
//  6. If all GPUs are alike and no instance spans several GPUs, functions can also be planned as
//     a fleet: each function separately, at prices of shapes and memory, in linear time
//     (fleet.go). The better plan counts. More than 250 functions that share no weights are
//     planned as a fleet only.
package joint

import (
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
	"github.com/gfaas/gfaas/pkg/policy/place/timetable"
)

// One is the whole window, and all SMs of a GPU.
const One = 1_000_000_000

// Option is a configuration that may serve a function.
type Option struct {
	W, H int64   // quota and SM share, in billionths
	Mem  int64   // bytes, without shared weights
	Rate float64 // requests per second that an instance sustains
	On   []bool  // by class: whether its GPUs can host it
}

// Func is a function: its demand and the options that may serve it.
type Func struct {
	Demand  float64  // requests per second
	Options []Option // for an instance's part on one GPU: with a span of N, the instance has N times the rate
	Model   int      // index in Problem.Keepers; NoModel if its instances share nothing
	Span    int      // number of GPUs of one node that each instance uses; 0 means 1
}

// Class describes GPUs that are alike.
type Class struct {
	Room  int64 // memory in bytes; Unlimited if memory does not count
	Count int   // number of GPUs; Elastic if unlimited
	Nodes []int // number of GPUs on each node; may be nil if no function spans several GPUs
}

// Special values of Class.Room, Class.Count and Func.Model.
const (
	Unlimited = math.MaxInt64
	Elastic   = -1
	NoModel   = -1
)

// Problem is the input of Solve.
type Problem struct {
	Funcs   []Func
	Classes []Class
	Keepers []int64 // by model: bytes of weights stored once on each GPU that hosts the model
	Tokens  bool    // instances share a GPU by a timetable instead of rectangles
}

// Item is an instance on a GPU.
type Item struct {
	Func, Option int
	At           maxrect.Rect     // place, under rectangles
	Turns        []timetable.Turn // times, under tokens, in billionths of the window
	Gang         int              // number of a spanning instance, the same on all of its GPUs; 0 for others
}

// GPU describes one GPU of a plan.
type GPU struct {
	Class int
	Node  int // required node, or AnyNode
	Items []Item
}

// AnyNode is the node of a GPU without spanning instances.
const AnyNode = -1

// Group is a number of GPUs that host the same items.
type Group struct {
	GPU   GPU
	Count int
}

// Solution is a plan with its lower bound.
type Solution struct {
	Groups   []Group
	Unserved []float64 // by function: unserved requests per second
	// Lacking holds, for each function with unserved demand, an option that would fit on some
	// GPU if memory did not count, or -1.
	Lacking []int
	Bound   int    // lower bound on the number of GPUs that serve all demands
	Method  string // name of the bound
}

// Options limits the planner's effort.
type Options struct {
	Seed    uint64
	Work    int64       // limit of the search, in steps of the planner; 0 means well under a second
	Expired func() bool // ends planning early when true; may be nil
	// UntilExpired makes the search continue until Expired returns true, regardless of Work, as
	// long as the plan needs more GPUs than the bound.
	UntilExpired bool
}

// tolerance is the fraction of a demand that may be missing because of rounding errors.
const tolerance = 1e-9

// Solve plans a problem. It always returns a plan; demand that no GPU or option can serve is in
// Solution.Unserved. The same problem, seed and work give the same plan unless Expired ends planning.
// Under tokens, Solve leaves no more demand and uses no more GPUs than with rectangles: it also
// plans rectangles, which can be turned into a timetable, and returns the better plan.
func Solve(p Problem, o Options) Solution {
	if !p.Tokens {
		a := newAttempt(p, o)
		improveUntilExpired(a.bound, o, a)
		return a.solution()
	}
	flat := p
	flat.Tokens = false
	rects, turns := newAttempt(flat, o), newAttempt(p, o)
	improveUntilExpired(turns.bound, o, rects, turns)
	sol, other := turns.solution(), rects.solution()
	if other.better(sol) {
		other.addTurns()
		other.Bound, other.Method = sol.Bound, sol.Method
		return other
	}
	return sol
}

// attempt is a plan with rectangles or under tokens, and the state to improve it.
type attempt struct {
	*solver
	fleet  *fleet // may be nil
	price  []float64
	draft  *draft
	bound  int
	method string
}

func newAttempt(p Problem, o Options) *attempt {
	a := &attempt{solver: newSolver(&p, o)}
	few := len(p.Funcs) <= fewFuncs
	if !few {
		a.fleet = a.planFleet()
	}
	alone, root := a.fleet != nil && p.fleetOnly(), relaxation{}
	if alone {
		root.price = a.fleet.requestPrices()
	} else {
		root = a.columns.solveRoot()
	}
	a.price = root.price
	until := a.until()
	a.bound, a.method = a.lowerBound(root)
	a.raiseBound()
	if alone {
		a.draft = a.fleet.best
		return a
	}
	a.draft = a.plan(root.use, a.requirement.withMinPrices(root.price), a.bound, until)
	if few && !a.meets(a.bound) {
		a.fleet = a.planFleet()
		a.raiseBound()
	}
	if a.fleet != nil {
		a.offer(a.fleet.best)
	}
	return a
}

// raiseBound raises the bound to the fleet's if that is larger.
func (a *attempt) raiseBound() {
	if a.fleet != nil && roundUp(a.fleet.lower) > a.bound {
		a.bound, a.method = roundUp(a.fleet.lower), boundCover
	}
}

// offer replaces the draft with d if d is better.
func (a *attempt) offer(d *draft) {
	if d.betterThan(a.draft) {
		a.draft = d
	}
}

// meets reports whether the draft serves the whole demand with at most maxGPUs GPUs.
func (a *attempt) meets(maxGPUs int) bool {
	return a.draft.gpus() <= maxGPUs && sum(a.draft.unserved()) == 0
}

// improveUntilExpired improves attempts in turn if Options.UntilExpired is set, until the time
// expires or an attempt needs at most maxGPUs.
func improveUntilExpired(maxGPUs int, o Options, attempts ...*attempt) {
	met := func(a *attempt) bool { return a.meets(maxGPUs) }
	for o.UntilExpired && o.Expired != nil && !o.Expired() && !slices.ContainsFunc(attempts, met) {
		for _, a := range attempts {
			a.improve()
		}
	}
}

// improve packs the fleet again, which involves chance, and continues the search with all GPUs
// open.
func (a *attempt) improve() {
	if a.meets(a.bound) {
		return
	}
	if a.fleet != nil {
		a.fleet.hurried = true // because there is a plan already
		a.offer(a.fleet.draft(a.fleet.pack(a.bound)))
	}
	d := a.search.opened(a.draft)
	a.search.run(d, d.weights(a.requirement.withMinPrices(a.price)), a.bound, math.MaxInt64)
	a.offer(d)
}

// solution converts the draft to a solution.
func (a *attempt) solution() Solution {
	out := Solution{Groups: a.draft.groups, Bound: a.bound, Method: a.method}
	for _, h := range a.draft.hosts {
		if len(h.items) > 0 {
			out.Groups = append(out.Groups, Group{GPU{h.class, h.node, h.items}, 1})
		}
	}
	out.Unserved = make([]float64, len(a.draft.served))
	for f := range out.Unserved {
		out.Unserved[f] = a.p.Funcs[f].remaining(a.draft.served[f])
	}
	out.Lacking = a.lacking(out)
	return out
}

// lacking returns, for each function with unserved demand, an option that would fit on some GPU if
// memory did not count, or -1.
func (a *attempt) lacking(sol Solution) []int {
	out := slices.Repeat([]int{-1}, len(sol.Unserved))
	if sum(sol.Unserved) == 0 {
		return out
	}
	for _, g := range sol.Groups {
		h := a.pack.newHost(g.GPU.Class, g.GPU.Items)
		for f, remaining := range sol.Unserved {
			for i, o := range a.p.Funcs[f].Options {
				if remaining > 0 && out[f] < 0 && o.On[h.class] && h.locate(&Item{}, &o) {
					out[f] = i
				}
			}
		}
	}
	return out
}

// better reports whether a leaves fewer requests per second than b, or the same number with fewer GPUs.
func (a *Solution) better(b Solution) bool {
	return better(sum(a.Unserved), sum(b.Unserved), a.used(), b.used())
}

// used returns the number of GPUs.
func (a *Solution) used() (n int) {
	for _, g := range a.Groups {
		n += g.Count
	}
	return n
}

// addTurns converts the rectangles of all items to turns.
func (a *Solution) addTurns() {
	for _, g := range a.Groups {
		for i, it := range g.GPU.Items {
			g.GPU.Items[i].Turns = []timetable.Turn{{From: it.At.X, To: it.At.X + it.At.W}}
		}
	}
}

// Bound returns a lower bound on the number of GPUs and its name, without planning. The bound of
// Solve may be larger, since it includes that of a fleet.
func Bound(p Problem, o Options) (gpus int, method string) {
	s := newSolver(&p, o)
	return s.lowerBound(s.columns.solveRoot())
}

// roundUp rounds a lower bound up, except for rounding errors.
func roundUp(gpus float64) int { return int(math.Ceil(gpus - 1e-6*max(1, gpus/1000))) }

func sum(v []float64) float64 {
	total := 0.0
	for _, x := range v {
		total += x
	}
	return total
}
