// Package twin has a second simulator, which implements docs/simulation.md as literally as
// possible. Tests compare it with pkg/sim on small random traces. It scans lists where pkg/sim
// has heaps and indexes.
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

// invocation is a row of the trace, with its result.
type invocation struct {
	f, gpu               int
	at, start, completed time.Duration
	ran                  time.Duration // without starting and loading
	kind                 kind
	finished             bool
	rejected             bool
}

// container belongs to one function and one GPU (R5).
type container struct {
	f, gpu   int
	resident bool // its memory is on the GPU
	busy     bool
	finished int // sequence number of its last completion
}

// task occupies a slot: an invocation, or a batch in one container.
type task struct {
	gpu, order int
	end        time.Duration // of the first invocation in rest
	remaining  []*invocation
	container  *container // nil under lb, lalb, lalb-o3
	batch      *batch     // nil without batches
}

// settings holds the parameters of a run.
type settings struct {
	policy              string
	gpus, d             int
	memory              float64 // of a GPU in MiB; 0 means no limit
	pool                int     // -1 means no limit
	t                   time.Duration
	alpha               float64
	limit               int
	starvation, penalty float64
	interference        float64
	correct             bool // charge the measured execution time
	patient             bool // has no effect, since no work is overdue here
	window              time.Duration
}

// correction returns the measured execution time beyond the charge, if charges are corrected.
func (w *world) correction(in *invocation) time.Duration {
	if !w.correct {
		return 0
	}
	return in.ran - w.functions[in.f].Warm
}

type world struct {
	settings
	functions   []trace.Function
	invocations []*invocation
	now         time.Duration
	waiting     []*invocation // in order of arrival
	running     []*task
	containers  []*container
	order       int // started invocations
	finished    int // completed invocations
	falseMisses int // false misses
	rules       rules
	ranUntil    []time.Duration // by function, with batches: the end of its last invocation (R28)
	aside       []int           // functions that let others go first in this decision (R29, R31)
}

// rules holds the differences between the policies of R11 to R17 and R21 to R27.
type rules interface {
	arrived(w *world, in *invocation)        // called before the invocation waits
	pick(w *world) (in *invocation, gpu int) // nil if no invocation can start
	started(w *world, in *invocation, gpu int, d time.Duration)
	finished(w *world, in *invocation)
	advanced(w *world)           // called after all events of an instant
	wake(w *world) time.Duration // when to dispatch even without an event
	// evicts returns the key for evictions of containers or memory: the least goes first, then
	// the least recently finished (R8).
	evicts(w *world, b *container, removed bool) float64
	evicted(w *world, f int) // called after an eviction
}

func newWorld(s settings, functions []trace.Function, rows []trace.Row) *world {
	w := &world{settings: s, functions: functions}
	for _, r := range rows {
		w.invocations = append(w.invocations, &invocation{f: int(r.Function), at: r.At})
	}
	slices.SortStableFunc(w.invocations, func(a, b *invocation) int { return cmp.Compare(a.at, b.at) })
	return w
}

