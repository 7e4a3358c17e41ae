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
	in = in.apart()
	wanted := in.wants()
	chosen := choose(wanted, o.TieBreak)
	if err := countable(chosen); err != nil && in.Devices == nil {
		return plan.Plan{}, err
	}
	if o.ShareModels {
		return shared(in, o, wanted), nil
	}
	f := newFleet(in)
	for _, c := range ordered(chosen, o.Order) {
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

// choose scales every function up to what it lacks.
func choose(wanted []want, tie TieBreak) (out []choice) {
	for i := range wanted {
		w := &wanted[i]
		for _, g := range ScaleUp(w.rows, w.missing(), tie) {
			out = append(out, choice{w, g})
		}
	}
	return out
}

// ordered puts choices in the order of packing.
func ordered(choices []choice, o Order) []choice {
	if o != Arrival {
		slices.SortStableFunc(choices, func(a, b choice) int { return cmp.Compare(area(b.group.Row), area(a.group.Row)) })
	}
	return choices
}

// countable refuses more than maxInstances.
func countable(choices []choice) error {
	count := 0
	for _, c := range choices {
		if count += c.group.Count; count > maxInstances {
			return &DemandError{c.want.demand.Function, fmt.Sprintf("%s requests a second take more than %d instances: the best configuration sustains %s",
				num(c.want.demand.RPS), maxInstances, num(c.group.Row.ThroughputRPS))}
		}
	}
	return nil
}

// shared is Fast where a model's weights are kept once on a GPU (FaST-GShare,
// section 3.5): a plan of nothing that grows.
func shared(in Input, o FastOptions, wanted []want) plan.Plan {
	none := plan.Plan{Model: plan.ModelRect}
	s := newRevision(none, in, IncrementalOptions{TieBreak: o.TieBreak, Threshold: maxrect.DefaultThreshold, ShareModels: true, order: o.Order})
	s.grow()
	fresh := plan.Plan{Algorithm: "fast"}
	for i := range wanted { // the weights aside, which some GPU keeps
		rows := slices.Clone(wanted[i].rows)
		for k := range rows {
			rows[k].GPUMemMiB = s.private(rows[k]).MiB()
		}
		wanted[i].rows = rows
	}
	fresh.Bound, fresh.BoundMethod = in.bound(wanted)
	return s.plan(none, fresh)
}

// bin is a GPU that is being filled.
type bin struct {
	number    int // in the fleet
	device    plan.Device
	room      gpu.Bytes
	space     *maxrect.Space
	instances []plan.Instance
}

// fleet is all GPUs, in the order of the inventory.
type fleet struct {
	bins    []*bin
	open    []*bin // those with free rectangles, and some without, in the same order
	full    int    // how many of open have none
	search  search
	elastic bool // more GPUs come as they are needed
	more    func(index int) plan.Device
	limited bool // memory counts
	count   int  // instances placed
}

func newFleet(in Input) *fleet {
	f := &fleet{elastic: in.Devices == nil, more: in.more, limited: in.limits()}
	for _, d := range in.Devices {
		f.add(d)
	}
	return f
}

func (f *fleet) add(d plan.Device) *bin {
	b := &bin{number: len(f.bins), device: d, room: room(d), space: maxrect.New(one, one, maxrect.DefaultThreshold)}
	f.bins = append(f.bins, b)
	f.open = append(f.open, b)
	return b
}

// place puts one instance of the configuration where the least free area is
// left beside it, over all free rectangles of all GPUs (FaST-GShare, section
// 3.4.2, Algorithm 2); a GPU in use is so preferred to an empty one. It says
// whether there was room.
func (f *fleet) place(id string, row profile.Row) bool {
	n := needOf(row)
	best, ok := f.find(n)
	if !ok {
		if !f.elastic {
			return false
		}
		best = offer{bin: f.add(f.more(len(f.bins))), at: maxrect.Rect{W: n.w, H: n.h}}
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
	f.close(b)
	return true
}

// close stops looking at a GPU without free rectangles: when half of those
// looked at have none, they are dropped.
func (f *fleet) close(b *bin) {
	if len(b.space.Free()) > 0 {
		return
	}
	if f.full++; 2*f.full > len(f.open) {
		f.open = slices.DeleteFunc(f.open, func(b *bin) bool { return len(b.space.Free()) == 0 })
		f.full = 0
	}
}

// fits says whether the configuration's rectangle has room on some GPU, its
// memory aside.
func (f *fleet) fits(row profile.Row) bool {
	for _, b := range f.open {
		if !matches(row, b.device) {
			continue
		}
		if _, _, ok := b.space.Best(share(row.Quota), share(row.SMPct/100)); ok {
			return true
		}
	}
	return false
}

// used are the GPUs with instances, as a plan lists them.
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

// serve places one more instance for the function, if there is room.
func (f *fleet) serve(w *want, row profile.Row) bool {
	if f.count >= maxInstances || !f.place(fmt.Sprintf("%s-%d", w.demand.Function, w.count), row) {
		return false
	}
	f.count++
	w.add(row)
	return true
}

// fallBack fills what room there is with the function's configurations, most
// efficient first, until it is served.
func (f *fleet) fallBack(w *want, tie TieBreak) {
	if w.missing() == 0 {
		return
	}
	for _, row := range efficient(w.rows, tie) {
		for w.missing() > 0 && f.serve(w, row) {
		}
	}
}

// plan is the fleet as a plan.
func (f *fleet) plan(in Input, wanted []want) plan.Plan {
	bound, method := in.bound(wanted)
	p := in.empty("fast", plan.ModelRect, bound, method)
	p.GPUs = f.used()
	p.GPUsUsed = len(p.GPUs)
	for _, w := range wanted {
		account(&p, &w, func() string { return f.reason(&w) })
	}
	return p
}

// reason says what keeps the rest of a function's demand from being placed.
func (f *fleet) reason(w *want) string {
	if w.reason != "" {
		return w.reason
	}
	for _, row := range w.rows {
		if f.fits(row) {
			return fmt.Sprintf("%s: %s has a free rectangle but not its %s MiB of memory",
				full(len(f.bins)), describe(row), num(row.GPUMemMiB))
		}
	}
	return fmt.Sprintf("%s: no free rectangle holds even %s", full(len(f.bins)), describe(w.smallest()))
}

// need is all of a configuration that decides where it fits.
type need struct {
	w, h int64
	mem  gpu.Bytes
	gpu  string
}

func needOf(row profile.Row) need {
	return need{share(row.Quota), share(row.SMPct / 100), gpu.FromMiB(row.GPUMemMiB), row.GPU}
}

// offer is the best place for a need on one GPU.
type offer struct {
	bin   *bin
	at    maxrect.Rect
	slack int64
}

func (n need) of(b *bin) (offer, bool) {
	if b.room < n.mem || n.gpu != "" && b.device.Model != "" && n.gpu != b.device.Model {
		return offer{}, false
	}
	at, slack, ok := b.space.Best(n.w, n.h)
	return offer{b, at, slack}, ok
}

// search finds the best offer for one need after the other. Instances of one
// configuration mostly come in a row, so that from the second on the offers of
// all GPUs are kept, and only that of the GPU that changed is asked again:
// looking at every GPU for every instance would make large plans take the
// square of their size.
type search struct {
	need   need
	asked  int // how often in a row
	offers offers
}

// find is the offer of least slack for a need; of several as good, that of the
// first GPU.
func (f *fleet) find(n need) (best offer, ok bool) {
	s := &f.search
	if s.asked == 0 || s.need != n {
		*s = search{need: n, offers: s.offers[:0]}
	}
	if s.asked++; s.asked == 1 {
		return f.scan(n)
	}
	if s.asked == 2 {
		for _, b := range f.open {
			if o, ok := n.of(b); ok {
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

// scan finds the same by looking at every GPU.
func (f *fleet) scan(n need) (best offer, found bool) {
	for _, b := range f.open {
		if o, ok := n.of(b); ok && (!found || o.slack < best.slack) {
			best, found = o, true
		}
	}
	return best, found
}

// changed renews the offer of the GPU that the instance was placed on: the best
// one, or one that has just come.
func (s *search) changed(b *bin) {
	if s.asked < 2 {
		return
	}
	o, ok := s.need.of(b)
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

// offers is a heap, the best on top.
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
