// Package twin holds a second simulator, written from the rules alone and as
// plainly as they read, to check the first one on small random traces. It
// scans lists where the first keeps heaps and indexes.
package twin

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/trace"
)

type kind int

const (
	gpuWarm kind = iota
	hostWarm
	cold
)

// invocation is one row of the trace and what became of it.
type invocation struct {
	f, gpu          int
	at, start, done time.Duration
	ran             time.Duration // starting and loading excluded
	kind            kind
	finished        bool
	rejected        bool
}

// container belongs to one function and to one GPU (R5).
type container struct {
	f, gpu   int
	resident bool // its memory is on the GPU
	busy     bool
	finished int // number of its last completion: later is larger
}

// task is what occupies a slot: one invocation, or a batch in one container.
type task struct {
	gpu, order int
	end        time.Duration // of the first of rest
	rest       []*invocation
	box        *container // nil under lb, lalb, lalb-o3
}

// settings are what a run is given.
type settings struct {
	policy              string
	gpus, d             int
	memory              float64 // of a GPU in MiB; 0: without limit
	pool                int     // -1: without limit
	t                   time.Duration
	alpha               float64
	limit               int
	starvation, penalty float64
	interference        float64
	correct             bool // charge what was executed
	patient             bool // of lalb: work that is overdue is waited for; none ever is here
}

// more is how much longer an invocation executed than was charged, if that is
// to be corrected.
func (w *world) more(in *invocation) time.Duration {
	if !w.correct {
		return 0
	}
	return in.ran - w.functions[in.f].Warm
}

type world struct {
	settings
	functions []trace.Function
	all       []*invocation
	now       time.Duration
	waiting   []*invocation // in order of arrival
	running   []*task
	boxes     []*container
	order     int // invocations started
	finished  int // completions so far
	falses    int // false misses
	rules     rules
}

// rules are what the policies of R11 to R17 and R21 to R27 differ in.
type rules interface {
	arrived(w *world, in *invocation)        // before it waits
	pick(w *world) (in *invocation, gpu int) // nil when nothing can start
	started(w *world, in *invocation, gpu int, d time.Duration)
	ended(w *world, in *invocation)
	opened(w *world)             // all that happened at this instant is told
	wake(w *world) time.Duration // when to dispatch although nothing happens
	// evicts is what goes first to be removed, or to send its memory to the host:
	// the least, then the least recently finished (R8).
	evicts(w *world, b *container, removed bool) float64
	evicted(w *world, f int) // it did
}

func newWorld(s settings, functions []trace.Function, rows []trace.Row) *world {
	w := &world{settings: s, functions: functions}
	for _, r := range rows {
		w.all = append(w.all, &invocation{f: int(r.Function), at: r.At})
	}
	slices.SortStableFunc(w.all, func(a, b *invocation) int { return cmp.Compare(a.at, b.at) })
	return w
}

// run is R1: at an instant completions, then arrivals, then dispatches.
func (w *world) run() {
	if w.policy == "lb" || w.policy == "lalb" || w.policy == "lalb-o3" {
		w.runCaches()
		return
	}
	w.rules = rulesOf(w)
	arrivals := w.all
	for len(arrivals) > 0 || len(w.running) > 0 {
		w.now = time.Duration(math.MaxInt64)
		if len(arrivals) > 0 {
			w.now = arrivals[0].at
		}
		for _, t := range w.running {
			w.now = min(w.now, t.end)
		}
		w.now = min(w.now, w.rules.wake(w))
		w.complete()
		for len(arrivals) > 0 && arrivals[0].at == w.now {
			w.arrive(arrivals[0])
			arrivals = arrivals[1:]
		}
		w.rules.opened(w)
		for w.dispatch() {
		}
	}
}

func (w *world) arrive(in *invocation) {
	if w.memory > 0 && w.functions[in.f].MemMiB > w.memory {
		in.rejected = true
		return
	}
	w.rules.arrived(w, in)
	w.waiting = append(w.waiting, in)
	w.rules.arrived(w, nil)
}