// run implements R1: at each instant completions, then arrivals, then dispatches.
func (w *world) run() {
	if w.policy == "lb" || w.policy == "lalb" || w.policy == "lalb-o3" {
		w.runCaches()
		return
	}
	w.rules = rulesOf(w)
	arrivals := w.invocations
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
		w.rules.advanced(w)
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

// complete ends the tasks that are due, by GPU, then by order of start.
func (w *world) complete() {
	slices.SortFunc(w.running, func(a, b *task) int {
		return cmp.Or(cmp.Compare(a.end, b.end), cmp.Compare(a.gpu, b.gpu), cmp.Compare(a.order, b.order))
	})
	var running []*task
	var completed []*task
	for _, t := range w.running {
		if t.end != w.now {
			running = append(running, t)
			continue
		}
		completed = append(completed, t)
	}
	w.running = running
	for _, t := range completed {
		in := t.remaining[0]
		in.completed, in.finished = w.now, true
		t.remaining = t.remaining[1:]
		if len(t.remaining) > 0 {
			next := t.remaining[0]
			duration := longer(w.functions[next.f].Warm, w.slower(t.gpu))
			next.start, next.kind, next.gpu, next.ran = w.now, gpuWarm, t.gpu, duration
			t.end, t.order = w.now+duration, w.order
			w.order++
			w.running = append(w.running, t)
			continue
		}
		w.finished++
		t.container.busy, t.container.finished = false, w.finished
		w.rules.finished(w, in)
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
		w.containers = slices.DeleteFunc(w.containers, func(b *container) bool { return b == idle[0] })
		w.rules.evicted(w, idle[0].f)
	}
}

// exist returns the number of containers on a GPU.
func (w *world) exist(gpu int) (n int) {
	for _, b := range w.containers {
		if b.gpu == gpu {
			n++
		}
	}
	return n
}

// used returns the memory of a GPU's resident containers.
func (w *world) used(gpu int) (mem float64) {
	for _, b := range w.containers {
		if b.gpu == gpu && b.resident {
			mem += w.functions[b.f].MemMiB
		}
	}
	return mem
}

// removable returns a GPU's idle containers in eviction order (R8).
func (w *world) removable(gpu int) []*container {
	return w.inEvictionOrder(true, func(b *container) bool { return b.gpu == gpu && !b.busy })
}

// movable returns the idle containers with memory to evict, in eviction order.
func (w *world) movable(gpu int) []*container {
	return w.inEvictionOrder(false, func(b *container) bool {
		return w.memory > 0 && b.gpu == gpu && !b.busy && b.resident && w.functions[b.f].MemMiB > 0
	})
}

func (w *world) inEvictionOrder(removed bool, matches func(*container) bool) []*container {
	var list []*container
	for _, b := range w.containers {
		if matches(b) {
			list = append(list, b)
		}
	}
	slices.SortFunc(list, func(a, b *container) int {
		return cmp.Or(cmp.Compare(w.rules.evicts(w, a, removed), w.rules.evicts(w, b, removed)), cmp.Compare(a.finished, b.finished))
	})
	return list
}

// makeRoom moves idle containers' memory to the host until need fits (R7).
func (w *world) makeRoom(gpu int, mem float64) {
	for w.memory > 0 && w.used(gpu)+mem > w.memory && len(w.movable(gpu)) > 0 {
		victim := w.movable(gpu)[0]
		victim.resident = false
		w.rules.evicted(w, victim.f)
	}
}

// best returns the idle container of f on a GPU that R9 prefers.
func (w *world) best(f, gpu int) *container {
	var best *container
	for _, b := range w.containers {
		if b.f != f || b.gpu != gpu || b.busy {
			continue
		}
		if best == nil || b.resident && !best.resident || b.resident == best.resident && b.finished > best.finished {
			best = b
		}
	}
	return best
}

// cost returns the duration of an invocation of f on a GPU and its kind of start (R3, R5),
// without interference.
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

// slots returns the number of slots that are taken on a GPU.
func (w *world) slots(gpu int) (n int) {
	for _, t := range w.running {
		if t.gpu == gpu && (t.batch == nil || t.batch.takesSlot) {
			n++
		}
	}
	return n
}

// room reports whether f could start on a GPU in addition to its running tasks (R4, R7).
func (w *world) room(f, gpu int) bool {
	used := w.functions[f].MemMiB
	for _, b := range w.containers {
		if b.gpu == gpu && b.busy {
			used += w.functions[b.f].MemMiB
		}
	}
	return w.slots(gpu) < w.d && (w.memory == 0 || used <= w.memory)
}

// place returns the GPU of R10, or -1.
func (w *world) place(f int) int { return w.placeIf(f, func(int) bool { return true }) }

// placeIf returns the GPU of R10 among those that may permits, or -1.
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

// dispatch starts one task, if possible. The task occupies its place before the policy charges
// for it, because evictions depend on the state before.
func (w *world) dispatch() bool {
	in, gpu := w.rules.pick(w)
	if in == nil || gpu < 0 {
		return false
	}
	d, k := w.cost(in.f, gpu)
	slower := w.slower(gpu)
	t := &task{gpu: gpu, order: w.order, end: w.now + longer(d, slower), remaining: []*invocation{in}}
	w.order++
	if w.policy == "batch" {
		for _, other := range w.waiting {
			if other.f == in.f && other != in {
				t.remaining = append(t.remaining, other)
			}
		}
	}
	t.container = w.occupy(in.f, gpu)
	for _, one := range t.remaining {
		w.waiting = slices.DeleteFunc(w.waiting, func(other *invocation) bool { return other == one })
	}
	in.start, in.kind, in.gpu, in.ran = w.now, k, gpu, longer(min(w.functions[in.f].Warm, d), slower)
	w.rules.started(w, in, gpu, d)
	w.running = append(w.running, t)
	return true
}

// slower returns the interference factor of an invocation that starts on the GPU now.
func (w *world) slower(gpu int) float64 { return 1 + w.interference*float64(w.onGPU(gpu)) }

func longer(d time.Duration, factor float64) time.Duration {
	return time.Duration(math.Round(float64(d) * factor))
}

// occupy marks a container of f as busy, with its memory on the GPU.
func (w *world) occupy(f, gpu int) *container {
	box := w.best(f, gpu)
	if box == nil {
		w.shrink(gpu, w.pool)
		box = &container{f: f, gpu: gpu}
		w.containers = append(w.containers, box)
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

// head returns f's oldest waiting invocation, or nil.
func (w *world) head(f int) *invocation {
	for _, in := range w.waiting {
		if in.f == f {
			return in
		}
	}
	return nil
}

// age returns the position of f's oldest invocation among all waiting ones.
func (w *world) age(f int) int { return slices.Index(w.waiting, w.head(f)) }

func (w *world) inFlight(f int) (n int) {
	for _, t := range w.running {
		for _, in := range t.remaining {
			if in.f == f {
				n++
			}
		}
	}
	return n
}

// waitingFunctions returns the functions with waiting invocations that are not set aside, by their oldest.
func (w *world) waitingFunctions() []int {
	var functions []int
	for _, in := range w.waiting {
		if !slices.Contains(functions, in.f) && !slices.Contains(w.aside, in.f) {
			functions = append(functions, in.f)
		}
	}
	return functions
}
