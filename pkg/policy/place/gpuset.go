package place

import (
	"cmp"
	"slices"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
	"github.com/gfaas/gfaas/pkg/policy/place/timetable"
	"github.com/gfaas/gfaas/pkg/profile"
)

// resident is an instance of a plan under change, on all of its GPUs.
type resident struct {
	plan.Instance
	row       profile.Row
	mem       gpu.Bytes // on each GPU, without shared weights
	locations []location
	running   bool // it runs in the current plan
	arrival   int  // position in the order of arrival
}

// location is the place of an instance on one GPU: a rectangle, or turns of the window.
type location struct {
	host  *host
	rect  maxrect.Rect
	turns []timetable.Turn
}

// width and height return the quota request and the SM share of an instance in billionths, the unit
// of rectangles and turns (see one). fit computes the same values from a profile row.
func (t *resident) width() int64  { return share(t.QuotaRequest) }
func (t *resident) height() int64 { return share(t.SMPct / 100) }

// area returns the area that an instance needs on each GPU: its quota in billionths times its SM
// share in millionths, so that sums of areas fit 64 bits.
func (t *resident) area() int64 { return t.width() * (t.height() / 1000) }

// turnsOn returns the instance's turns on h.
func (t *resident) turnsOn(h *host) []timetable.Turn {
	for _, p := range t.locations {
		if p.host == h {
			return p.turns
		}
	}
	return nil
}

// host is a GPU of a plan under change.
type host struct {
	device    plan.Device
	room      gpu.Bytes       // memory for instances and weights; unlimited: no limit
	used      gpu.Bytes       // of room, the memory that instances and weights occupy
	space     *maxrect.Space  // the rectangles of its instances; nil if gpuSet.tokens is set
	table     *timetable.Line // the turns of its instances; nil unless gpuSet.tokens is set
	residents []*resident
	current   *plan.GPU    // the GPU in the current plan, or nil
	fixed     []plan.Model // weights in the current plan that no function of the demand shares; kept while the GPU is in use
	assigned  bool         // hostFor has returned it, so it stands for a GPU of a planner's plan
	released  bool         // the list of free rectangles may be incomplete
}

// gpuSet holds the GPUs of a plan under change and their instances.
type gpuSet struct {
	in        Input
	tokens    bool // the plan's sharing model is tokens (instances take turns), not rect
	threshold int  // number of free rectangles above which a GPU's list is built anew after a release
	limited   bool // memory is limited
	weights   *sharedWeights
	hosts     []*host
	next      int // index of the next additional GPU, if their number is unlimited
	count     int // instances ever added
}

// elastic reports whether GPUs can be added without limit, because there is no inventory.
func (s *gpuSet) elastic() bool { return s.in.Devices == nil }

// open adds a GPU.
func (s *gpuSet) open(d plan.Device) *host {
	h := &host{device: d, room: freeMemory(d)}
	if s.tokens {
		h.table = timetable.New(one, one)
	} else {
		h.space = maxrect.New(one, one, s.threshold)
	}
	s.hosts = append(s.hosts, h)
	return h
}

// occupy places an instance where its locations are, on all its GPUs. The locations must be free.
func (s *gpuSet) occupy(t *resident) {
	for _, at := range t.locations {
		h := at.host
		h.used += s.weights.cost(h, t.Function, t.mem)
		if h.table != nil {
			h.table.Reserve(at.turns, t.height())
		} else {
			h.space.Place(at.rect)
		}
		h.residents = append(h.residents, t)
	}
}

// vacate removes an instance from its GPUs.
func (s *gpuSet) vacate(t *resident) {
	for _, at := range t.locations {
		h := at.host
		h.residents = slices.DeleteFunc(h.residents, func(o *resident) bool { return o == t })
		h.used -= s.weights.cost(h, t.Function, t.mem)
		if h.table != nil {
			h.table.Release(at.turns, t.height())
		} else {
			h.space.Release(at.rect)
			h.released = true
		}
	}
}

