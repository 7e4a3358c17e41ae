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

// tenant is an instance of a plan under change, on all its GPUs.
type tenant struct {
	plan.Instance
	row   profile.Row
	mem   gpu.Bytes // on each GPU, without weights that are shared
	spots []spot
	old   bool // it runs already
	place int  // in the order in which instances came
}

// spot is where an instance is on one GPU: a rectangle, or turns of the window.
type spot struct {
	on    *berth
	at    maxrect.Rect
	turns []timetable.Turn
}

func (t *tenant) w() int64 { return share(t.QuotaRequest) }
func (t *tenant) h() int64 { return share(t.SMPct / 100) }

// turnsOn are the instance's turns on one of its GPUs.
func (t *tenant) turnsOn(b *berth) []timetable.Turn {
	for _, p := range t.spots {
		if p.on == b {
			return p.turns
		}
	}
	return nil
}

// berth is a GPU of a plan under change.
type berth struct {
	device   plan.Device
	room     gpu.Bytes
	used     gpu.Bytes
	space    *maxrect.Space  // under the model rect
	line     *timetable.Line // under tokens
	tenants  []*tenant
	was      *plan.GPU    // as the current plan has it, if it does
	fixed    []plan.Model // weights of no function known, kept as long as the GPU is in use
	given    bool         // to a GPU of another plan
	released bool         // its list of free rectangles may miss some
}

// site is all GPUs of a plan under change.
type site struct {
	in      Input
	o       IncrementalOptions
	limited bool
	shared  bool // weights are kept once on a GPU
	berths  []*berth
	next    int // index of the next GPU that comes, when more come
	came    int // instances so far
	wanted  []want
	of      map[string]*want
	keepers map[string]gpu.Bytes // of weights that are shared, by model
	model   map[string]string    // of a function
	running map[string][]*tenant // by function, oldest first
	ids     ids
	why     map[string]string // of starts and stops, by id
}

func (s *site) elastic() bool { return s.in.Devices == nil }

func (s *site) open(d plan.Device) *berth {
	b := &berth{device: d, room: room(d)}
	if s.o.tokens {
		b.line = timetable.New(one, one)
	} else {
		b.space = maxrect.New(one, one, s.o.Threshold)
	}
	s.berths = append(s.berths, b)
	return b
}

// cost is the memory that one more instance takes on the GPU: its own and,
// when it is the first of its model, the weights where they are shared.
func (s *site) cost(b *berth, function string, own gpu.Bytes) gpu.Bytes {
	model := s.model[function]
	if !slices.ContainsFunc(b.tenants, func(t *tenant) bool { return s.model[t.Function] == model }) {
		own += s.keepers[model]
	}
	return own
}

// private is the memory of an instance without weights that are shared.
func (s *site) private(row profile.Row) gpu.Bytes {
	mem := gpu.FromMiB(row.GPUMemMiB)
	if s.shared {
		mem = max(0, mem-gpu.FromMiB(row.ModelMemMiB))
	}
	return mem
}

// remembers says whether the GPU has memory for one more instance.
func (s *site) remembers(b *berth, function string, own gpu.Bytes) bool {
	return b.room == unlimited || b.used+s.cost(b, function, own) <= b.room
}

// find is where an instance of the row goes on the GPU, and how much is left
// beside it.
func (s *site) find(b *berth, row profile.Row) (at spot, slack int64, ok bool) {
	if !matches(row, b.device) || !s.remembers(b, row.Function, s.private(row)) {
		return spot{}, 0, false
	}
	w, h := share(row.Quota), share(row.SMPct/100)
	if b.line != nil {
		turns := b.line.Find(w, h)
		return spot{on: b, turns: turns}, b.line.Free() - w*h, turns != nil
	}
	r, slack, ok := b.space.Best(w, h)
	return spot{on: b, at: r}, slack, ok
}

// settle puts an instance where its spots say, on all its GPUs. They are free.
func (s *site) settle(t *tenant) {
	for _, at := range t.spots {
		b := at.on
		b.used += s.cost(b, t.Function, t.mem)
		if b.line != nil {
			b.line.Take(at.turns, t.h())
		} else {
			b.space.Place(at.at)
		}
		b.tenants = append(b.tenants, t)
	}
}

// leave takes an instance off its GPUs.
func (s *site) leave(t *tenant) {
	for _, at := range t.spots {
		b := at.on
		b.tenants = slices.DeleteFunc(b.tenants, func(o *tenant) bool { return o == t })
		b.used -= s.cost(b, t.Function, t.mem)
		if b.line != nil {
			b.line.Give(at.turns, t.h())
		} else {
			b.space.Release(at.at)
			b.released = true
		}
	}
}

