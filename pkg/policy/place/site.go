package place

import (
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
