// Package joint chooses configurations and packs them together: column
// generation over what one GPU can host, with a proven bound, then rounding
// and a search over what is left. It knows functions and GPUs by number only.
//
// The method is our own, of known parts. A pattern is what one GPU hosts. The
// linear program that serves all demands with the fewest patterns is solved by
// column generation (Gilmore and Gomory 1961): columns.go. New patterns are
// found by guillotine cuts (Gilmore and Gomory 1965: cutter.go), knapsacks
// (knapsack.go) and greedy filling (host.go), as pricing.go combines them. What
// the program cannot cost less than, and sizes that dual feasible functions
// give every instance (sizebound.go), bound the number of GPUs from below. The
// solution is made whole by rounding and diving (round.go; instances that span
// several GPUs first: span.go) and improved by ruin and recreate (search.go).
// Besides, functions are planned as a fleet, each apart at prices of shapes and
// memory, which takes time in proportion to them (fleet.go): the better plan
// counts, and of many functions that share no weights there is no other.
package joint

import (
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
	"github.com/gfaas/gfaas/pkg/policy/place/timetable"
	"github.com/gfaas/gfaas/pkg/splitmix"
)

// One is the whole window, and all SMs of a GPU, in the unit of shares.
const One = 1_000_000_000

// Option is a configuration that may serve a function.
type Option struct {
	W, H int64   // quota and SM share, in billionths
	Mem  int64   // bytes, without what the keeper of shared weights holds
	Rate float64 // requests a second that an instance sustains
	On   []bool  // by class: whether its GPUs can host it
}

// Func is a function: what it wants and what may serve it.
type Func struct {
	Demand  float64  // requests a second
	Options []Option // of an instance's part on one GPU: a span of N has N times the rate
	Model   int      // of Problem.Keepers; NoModel if its instances share nothing
	Span    int      // GPUs of one node that an instance is on; 0 is 1
}

// Class is GPUs that are alike.
type Class struct {
	Room  int64 // bytes; Unlimited if memory does not count
	Count int   // how many there are; Elastic for as many as it takes
	Nodes []int // how many of them each node has; may be nil when no function spans
}

// What a class may have without end, and a function without a model.
const (
	Unlimited = math.MaxInt64
	Elastic   = -1
	NoModel   = -1
)

// Problem is what to plan.
type Problem struct {
	Funcs   []Func
	Classes []Class
	Keepers []int64 // by model: bytes of weights kept once on each GPU that hosts it
	Tokens  bool    // instances share a GPU by a timetable instead of rectangles
}

// Item is an instance on a GPU.
type Item struct {
	Func, Option int
	At           maxrect.Rect     // where, under rectangles
	Turns        []timetable.Turn // when, under tokens, in billionths
	Gang         int              // tells a spanning function's instances apart; 0 for others
}

// GPU is what one GPU hosts.
type GPU struct {
	Class int
	Node  int // that it must be on; AnyNode if it does not matter
	Items []Item
}

// AnyNode is the node of a GPU without spanning instances.
const AnyNode = -1

// Group is a number of GPUs that host the same.
type Group struct {
	GPU   GPU
	Count int
}

// Solution is a plan and what is known of it.
type Solution struct {
	Groups []Group
	Left   []float64 // requests a second of each function that are not served
	// Lacking is, for each function with something left, an option that would
	// have room on some GPU were it not for its memory; -1 if none.
	Lacking []int
	Bound   int       // GPUs below which nothing serves all
	Method  string    // of the bound
	Price   []float64 // of a request a second of each function, in GPUs
}

// Options are what the planner may spend.
type Options struct {
	Seed    uint64
	Work    int64       // bounds the search, in steps of the planner's own; 0 is what ends well under a second
	Expired func() bool // ends the search early; nil is never
	// Spend has the search go on until Expired says so, whatever the work, as
	// long as a plan might take fewer GPUs.
	Spend bool
}

// defaultWork bounds the rounding and the search so that a plan takes well under
// a second.
const defaultWork = 10_000_000

// tolerance is the part of a demand that may be missing because of rounding.
const tolerance = 1e-9

