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

// resident is an instance of a plan under change, on all its GPUs.
type resident struct {
	plan.Instance
	row   profile.Row
	mem   gpu.Bytes // on each GPU, without weights that are shared
	parts []part
	old   bool // it runs already
	place int  // in the order in which instances came
}

// part is where an instance is on one GPU: a rectangle, or turns of the window.
type part struct {
	on    *host
	at    maxrect.Rect
	turns []timetable.Turn
}

func (t *resident) width() int64  { return share(t.QuotaRequest) }
func (t *resident) height() int64 { return share(t.SMPct / 100) }

// area is what an instance takes of each GPU, in units that do not overflow.
func (t *resident) area() int64 { return t.width() * (t.height() / 1000) }

// turnsOn are the instance's turns on one of its GPUs.
func (t *resident) turnsOn(h *host) []timetable.Turn {
	for _, p := range t.parts {
		if p.on == h {
			return p.turns
		}
	}
	return nil
}

// host is a GPU of a plan under change.
type host struct {
	device    plan.Device
	room      gpu.Bytes
	used      gpu.Bytes
	space     *maxrect.Space  // under the model rect
	table     *timetable.Line // under tokens
	residents []*resident
	was       *plan.GPU    // as the current plan has it, if it does
	fixed     []plan.Model // weights of no function known, kept as long as the GPU is in use
	given     bool         // to a GPU of another plan
	released  bool         // its list of free rectangles may miss some
}

// weights are those of a model, whose size is left out, on GPUs of one GPU model.
type weights struct {
	plan.Model
	gpu string
}

// revision is a plan under change: all GPUs, what is on them, and what is wanted.
type revision struct {
	in      Input
	o       IncrementalOptions
	limited bool
	shared  bool // weights are kept once on a GPU
	hosts   []*host
	next    int // index of the next GPU that comes, when more come
	came    int // instances so far
	wanted  []want
	of      map[string]*want
	keepers map[plan.Model]gpu.Bytes // of weights that are shared, by model: the most on any GPU
	kept    map[weights]gpu.Bytes    // of those that the current plan keeps
	model   map[string]plan.Model    // of a function, without its size
	running map[string][]*resident   // by function, oldest first
	ids     ids
	why     map[string]string // of starts and stops, by id
}

func (v *revision) elastic() bool { return v.in.Devices == nil }

// open adds a GPU.
func (v *revision) open(d plan.Device) *host {
	h := &host{device: d, room: room(d)}
	if v.o.tokens {
		h.table = timetable.New(one, one)
	} else {
		h.space = maxrect.New(one, one, v.o.Threshold)
	}
	v.hosts = append(v.hosts, h)
	return h
}

// cost is the memory that one more instance takes on the GPU: its own and,
// when it is the first of its model, the weights where they are shared.
func (v *revision) cost(h *host, function string, own gpu.Bytes) gpu.Bytes {
	model := v.model[function]
	if !slices.ContainsFunc(h.residents, func(t *resident) bool { return v.model[t.Function] == model }) {
		own += v.keepers[model]
	}
	return own
}

// private is the memory of an instance without weights that are shared.
func (v *revision) private(row profile.Row) gpu.Bytes {
	return gpu.FromMiB(private(row, v.shared))
}

// occupy puts an instance where its parts say, on all its GPUs. They are free.
func (v *revision) occupy(t *resident) {
	for _, at := range t.parts {
		h := at.on
		h.used += v.cost(h, t.Function, t.mem)
		if h.table != nil {
			h.table.Take(at.turns, t.height())
		} else {
			h.space.Place(at.at)
		}
		h.residents = append(h.residents, t)
	}
}

// vacate takes an instance off its GPUs.
func (v *revision) vacate(t *resident) {
	for _, at := range t.parts {
		h := at.on
		h.residents = slices.DeleteFunc(h.residents, func(o *resident) bool { return o == t })
		h.used -= v.cost(h, t.Function, t.mem)
		if h.table != nil {
			h.table.Give(at.turns, t.height())
		} else {
			h.space.Release(at.at)
			h.released = true
		}
	}
}

// start places one more instance of the row and says whether there was room.
func (v *revision) start(w *want, row profile.Row, onlyUsed bool, why string) bool {
	parts, ok := v.roomFor(row, v.span(w.demand.Function), onlyUsed)
	if !ok {
		return false
	}
	v.add(w, row, parts, why)
	return true
}

