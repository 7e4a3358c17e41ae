package place

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/profile"
)

// maxInstances is the most instances a plan may have.
const maxInstances = 5_000_000

// want is a function's demand, the configurations that may serve it, and how
// far it is served.
type want struct {
	demand plan.Demand
	rows   []profile.Row
	span   int    // instances' parts come in such numbers; 0 is 1
	reason string // why there are no rows
	served float64
	count  int // instances placed
}

func (w *want) missing() float64 {
	if gap := w.demand.RPS - w.served; gap > served*w.demand.RPS {
		return gap
	}
	return 0
}

// Order says in which order instances are packed.
type Order string

// Packing the largest rectangles first needs fewer GPUs, and can be done since
// a plan knows them all. Functions that arrive one by one, as in the paper's
// cluster, are packed in the order of the demand.
const (
	Largest Order = "largest"
	Arrival Order = "arrival"
)

// FastOptions are what the paper leaves open.
type FastOptions struct {
	TieBreak    TieBreak
	Order       Order
	ShareModels bool // a model's weights are kept once on a GPU (section 3.5)
}

// Fast plans as FaST-GShare does (sections 3.4.1 and 3.4.2): each function's
// configurations are chosen alone, by heuristic scaling from nothing, and
// packed one by one by the maximal rectangles algorithm. Where the inventory
// has no room for a configuration so chosen, the function's others are tried,
// most efficient first; what is still missing is unplaced. It fails when the
// demand would take more than 5 million instances.
func Fast(in Input, o FastOptions) (plan.Plan, error) {
	wanted := in.wants()
	chosen, err := choose(wanted, o)
	if err != nil && in.Devices == nil {
		return plan.Plan{}, err
	}
	if o.ShareModels {
		return shared(in, o, wanted), nil
	}
	f := newFleet(in)
	for _, c := range chosen {
		for n := 0; n < c.group.Count && f.serve(c.want, c.group.Row); n++ {
		}
	}
	for i := range wanted {
		f.fallBack(&wanted[i], o.TieBreak)
	}
	if f.count >= maxInstances {
		return plan.Plan{}, fmt.Errorf("the plan would have more than %d instances", maxInstances)
	}
	return f.plan(in, wanted), nil
}

// choice is what was chosen for a function.
type choice struct {
	want  *want
	group Group
}

// choose scales every function up and puts the choices in the order of packing.
func choose(wanted []want, o FastOptions) ([]choice, error) {
	var out []choice
	var err error
	count := 0
	for i := range wanted {
		w := &wanted[i]
		for _, g := range ScaleUp(w.rows, w.demand.RPS, o.TieBreak) {
			if count += g.Count; count > maxInstances && err == nil {
				err = fmt.Errorf("%s: %s requests a second take more than %d instances: the best configuration sustains %s",
					w.demand.Function, num(w.demand.RPS), maxInstances, num(g.Row.ThroughputRPS))
			}
			out = append(out, choice{w, g})
		}
	}
	if o.Order != Arrival {
		slices.SortStableFunc(out, func(a, b choice) int { return cmp.Compare(area(b.group.Row), area(a.group.Row)) })
	}
	return out, err
}

// wants are the demands with the configurations that may serve them.
func (in Input) wants() []want {
	byFunction := map[string][]profile.Row{}
	for _, r := range in.Profile {
		byFunction[r.Function] = append(byFunction[r.Function], r)
	}
	wanted := make([]want, len(in.Demand))
	for i, d := range in.Demand {
		rows, reason := in.admissible(d, byFunction[d.Function])
		if span, most := in.function(d.Function).GPUs, in.together(); rows != nil && span > most {
			rows, reason = nil, fmt.Sprintf("an instance spans %d GPUs of one node: the most that a node has is %d", span, most)
		}
		wanted[i] = want{demand: d, rows: rows, reason: reason}
	}
	return wanted
}

// serve places one more instance for the function, if there is room.
func (f *fleet) serve(w *want, row profile.Row) bool {
	if f.count >= maxInstances || !f.place(fmt.Sprintf("%s-%d", w.demand.Function, w.count), row) {
		return false
	}
	f.count++
	w.count++
	w.served += row.ThroughputRPS
	return true
}

// fallBack fills what room there is with the function's configurations, most
// efficient first, until it is served.
func (f *fleet) fallBack(w *want, tie TieBreak) {
	if w.missing() == 0 {
		return
	}
	for _, row := range w.efficient(tie) {
		for w.missing() > 0 && f.serve(w, row) {
		}
	}
}

// plan is the fleet as a plan.
func (f *fleet) plan(in Input, wanted []want) plan.Plan {
	p := plan.Plan{
		Version: plan.Version, Algorithm: "fast", Model: plan.ModelRect,
		GPUs: f.used(), Demand: []plan.Served{}, Unplaced: []plan.Unplaced{},
	}
	p.GPUsUsed = len(p.GPUs)
	p.Bound, p.BoundMethod = in.bound(wanted)
	for _, w := range wanted {
		account(&p, &w, func() string { return f.reason(&w) })
	}
	return p
}

// account writes down what a function asked for, gets and lacks. What it lacks
// is counted from the figure that is shown as served, so that the two add up.
func account(p *plan.Plan, w *want, reason func() string) {
	d := plan.Served{Function: w.demand.Function, RPS: w.demand.RPS, ServedRPS: tidy(w.served)}
	p.Demand = append(p.Demand, d)
	gap := w.missing()
	if gap == 0 {
		return
	}
	if shown := d.RPS - d.ServedRPS; shown > 0 {
		gap = shown
	}
	p.Unplaced = append(p.Unplaced, plan.Unplaced{Function: d.Function, RPS: tidy(gap), Reason: reason()})
}

// tidy drops the digits that summing left behind the sixth decimal.
func tidy(v float64) float64 {
	if t := math.Round(v*1e6) / 1e6; t > 0 {
		return t
	}
	return v
}

// reason says what keeps the rest of a function's demand from being placed.
func (f *fleet) reason(w *want) string {
	if w.reason != "" {
		return w.reason
	}
	least := slices.MinFunc(w.rows, func(a, b profile.Row) int {
		if c := cmp.Compare(area(a), area(b)); c != 0 {
			return c
		}
		return byMemory(a, b)
	})
	gpus := fmt.Sprintf("the %d GPUs are full", len(f.hosts))
	if len(f.hosts) == 1 {
		gpus = "the GPU is full"
	}
	for _, row := range w.rows {
		if f.fits(row) {
			return fmt.Sprintf("%s: %s has a free rectangle but not its %s MiB of memory",
				gpus, describe(row), num(row.GPUMemMiB))
		}
	}
	return fmt.Sprintf("%s: no free rectangle holds even %s", gpus, describe(least))
}