// Solve plans. It always gives a plan; what no GPU is there for, or no option
// serves, is left. The same problem, seed and work give the same plan unless
// Expired ends the search. Under tokens no more is left, and no more GPUs are
// used, than without: a plan of rectangles is one of turns, too, and is made
// first.
func Solve(p Problem, o Options) Solution {
	if !p.Tokens {
		a := newAttempt(p, o)
		spend(a.bound, o, a)
		return a.solution()
	}
	flat := p
	flat.Tokens = false
	rects, turns := newAttempt(flat, o), newAttempt(p, o)
	spend(turns.bound, o, rects, turns)
	sol, other := turns.solution(), rects.solution()
	if other.better(sol) {
		other.giveTurns()
		other.Bound, other.Method, other.Price = sol.Bound, sol.Method, sol.Price
		return other
	}
	return sol
}

// attempt is a plan under one of the models.
type attempt struct {
	s      *solver
	fleet  *fleetPlan // nil where there is none
	price  []float64
	draft  *draft
	bound  int
	method string
}

func newAttempt(p Problem, o Options) *attempt {
	a := &attempt{s: newSolver(&p, o)}
	s, few := a.s, len(p.Funcs) <= fewFuncs
	if !few {
		a.fleet = s.planFleet()
	}
	alone, root := a.fleet != nil && s.fleetOnly(), relaxation{}
	if alone {
		root.price = a.fleet.price
	} else {
		root = s.solveRoot()
	}
	a.price = root.price
	until := s.workLimit()
	a.bound, a.method = s.bound(root)
	a.raiseBound()
	if alone {
		a.draft = a.fleet.draft
		return a
	}
	a.draft = s.plan(root.use, s.withLeastPrices(root.price), a.bound, until)
	if few && !a.meets(a.bound) {
		a.fleet = s.planFleet()
		a.raiseBound()
	}
	if a.fleet != nil {
		a.take(a.fleet.draft)
	}
	return a
}

// raiseBound makes the bound that of the fleet, if there is one and it is
// larger.
func (a *attempt) raiseBound() {
	if a.fleet != nil && roundUp(a.fleet.bound) > a.bound {
		a.bound, a.method = roundUp(a.fleet.bound), boundCover
	}
}

// take takes a draft that is better.
func (a *attempt) take(d *draft) {
	if a.s.better(d, a.draft) {
		a.draft = d
	}
}

// meets says whether all is served by so many GPUs.
func (a *attempt) meets(target int) bool {
	return a.draft.gpus() <= target && sum(a.s.unserved(a.draft.served)) == 0
}

func (a *attempt) solution() Solution {
	out := a.s.solution(a.draft, a.price)
	out.Bound, out.Method = a.bound, a.method
	return out
}

// better says whether a solution leaves fewer requests a second than another,
// or takes fewer GPUs.
func (a *Solution) better(b Solution) bool {
	x, y := sum(a.Left), sum(b.Left)
	if math.Abs(x-y) > tolerance*max(x, y) {
		return x < y
	}
	return a.used() < b.used()
}

// used is the number of GPUs.
func (a *Solution) used() (n int) {
	for _, g := range a.Groups {
		n += g.Count
	}
	return n
}

// giveTurns makes turns of rectangles.
func (a *Solution) giveTurns() {
	for _, g := range a.Groups {
		for i, it := range g.GPU.Items {
			g.GPU.Items[i].Turns = []timetable.Turn{{From: it.At.X, To: it.At.X + it.At.W}}
		}
	}
}

// Bound is only the bound of Solve.
func Bound(p Problem, o Options) (gpus int, method string) {
	s := newSolver(&p, o)
	return s.bound(s.solveRoot())
}

// solver is the state of planning one problem.
type solver struct {
	p       *Problem
	o       Options
	rng     splitmix.Source
	demand  []float64 // by function: requests a second, as wholeDemands has them
	solo    []float64 // by function: most that a GPU with nothing else serves of it
	minSolo float64   // least of solo
	// leastSolo is what a GPU must serve of a function that spans one for it to be placed:
	// 0 but while functions are placed by rank.
	leastSolo float64
	classes   []class
	pool      pool
	pricing   pricing
	gangs     int   // spanning instances so far
	work      int64 // done so far, in steps of the cutter's dynamic program

	cutBuffer []Item // of cutInto and fillSingles, kept for their memory
	picks     picks
}

// class is what the solver knows of GPUs that are alike.
type class struct {
	Class
	cutter    *cutter
	relaxed   *cutRelaxation
	strips    *stripKnapsack // nil where memory is not limited, or SM shares are too many
	bytePrice float64        // what a byte was last priced at
}

