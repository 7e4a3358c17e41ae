package place

import (
	"cmp"
	"container/heap"
	"fmt"
	"slices"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/reason"
)

// Fast plans like FaST-GShare (sections 3.4.1 and 3.4.2). It chooses the configurations of each
// function separately, by heuristic scaling from zero, and packs them one by one with the maximal
// rectangles algorithm. If a chosen configuration has no room, Fast tries the function's other
// configurations, most efficient first; the rest of the demand is unplaced. It returns an error if
// the demand needs more than 5 million instances.
func Fast(in Input, o Options) (plan.Plan, error) {
	in = in.splitByModel()
	demands := in.functionDemands()
	chosen := choose(demands, o.TieBreak)
	if err := countable(chosen); err != nil && in.Devices == nil {
		return plan.Plan{}, err
	}
	if o.ShareModels {
		return fastShared(in, o, demands), nil
	}
	f := newFleet(in)
	for _, c := range ordered(chosen, o.Order) {
		for n := 0; n < c.group.Count && f.serve(c.demand, c.group.Row); n++ {
		}
	}
	for i := range demands {
		w := &demands[i]
		w.fallBack(o.TieBreak, func(row profile.Row) bool { return f.serve(w, row) })
	}
	if f.count >= maxInstances {
		return plan.Plan{}, fmt.Errorf("the plan would have more than %d instances", maxInstances)
	}
	return f.plan(in, demands), nil
}

// choice is a number of instances of one configuration for a function.
type choice struct {
	demand *functionDemand
	group  Group
}

// choose scales every function up by its missing throughput.
func choose(demands []functionDemand, tie TieBreak) (out []choice) {
	for i := range demands {
		w := &demands[i]
		for _, g := range ScaleUp(w.rows, w.missing(), tie) {
			out = append(out, choice{w, g})
		}
	}
	return out
}

// ordered sorts choices in the order of packing.
func ordered(choices []choice, o Order) []choice {
	if o != Arrival {
		slices.SortStableFunc(choices, func(a, b choice) int { return cmp.Compare(area(b.group.Row), area(a.group.Row)) })
	}
	return choices
}

// countable returns an error if the choices have more than maxInstances instances.
func countable(choices []choice) error {
	count := 0
	for _, c := range choices {
		if count += c.group.Count; count > maxInstances {
			return &DemandError{c.demand.demand.Function, fmt.Sprintf("%s requests/s need more than %d instances: the best configuration sustains %s requests/s",
				num(c.demand.demand.RPS), maxInstances, num(c.group.Row.ThroughputRPS))}
		}
	}
	return nil
}

// fastShared plans like Fast but keeps a model's weights once on each GPU (FaST-GShare, section
// 3.5). It grows an empty plan incrementally.
func fastShared(in Input, o Options, demands []functionDemand) plan.Plan {
	empty := plan.Plan{Model: plan.ModelRect}
	s := newRevision(empty, in, IncrementalOptions{TieBreak: o.TieBreak, Threshold: maxrect.DefaultThreshold, ShareModels: true, order: o.Order})
	s.grow(false)
	newPlan := plan.Plan{Algorithm: "fast"}
	for i := range demands { // without the weights, which are on some GPU anyway
		demands[i] = demands[i].private(true)
	}
	newPlan.Bound, newPlan.BoundMethod = in.bound(demands)
	return s.plan(empty, newPlan)
}

// bin is a GPU that is being filled.
type bin struct {
	number    int // in the fleet
	device    plan.Device
	room      gpu.Bytes
	space     *maxrect.Space
	instances []plan.Instance
}

// fleet holds all GPUs, in the order of the inventory.
type fleet struct {
	bins      []*bin
	search    search
	elastic   bool // the number of GPUs is unlimited
	newDevice func(index int) plan.Device
	limited   bool // memory counts
	count     int  // instances placed
}

func newFleet(in Input) *fleet {
	f := &fleet{elastic: in.Devices == nil, newDevice: in.newDevice, limited: in.limitsMemory()}
	for _, d := range in.Devices {
		f.add(d)
	}
	return f
}

func (f *fleet) add(d plan.Device) *bin {
	b := &bin{number: len(f.bins), device: d, room: freeMemory(d), space: maxrect.New(one, one, maxrect.DefaultThreshold)}
	f.bins = append(f.bins, b)
	return b
}

// place places one instance of the configuration where the least free area remains near it, over
// all free rectangles of all GPUs (FaST-GShare, section 3.4.2, Algorithm 2). This prefers GPUs in
// use to empty ones. It reports whether there was room.
func (f *fleet) place(id string, row profile.Row) bool {
	n := footprintOf(row)
	best, ok := f.bestOffer(n)
	if !ok {
		if !f.elastic {
			return false
		}
		best = offer{bin: f.add(f.newDevice(len(f.bins))), at: maxrect.Rect{W: n.w, H: n.h}}
	}
	b := best.bin
	b.space.Place(best.at)
	if b.room != unlimited {
		b.room -= n.mem
	}
	in := newInstance(id, row, f.limited)
	setCorner(&in, best.at)
	b.instances = append(b.instances, in)
	f.search.changed(b)
	return true
}