// complete ends what ends now: by GPU, then by order of start.
func (w *world) complete() {
	slices.SortFunc(w.running, func(a, b *task) int {
		return cmp.Or(cmp.Compare(a.end, b.end), cmp.Compare(a.gpu, b.gpu), cmp.Compare(a.order, b.order))
	})
	var left []*task
	var ended []*task
	for _, t := range w.running {
		if t.end != w.now {
			left = append(left, t)
			continue
		}
		ended = append(ended, t)
	}
	w.running = left
	for _, t := range ended {
		in := t.rest[0]
		in.done, in.finished = w.now, true
		t.rest = t.rest[1:]
		if len(t.rest) > 0 {
			next := t.rest[0]
			took := longer(w.functions[next.f].Warm, w.slower(t.gpu))
			next.start, next.kind, next.gpu, next.ran = w.now, gpuWarm, t.gpu, took
			t.end, t.order = w.now+took, w.order
			w.order++
			w.running = append(w.running, t)
			continue
		}
		w.finished++
		t.box.busy, t.box.finished = false, w.finished
		w.rules.ended(w, in)
		w.shrink(t.gpu, w.pool+1)
	}
}

// shrink removes idle containers of a GPU until fewer than n exist (R6).
func (w *world) shrink(gpu, n int) {
	if w.pool < 0 {
		return
	}
	for {
		idle := w.removable(gpu)
		if w.exist(gpu) < n || len(idle) == 0 {
			return
		}
		w.boxes = slices.DeleteFunc(w.boxes, func(b *container) bool { return b == idle[0] })
		w.rules.evicted(w, idle[0].f)
	}
}

// exist is how many containers there are on a GPU.
func (w *world) exist(gpu int) (n int) {
	for _, b := range w.boxes {
		if b.gpu == gpu {
			n++
		}
	}
	return n
}

// used is the memory of a GPU's resident containers.
func (w *world) used(gpu int) (mem float64) {
	for _, b := range w.boxes {
		if b.gpu == gpu && b.resident {
			mem += w.functions[b.f].MemMiB
		}
	}
	return mem
}

// removable are a GPU's idle containers in eviction order (R8).
func (w *world) removable(gpu int) []*container {
	return w.inOrder(true, func(b *container) bool { return b.gpu == gpu && !b.busy })
}

// movable are those whose memory can make room. What has none stays as it is.
func (w *world) movable(gpu int) []*container {
	return w.inOrder(false, func(b *container) bool {
		return w.memory > 0 && b.gpu == gpu && !b.busy && b.resident && w.functions[b.f].MemMiB > 0
	})
}

func (w *world) inOrder(removed bool, is func(*container) bool) []*container {
	var out []*container
	for _, b := range w.boxes {
		if is(b) {
			out = append(out, b)
		}
	}
	slices.SortFunc(out, func(a, b *container) int {
		return cmp.Or(cmp.Compare(w.rules.evicts(w, a, removed), w.rules.evicts(w, b, removed)), cmp.Compare(a.finished, b.finished))
	})
	return out
}

// makeRoom moves idle containers' memory to the host until need fits (R7).
func (w *world) makeRoom(gpu int, need float64) {
	for w.memory > 0 && w.used(gpu)+need > w.memory && len(w.movable(gpu)) > 0 {
		victim := w.movable(gpu)[0]
		victim.resident = false
		w.rules.evicted(w, victim.f)
	}
}

// best is the idle container of f on a GPU that R9 prefers.
func (w *world) best(f, gpu int) *container {
	var best *container
	for _, b := range w.boxes {
		if b.f != f || b.gpu != gpu || b.busy {
			continue
		}
		if best == nil || b.resident && !best.resident || b.resident == best.resident && b.finished > best.finished {
			best = b
		}
	}
	return best
}

// cost is what an invocation of f would take on a GPU, and how it would start
// (R3, R5), as a policy expects it: beside nothing.
func (w *world) cost(f, gpu int) (time.Duration, kind) {
	fn := w.functions[f]
	d, k := fn.Cold, cold
	switch b := w.best(f, gpu); {
	case b != nil && b.resident:
		d, k = fn.Warm, gpuWarm
	case b != nil:
		d, k = fn.Warm+fn.Load, hostWarm
	}
	return d, k
}