func newSolver(p *Problem, o Options) *solver {
	s := &solver{p: p, o: o, demand: wholeDemands(p), rng: splitmix.Source(o.Seed), pool: pool{known: map[string]bool{}}}
	for k, c := range p.Classes {
		cut := newCutter(p, k, &s.work)
		relaxed := newCutRelaxation(p, cut)
		s.classes = append(s.classes, class{c, cut, relaxed, newStripKnapsack(p, k, &relaxed.shares), 0})
	}
	return s
}

// wholeDemands are what the functions want, and so much more as whole instances
// serve at least: where there is one configuration, its multiples.
func wholeDemands(p *Problem) []float64 {
	d := make([]float64, len(p.Funcs))
	for f := range d {
		d[f] = p.Funcs[f].Demand
		if all := p.Funcs[f].Options; len(all) == 1 && all[0].Rate > 0 {
			whole := all[0].Rate * float64(max(1, p.Funcs[f].Span))
			d[f] = whole * max(1, math.Ceil(d[f]/whole*(1-tolerance)))
		}
	}
	return d
}

// bound is the largest of the lower bounds, and which it is.
func (s *solver) bound(root relaxation) (gpus int, method string) {
	gpus, method = roundUp(root.proven), boundLP
	if size, by := s.sizeBound(); roundUp(size) > gpus {
		gpus, method = roundUp(size), by
	}
	if n := s.widestSpan(); n > gpus {
		gpus, method = n, boundSpan
	}
	return gpus, method
}

// roundUp rounds a bound up, in doubt down.
func roundUp(gpus float64) int { return int(math.Ceil(gpus - 1e-6*max(1, gpus/1000))) }

// workLimit is the count of work at which planning is to end, from now on.
func (s *solver) workLimit() int64 {
	if s.o.Work == 0 {
		return defaultWork + s.work
	}
	return s.o.Work + s.work
}

// spent says whether planning is to end, with work done until then.
func (s *solver) spent(until int64) bool { return s.work >= until || s.expired() }

func (s *solver) expired() bool { return s.o.Expired != nil && s.o.Expired() }

// option is the configuration that an item has.
func (p *Problem) option(it Item) *Option { return &p.Funcs[it.Func].Options[it.Option] }

// left is what of a function's demand is not served after so much.
func (f *Func) left(served float64) float64 {
	if gap := f.Demand - served; gap > tolerance*f.Demand {
		return gap
	}
	return 0
}

// unserved is what is not served yet, by function. What nothing can serve is
// not counted.
func (s *solver) unserved(served []float64) []float64 {
	out := make([]float64, len(served))
	for f := range out {
		if s.solo[f] > 0 {
			out[f] = s.p.Funcs[f].left(served[f])
		}
	}
	return out
}

// unservedSingle is unserved of the functions that span one GPU, and that are worth
// looking at now.
func (s *solver) unservedSingle(served []float64) []float64 {
	out := s.unserved(served)
	for f := range out {
		if s.span(f) > 1 || s.solo[f] < s.leastSolo {
			out[f] = 0
		}
	}
	return out
}

func sum(v []float64) float64 {
	total := 0.0
	for _, x := range v {
		total += x
	}
	return total
}

func (s *solver) solution(d *draft, price []float64) Solution {
	out := Solution{Groups: d.groups, Price: price}
	for _, h := range d.hosts {
		if len(h.items) > 0 {
			out.Groups = append(out.Groups, Group{GPU{h.class, h.node, h.items}, 1})
		}
	}
	out.Left = make([]float64, len(d.served))
	for f := range out.Left {
		out.Left[f] = s.p.Funcs[f].left(d.served[f])
	}
	out.Lacking = s.lacking(out)
	return out
}

// lacking finds for each function with something left an option that only
// memory keeps from a GPU.
func (s *solver) lacking(sol Solution) []int {
	out := slices.Repeat([]int{-1}, len(sol.Left))
	if sum(sol.Left) == 0 {
		return out
	}
	for _, g := range sol.Groups {
		h := s.newHost(g.GPU.Class, g.GPU.Items)
		for f, left := range sol.Left {
			for i, o := range s.p.Funcs[f].Options {
				if left > 0 && out[f] < 0 && o.On[h.class] && h.locate(&Item{}, &o) {
					out[f] = i
				}
			}
		}
	}
	return out
}