// fits reports whether some GPU has room for the configuration's rectangle, ignoring memory.
func (f *fleet) fits(row profile.Row) bool {
	n := footprintOf(row)
	n.mem = 0
	return slices.ContainsFunc(f.bins, func(b *bin) bool { _, ok := n.bestOn(b); return ok })
}

// used returns the plan's entries of the GPUs with instances.
func (f *fleet) used() []plan.GPU {
	gpus := []plan.GPU{}
	for _, b := range f.bins {
		if len(b.instances) > 0 {
			g := gpuOf(b.device)
			g.Instances = b.instances
			gpus = append(gpus, g)
		}
	}
	return gpus
}

// serve places one more instance for the function and reports whether there was room.
func (f *fleet) serve(w *functionDemand, row profile.Row) bool {
	if f.count >= maxInstances || !f.place(fmt.Sprintf("%s-%d", w.demand.Function, w.count), row) {
		return false
	}
	f.count++
	w.add(row)
	return true
}

// plan returns the fleet as a plan.
func (f *fleet) plan(in Input, demands []functionDemand) plan.Plan {
	bound, method := in.bound(demands)
	p := in.empty("fast", plan.ModelRect, bound, method)
	p.GPUs = f.used()
	return complete(p, demands, func(i int) reason.Reason { return f.reason(&demands[i], in) })
}

// reason returns why the rest of a function's demand is not placed.
func (f *fleet) reason(w *functionDemand, in Input) reason.Reason {
	for _, row := range w.rows {
		if f.fits(row) {
			return lacksMemory(row, len(f.bins))
		}
	}
	return w.full(gpusFull, len(f.bins), in)
}

// footprint holds the properties of a configuration that decide where it fits.
type footprint struct {
	w, h int64
	mem  gpu.Bytes
	gpu  string
}

func footprintOf(row profile.Row) footprint {
	return footprint{share(row.Quota), share(row.SMPct / 100), gpu.FromMiB(row.GPUMemMiB), row.GPU}
}

// offer is the best place for a footprint on one GPU.
type offer struct {
	bin   *bin
	at    maxrect.Rect
	slack int64
}

func (n footprint) bestOn(b *bin) (offer, bool) {
	if b.room < n.mem || n.gpu != "" && b.device.Model != "" && n.gpu != b.device.Model {
		return offer{}, false
	}
	at, slack, ok := b.space.Best(n.w, n.h)
	return offer{b, at, slack}, ok
}

// search finds the best offer for one footprint after the other. Most consecutive footprints are
// equal. From the second equal footprint on, search keeps the offers of all GPUs and renews only
// the offer of the GPU that changed. Otherwise, the time would grow with the square of the plan's
// size.
type search struct {
	footprint footprint
	repeats   int // number of consecutive calls with this footprint
	offers    offers
}

// bestOffer returns the offer with the least slack for a footprint; ties go to the first GPU.
func (f *fleet) bestOffer(n footprint) (best offer, ok bool) {
	s := &f.search
	if s.repeats == 0 || s.footprint != n {
		*s = search{footprint: n, offers: s.offers[:0]}
	}
	if s.repeats++; s.repeats == 1 {
		return f.scan(n)
	}
	if s.repeats == 2 {
		for _, b := range f.bins {
			if o, ok := n.bestOn(b); ok {
				s.offers = append(s.offers, o)
			}
		}
		heap.Init(&s.offers)
	}
	if len(s.offers) == 0 {
		return offer{}, false
	}
	return s.offers[0], true
}

// scan returns the same offer by searching all GPUs.
func (f *fleet) scan(n footprint) (best offer, found bool) {
	for _, b := range f.bins {
		if o, ok := n.bestOn(b); ok && (!found || o.slack < best.slack) {
			best, found = o, true
		}
	}
	return best, found
}

// changed renews the offer of the GPU on which the instance was placed. That GPU had the best offer
// or has just been added.
func (s *search) changed(b *bin) {
	if s.repeats < 2 {
		return
	}
	o, ok := s.footprint.bestOn(b)
	switch known := len(s.offers) > 0 && s.offers[0].bin == b; {
	case known && ok:
		s.offers[0] = o
		heap.Fix(&s.offers, 0)
	case known:
		heap.Pop(&s.offers)
	case ok:
		heap.Push(&s.offers, o)
	}
}

// offers is a heap with the best offer on top.
type offers []offer

func (o offers) Len() int      { return len(o) }
func (o offers) Swap(i, j int) { o[i], o[j] = o[j], o[i] }
func (o offers) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(o[i].slack, o[j].slack), cmp.Compare(o[i].bin.number, o[j].bin.number)) < 0
}
func (o *offers) Push(x any) { *o = append(*o, x.(offer)) }
func (o *offers) Pop() any {
	last := len(*o) - 1
	x := (*o)[last]
	*o = (*o)[:last]
	return x
}