// hasMemory reports whether the GPU has memory for one more instance.
func (s *gpuSet) hasMemory(h *host, function string, own gpu.Bytes) bool {
	return h.room == unlimited || h.used+s.weights.cost(h, function, own) <= h.room
}

// fit returns a place for an instance of the row on the GPU. slack is the free area that remains: of
// the free rectangle that the instance is placed in or, if instances take turns, of the whole GPU.
func (s *gpuSet) fit(h *host, row profile.Row) (at location, slack int64, ok bool) {
	if !matches(row, h.device) || !s.hasMemory(h, row.Function, s.weights.private(row)) {
		return location{}, 0, false
	}
	width, height := share(row.Quota), share(row.SMPct/100)
	if h.table != nil {
		turns := h.table.Find(width, height)
		return location{host: h, turns: turns}, h.table.Free() - width*height, turns != nil
	}
	r, slack, ok := h.space.Best(width, height)
	return location{host: h, rect: r}, slack, ok
}

// bestFit returns the locations of an instance of the row on span GPUs of one node, among the GPUs
// for which may returns true. It chooses the GPUs on which the least free area remains (fit's slack).
func (s *gpuSet) bestFit(row profile.Row, span int, may func(*host) bool) ([]location, bool) {
	type option struct {
		at    location
		slack int64
	}
	byNode := map[string][]option{}
	var best option
	found := false
	for _, h := range s.hosts {
		if !may(h) {
			continue
		}
		at, slack, ok := s.fit(h, row)
		switch {
		case !ok:
		case span > 1:
			byNode[h.device.Node] = append(byNode[h.device.Node], option{at, slack})
		case !found || slack < best.slack:
			best, found = option{at, slack}, true
		}
	}
	if span == 1 {
		return []location{best.at}, found
	}
	for _, h := range s.hosts { // for nodes in the order of the GPUs
		options := byNode[h.device.Node]
		if len(options) < span {
			continue
		}
		slices.SortStableFunc(options, func(x, y option) int { return cmp.Compare(x.slack, y.slack) })
		var out []location
		for _, o := range options[:span] {
			out = append(out, o.at)
		}
		return out, true
	}
	return nil, false
}

// used reports whether the GPU has instances (the field used counts bytes), and unused whether it has
// none. anywhere is true for every GPU.
func used(h *host) bool   { return len(h.residents) > 0 }
func anywhere(*host) bool { return true }
func unused(h *host) bool { return !used(h) }

// roomFor returns the locations of a new instance of the row. It tries GPUs in use first; then these
// again, if restructure has listed their free rectangles anew. Unless onlyUsed is set, it then tries
// empty GPUs. The last resort is additional GPUs, if their number is unlimited; otherwise, for an
// instance that needs several GPUs, GPUs of one node of which some are in use and some empty.
func (s *gpuSet) roomFor(row profile.Row, span int, onlyUsed bool) ([]location, bool) {
	if locations, ok := s.bestFit(row, span, used); ok {
		return locations, true
	}
	if s.restructure() {
		if locations, ok := s.bestFit(row, span, used); ok {
			return locations, true
		}
	}
	if onlyUsed {
		return nil, false
	}
	if locations, ok := s.bestFit(row, span, unused); ok || !s.elastic() {
		if !ok && span > 1 {
			return s.bestFit(row, span, anywhere)
		}
		return locations, ok
	}
	var out []location
	for range span {
		h := s.addGPU()
		at, _, ok := s.fit(h, row)
		if !ok {
			return nil, false
		}
		out = append(out, at)
	}
	return out, true
}

// addGPU adds a GPU that is not in the inventory.
func (s *gpuSet) addGPU() *host {
	h := s.open(s.in.newDevice(s.next))
	s.next++
	return h
}