// add adds a new instance at these parts.
func (v *revision) add(w *want, row profile.Row, parts []part, why string) *resident {
	in := newInstance(v.ids.next(row.Function), row, v.limited)
	if v.limited && v.shared {
		in.MemMiB = max(0, in.MemMiB-row.ModelMemMiB)
	}
	v.came++
	t := &resident{Instance: in, row: row, mem: v.private(row), parts: parts, place: v.came}
	v.occupy(t)
	v.running[row.Function] = append(v.running[row.Function], t)
	v.why[t.ID] = why
	w.served += row.ThroughputRPS
	return t
}

// span is on how many GPUs instances of the function are: as the function says
// or, when nothing is known of it, as those that run.
func (v *revision) span(function string) int {
	if n, known := v.knownSpan(function); known {
		return n
	}
	for _, t := range v.running[function] {
		return len(t.parts)
	}
	return 1
}

// knownSpan is how many GPUs the function says its instances span.
func (v *revision) knownSpan(name string) (gpus int, known bool) {
	for _, fn := range v.in.Functions {
		if fn.Name == name {
			return max(1, fn.GPUs), true
		}
	}
	return 1, false
}

// hasMemory says whether the GPU has memory for one more instance.
func (v *revision) hasMemory(h *host, function string, own gpu.Bytes) bool {
	return h.room == unlimited || h.used+v.cost(h, function, own) <= h.room
}

// fit is where an instance of the row goes on the GPU, and how much is left
// beside it.
func (v *revision) fit(h *host, row profile.Row) (at part, slack int64, ok bool) {
	if !matches(row, h.device) || !v.hasMemory(h, row.Function, v.private(row)) {
		return part{}, 0, false
	}
	width, height := share(row.Quota), share(row.SMPct/100)
	if h.table != nil {
		turns := h.table.Find(width, height)
		return part{on: h, turns: turns}, h.table.Free() - width*height, turns != nil
	}
	r, slack, ok := h.space.Best(width, height)
	return part{on: h, at: r}, slack, ok
}

// bestFit finds the GPUs for an instance of the row over span GPUs of one node,
// among those that may be, where the least is left beside it.
func (v *revision) bestFit(row profile.Row, span int, may func(*host) bool) ([]part, bool) {
	type option struct {
		at    part
		slack int64
	}
	byNode := map[string][]option{}
	var best option
	found := false
	for _, h := range v.hosts {
		if !may(h) {
			continue
		}
		at, slack, ok := v.fit(h, row)
		switch {
		case !ok:
		case span > 1:
			byNode[h.device.Node] = append(byNode[h.device.Node], option{at, slack})
		case !found || slack < best.slack:
			best, found = option{at, slack}, true
		}
	}
	if span == 1 {
		return []part{best.at}, found
	}
	for _, h := range v.hosts { // nodes in the order of the GPUs
		options := byNode[h.device.Node]
		if len(options) < span {
			continue
		}
		slices.SortStableFunc(options, func(x, y option) int { return cmp.Compare(x.slack, y.slack) })
		var out []part
		for _, o := range options[:span] {
			out = append(out, o.at)
		}
		return out, true
	}
	return nil, false
}

func used(h *host) bool   { return len(h.residents) > 0 }
func anywhere(*host) bool { return true }
func unused(h *host) bool { return !used(h) }

// roomFor finds where an instance of the row can go: on GPUs in use, then on
// those whose free rectangles are listed anew, then on empty ones, then on GPUs
// that come when as many come as it takes.
func (v *revision) roomFor(row profile.Row, span int, onlyUsed bool) ([]part, bool) {
	if parts, ok := v.bestFit(row, span, used); ok {
		return parts, true
	}
	if v.restructure() {
		if parts, ok := v.bestFit(row, span, used); ok {
			return parts, true
		}
	}
	if onlyUsed {
		return nil, false
	}
	if parts, ok := v.bestFit(row, span, unused); ok || !v.elastic() {
		if !ok && span > 1 {
			return v.bestFit(row, span, anywhere)
		}
		return parts, ok
	}
	var out []part
	for range span {
		h := v.addGPU()
		at, _, ok := v.fit(h, row)
		if !ok {
			return nil, false
		}
		out = append(out, at)
	}
	return out, true
}

// addGPU opens one more GPU than there are.
func (v *revision) addGPU() *host {
	h := v.open(v.in.more(v.next))
	v.next++
	return h
}

// restructure lists all free rectangles of GPUs that something was released on
// since, and says whether there were any.
func (v *revision) restructure() bool {
	some := false
	for _, h := range v.hosts {
		if h.released && h.space != nil {
			h.space.Restructure()
			some = true
		}
		h.released = false
	}
	return some
}

// load is the area in use on the GPU.
func (h *host) load() int64 {
	sum := int64(0)
	for _, t := range h.residents {
		sum += t.area()
	}
	return sum
}

// scheduled are the turns of a GPU's instances, by id.
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