// put finds the GPUs for an instance of the row over span GPUs of one node,
// among those that may be, where the least is left beside it.
func (s *site) put(row profile.Row, span int, may func(*berth) bool) ([]spot, bool) {
	type option struct {
		at    spot
		slack int64
	}
	byNode := map[string][]option{}
	var best option
	found := false
	for _, b := range s.berths {
		if !may(b) {
			continue
		}
		at, slack, ok := s.find(b, row)
		switch {
		case !ok:
		case span > 1:
			byNode[b.device.Node] = append(byNode[b.device.Node], option{at, slack})
		case !found || slack < best.slack:
			best, found = option{at, slack}, true
		}
	}
	if span == 1 {
		return []spot{best.at}, found
	}
	for _, b := range s.berths { // nodes in the order of the GPUs
		options := byNode[b.device.Node]
		if len(options) < span {
			continue
		}
		slices.SortStableFunc(options, func(x, y option) int { return cmp.Compare(x.slack, y.slack) })
		var out []spot
		for _, o := range options[:span] {
			out = append(out, o.at)
		}
		return out, true
	}
	return nil, false
}

func used(b *berth) bool   { return len(b.tenants) > 0 }
func anywhere(*berth) bool { return true }
func unused(b *berth) bool { return !used(b) }

// roomFor finds where an instance of the row can go: on GPUs in use, then on those
// whose free rectangles are listed anew, then on empty ones, then on GPUs that
// come when as many come as it takes.
func (s *site) roomFor(row profile.Row, span int, onlyUsed bool) ([]spot, bool) {
	if spots, ok := s.put(row, span, used); ok {
		return spots, true
	}
	if s.restructure() {
		if spots, ok := s.put(row, span, used); ok {
			return spots, true
		}
	}
	if onlyUsed {
		return nil, false
	}
	if spots, ok := s.put(row, span, unused); ok || !s.elastic() {
		if !ok && span > 1 {
			return s.put(row, span, anywhere)
		}
		return spots, ok
	}
	var out []spot
	for range span {
		b := s.come()
		at, _, ok := s.find(b, row)
		if !ok {
			return nil, false
		}
		out = append(out, at)
	}
	return out, true
}

// come opens one more GPU.
func (s *site) come() *berth {
	b := s.open(plan.Device{Node: "node0", Index: s.next, MemMiB: s.in.MemMiB})
	s.next++
	return b
}

// restructure lists all free rectangles of GPUs that something was released on
// since, and says whether there were any.
func (s *site) restructure() bool {
	some := false
	for _, b := range s.berths {
		if b.released && b.space != nil {
			b.space.Restructure()
			some = true
		}
		b.released = false
	}
	return some
}

// start places one more instance of the row and says whether there was room.
func (s *site) start(w *want, row profile.Row, onlyUsed bool, why string) bool {
	spots, ok := s.roomFor(row, s.span(w.demand.Function), onlyUsed)
	if !ok {
		return false
	}
	s.enter(w, row, spots, why)
	return true
}

// enter adds a new instance at these spots.
func (s *site) enter(w *want, row profile.Row, spots []spot, why string) *tenant {
	in := plan.Instance{
		ID: s.ids.next(row.Function), Function: row.Function, SMPct: row.SMPct, QuotaRequest: row.Quota, QuotaLimit: row.Quota,
		Batch: row.Batch, RPS: row.ThroughputRPS,
	}
	if s.limited {
		in.MemMiB = row.GPUMemMiB
		if s.shared {
			in.MemMiB = max(0, in.MemMiB-row.ModelMemMiB)
		}
	}
	s.came++
	t := &tenant{Instance: in, row: row, mem: s.private(row), spots: spots, place: s.came}
	s.settle(t)
	s.running[row.Function] = append(s.running[row.Function], t)
	s.why[t.ID] = why
	w.served += row.ThroughputRPS
	return t
}

// span is on how many GPUs instances of the function are: as the function says
// or, when nothing is known of it, as those that run.
func (s *site) span(function string) int {
	if n, known := s.stated(function); known {
		return n
	}
	for _, t := range s.running[function] {
		return len(t.spots)
	}
	return 1
}

// stated is how many GPUs the function says its instances span.
func (s *site) stated(name string) (gpus int, known bool) {
	for _, fn := range s.in.Functions {
		if fn.Name == name {
			return max(1, fn.GPUs), true
		}
	}
	return 1, false
}