// restructure lists the free rectangles of all GPUs with released space again, and reports
// whether there are such GPUs.
func (s *gpuSet) restructure() bool {
	relisted := false
	for _, h := range s.hosts {
		if h.released { // only true under the model rect
			h.relist()
			relisted = true
		}
	}
	return relisted
}

// relist lists the free rectangles of a GPU again.
func (h *host) relist() {
	if h.space != nil {
		h.space.Restructure()
	}
	h.released = false
}

// load returns the area in use on the GPU.
func (h *host) load() int64 {
	sum := int64(0)
	for _, t := range h.residents {
		sum += t.area()
	}
	return sum
}

// scheduled returns the turns of a GPU's instances, by ID.
func scheduled(g plan.GPU) map[string][]timetable.Turn {
	out := map[string][]timetable.Turn{}
	at := 0.0
	for _, entry := range g.Schedule {
		from, to := share(at), share(at+entry.Duration)
		at += entry.Duration
		for _, id := range entry.Instances {
			if from < to {
				out[id] = append(out[id], timetable.Turn{From: from, To: to})
			}
		}
	}
	return out
}

// openGPUs adds the GPUs of the inventory or, without an inventory, of the current plan.
func (s *gpuSet) openGPUs(current plan.Plan) {
	was := map[plan.GPUName]*plan.GPU{}
	for i := range current.GPUs {
		g := &current.GPUs[i]
		if _, twice := was[g.Name()]; twice {
			continue
		}
		was[g.Name()] = g
		if s.elastic() {
			s.open(plan.Device{Node: g.Node, Index: g.Index, MemMiB: s.in.MemMiB, Model: cmp.Or(g.Model, s.in.Model)})
			if g.Node == plan.DefaultNode {
				s.next = max(s.next, g.Index+1)
			}
		}
	}
	for _, d := range s.in.Devices {
		s.open(d)
	}
	for _, h := range s.hosts {
		if h.current = was[h.device.Name()]; h.current == nil {
			continue
		}
		// Weights that no function of the demand shares stay as they are. keepers has no size for
		// them; its keys are models with a MemMiB of 0.
		for _, m := range h.current.Copies(s.weights.weightsOf) {
			size := m.MemMiB
			m.MemMiB = 0
			if s.weights.keepers[m] == 0 {
				m.MemMiB = size
				h.fixed = append(h.fixed, m)
				h.used += m.Bytes()
			}
		}
	}
}

// residents returns the instances of the current plan with their locations, each once. The host
// of a location is nil if its GPU no longer exists.
func (s *gpuSet) residents(current plan.Plan) []*resident {
	hosts := s.byName()
	byID := map[string]*resident{}
	var out []*resident
	for i := range current.GPUs {
		g := &current.GPUs[i]
		turns := scheduled(*g)
		for _, in := range g.Instances {
			t, known := byID[in.ID]
			if !known {
				s.count++
				t = &resident{Instance: in, running: true, arrival: s.count}
				byID[in.ID] = t
				out = append(out, t)
			}
			t.locations = append(t.locations, locationOf(in, hosts[g.Name()], turns))
		}
	}
	return out
}

// byName returns the GPUs by name.
func (s *gpuSet) byName() map[plan.GPUName]*host {
	hosts := map[plan.GPUName]*host{}
	for _, h := range s.hosts {
		hosts[h.device.Name()] = h
	}
	return hosts
}

// locationOf returns the location on a host of an instance of a plan. turns holds the turns on that
// GPU by ID.
func locationOf(in plan.Instance, h *host, turns map[string][]timetable.Turn) location {
	at := location{host: h, turns: turns[in.ID]}
	if in.X != nil && in.Y != nil {
		at.rect = rectOf(in)
	}
	return at
}