func (w *world) onGPU(gpu int) (n int) {
	for _, t := range w.running {
		if t.gpu == gpu {
			n++
		}
	}
	return n
}

// room says whether f could start on a GPU beside what runs there (R4, R7).
func (w *world) room(f, gpu int) bool {
	used := w.functions[f].MemMiB
	for _, b := range w.boxes {
		if b.gpu == gpu && b.busy {
			used += w.functions[b.f].MemMiB
		}
	}
	return w.onGPU(gpu) < w.d && (w.memory == 0 || used <= w.memory)
}

// place is the GPU of R10, -1 when there is none.
func (w *world) place(f int) int { return w.placeIf(f, func(int) bool { return true }) }

// placeIf is the same among some GPUs.
func (w *world) placeIf(f int, may func(gpu int) bool) int {
	at := -1
	for g := range w.gpus {
		if !may(g) || !w.room(f, g) {
			continue
		}
		if at < 0 {
			at = g
			continue
		}
		d, _ := w.cost(f, g)
		old, _ := w.cost(f, at)
		if d < old || d == old && w.onGPU(g) < w.onGPU(at) {
			at = g
		}
	}
	return at
}

// dispatch starts one task, if any can start. It takes its place before the
// policy accounts for it: what is evicted was decided on what was before.
func (w *world) dispatch() bool {
	in, gpu := w.rules.pick(w)
	if in == nil || gpu < 0 {
		return false
	}
	d, k := w.cost(in.f, gpu)
	slower := w.slower(gpu)
	t := &task{gpu: gpu, order: w.order, end: w.now + longer(d, slower), rest: []*invocation{in}}
	w.order++
	if w.policy == "batch" {
		for _, other := range w.waiting {
			if other.f == in.f && other != in {
				t.rest = append(t.rest, other)
			}
		}
	}
	t.box = w.occupy(in.f, gpu)
	for _, one := range t.rest {
		w.waiting = slices.DeleteFunc(w.waiting, func(other *invocation) bool { return other == one })
	}
	in.start, in.kind, in.gpu, in.ran = w.now, k, gpu, longer(min(w.functions[in.f].Warm, d), slower)
	w.rules.started(w, in, gpu, d)
	w.running = append(w.running, t)
	return true
}

// slower is how many times as long an invocation takes that starts beside what
// runs on the GPU.
func (w *world) slower(gpu int) float64 { return 1 + w.interference*float64(w.onGPU(gpu)) }

func longer(d time.Duration, factor float64) time.Duration {
	return time.Duration(math.Round(float64(d) * factor))
}

// occupy makes a container of f busy with its memory on the GPU.
func (w *world) occupy(f, gpu int) *container {
	box := w.best(f, gpu)
	if box == nil {
		w.shrink(gpu, w.pool)
		box = &container{f: f, gpu: gpu}
		w.boxes = append(w.boxes, box)
	}
	box.busy = true
	if !box.resident {
		w.makeRoom(gpu, w.functions[f].MemMiB)
		box.resident = true
	}
	return box
}

func (w *world) queued(f int) (n int) {
	for _, in := range w.waiting {
		if in.f == f {
			n++
		}
	}
	return n
}

// head is f's oldest waiting invocation, nil when there is none.
func (w *world) head(f int) *invocation {
	for _, in := range w.waiting {
		if in.f == f {
			return in
		}
	}
	return nil
}

// age is the place of a function's head among all that wait.
func (w *world) age(f int) int { return slices.Index(w.waiting, w.head(f)) }

func (w *world) inFlight(f int) (n int) {
	for _, t := range w.running {
		for _, in := range t.rest {
			if in.f == f {
				n++
			}
		}
	}
	return n
}

// waits are the functions with waiting invocations, by their oldest.
func (w *world) waits() []int {
	var out []int
	for _, in := range w.waiting {
		if !slices.Contains(out, in.f) {
			out = append(out, in.f)
		}
	}
	return out
}