// vacant reports whether p, a location of t in the current plan, can be occupied: it is within its
// GPU and overlaps no instance that occupies the GPU already. A rectangle must also be the only one of
// t on the GPU, and turns must be long enough for t's quota.
func (s *gpuSet) vacant(t *resident, p location) bool {
	if p.host.table != nil {
		time := int64(0)
		for _, turn := range p.turns {
			time += turn.To - turn.From
		}
		// Each turn may have lost a billionth by rounding when the plan was written.
		free := time >= t.width()-int64(len(p.turns)) && p.host.table.Reserve(p.turns, t.height())
		if free {
			p.host.table.Release(p.turns, t.height())
		}
		return free
	}
	whole := maxrect.Rect{W: one, H: one}
	return whole.Contains(p.rect) && p.rect.W > 0 && p.rect.H > 0 &&
		!slices.ContainsFunc(p.host.space.Used(), p.rect.Meets) && !slices.ContainsFunc(t.locations, func(o location) bool { return o.host == p.host && o.rect != p.rect })
}

// inUse counts the GPUs with instances.
func (s *gpuSet) inUse() int {
	n := 0
	for _, h := range s.hosts {
		if used(h) {
			n++
		}
	}
	return n
}

// gpu returns the plan's entry of a GPU.
func (s *gpuSet) gpu(h *host) plan.GPU {
	g := gpuOf(h.device)
	slices.SortFunc(h.residents, func(x, y *resident) int { return cmp.Compare(h.order(x), h.order(y)) })
	for _, t := range h.residents {
		in := t.Instance
		in.X, in.Y = nil, nil
		for _, p := range t.locations {
			if p.host == h && h.space != nil {
				setCorner(&in, p.rect)
			}
		}
		g.Instances = append(g.Instances, in)
	}
	sameID := func(x, y plan.Instance) bool { return x.ID == y.ID }
	if h.current != nil && slices.EqualFunc(g.Instances, h.current.Instances, sameID) {
		g.Models, g.Schedule = h.current.Models, h.current.Schedule
		return g
	}
	if s.weights.shared && s.limited {
		g.Models = s.weights.models(h)
	}
	if h.table != nil {
		turns := make([][]timetable.Turn, len(h.residents))
		for k, t := range h.residents {
			turns[k] = t.turnsOn(h)
		}
		g.Schedule = schedule(g.Instances, turns, true)
	}
	return g
}

// order returns the position of an instance in the list of its GPU: instances of the current plan
// keep their order, and new ones follow.
func (h *host) order(t *resident) int {
	if h.current != nil {
		if i := slices.IndexFunc(h.current.Instances, func(in plan.Instance) bool { return in.ID == t.ID }); i >= 0 {
			return i - len(h.current.Instances)
		}
	}
	return t.arrival
}

// relist lists the free rectangles of all GPUs again.
func (s *gpuSet) relist() {
	for _, h := range s.hosts {
		h.relist()
	}
}

// remove removes an instance and lists the free rectangles of its GPUs again.
func (s *gpuSet) remove(t *resident) {
	s.vacate(t)
	for _, p := range t.locations {
		p.host.relist()
	}
}

// hostFor returns the GPU that stands for one GPU of a planner's plan, when the instances of that
// plan are added to the set. It returns a different GPU at each call. alone is true if each of the
// instances there needs one GPU only: then the result is an unused GPU, if there is one. Otherwise it
// is a new GPU, because an instance's GPUs must be on one node.
func (s *gpuSet) hostFor(alone bool) *host {
	if i := slices.IndexFunc(s.hosts, func(h *host) bool { return unused(h) && !h.assigned }); i >= 0 && alone {
		s.hosts[i].assigned = true
		return s.hosts[i]
	}
	h := s.addGPU()
	h.assigned = true
	return h
}

// canHost reports whether GPUs are of the row's GPU model and have the memory for it.
func (s *gpuSet) canHost(r profile.Row, locations []location) bool {
	return !slices.ContainsFunc(locations, func(p location) bool {
		return !matches(r, p.host.device) || !s.hasMemory(p.host, r.Function, s.weights.private(r))
	})
}
