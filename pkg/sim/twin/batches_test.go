package twin

import (
	"cmp"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/sim"
)

// batch is what an instance runs (R28). A function without batches has ones of at most one invocation.
type batch struct {
	takesSlot bool
	started   bool          // its instance started for it
	begins    time.Duration // when its instance has started, or its memory has returned
	members   []*member
	changed   time.Duration // when the number of members changed last
}

type member struct {
	*invocation
	order     int
	remaining float64 // ns of execution alone
	end       time.Duration
}

// executes returns the time from which a member executes.
func (b *batch) executes(m *member) time.Duration { return max(b.begins, m.start) }

// most returns N.
func (w *world) most(f int) int { return max(w.functions[f].Inflight, 1) }

// change changes the members of a batch, which proceed at the speed of R33.
func (w *world) change(t *task, members []*member) {
	b, slope := t.batch, w.functions[t.container.f].BatchSlope
	speed := func() float64 { return 1 / (1 + slope*float64(len(b.members)-1)) }
	for _, m := range b.members {
		m.remaining -= float64(max(w.now-max(b.changed, b.executes(m)), 0)) * speed()
	}
	b.members, b.changed = members, w.now
	for _, m := range b.members {
		m.end = max(w.now, b.executes(m)) + time.Duration(math.Round(max(m.remaining, 0)/speed()))
	}
}

// runBatches implements R1 with batches, for policies without a pool limit, virtual times and interference.
func (w *world) runBatches() {
	w.rules, w.ranUntil = rulesOf(w), make([]time.Duration, len(w.functions))
	arrivals := w.invocations
	for len(arrivals) > 0 || len(w.running) > 0 {
		before := w.now
		w.now = math.MaxInt64
		if len(arrivals) > 0 {
			w.now = arrivals[0].at
		}
		for _, t := range w.running {
			for _, m := range t.batch.members {
				w.now = min(w.now, m.end)
			}
			if t.batch.started && t.batch.begins > before && w.most(t.container.f) > 1 { // its start ends
				w.now = min(w.now, t.batch.begins)
			}
		}
		for w.endOne() {
		}
		for len(arrivals) > 0 && arrivals[0].at == w.now {
			w.arrive(arrivals[0])
			arrivals = arrivals[1:]
		}
		w.decide()
	}
}

// endOne ends the first invocation that is due: by GPU, then by order of start.
func (w *world) endOne() bool {
	var ended *task
	var first *member
	for _, t := range w.running {
		for _, m := range t.batch.members {
			if m.end == w.now && (first == nil || cmp.Or(cmp.Compare(t.gpu, ended.gpu), cmp.Compare(m.order, first.order)) < 0) {
				ended, first = t, m
			}
		}
	}
	if first == nil {
		return false
	}
	first.completed, first.finished = w.now, true
	w.ranUntil[first.f] = w.now
	b := ended.batch
	w.change(ended, slices.DeleteFunc(slices.Clone(b.members), func(m *member) bool { return m == first }))
	if len(b.members) == 0 {
		w.running = slices.DeleteFunc(w.running, func(t *task) bool { return t == ended })
		w.finished++
		ended.container.busy, ended.container.finished = false, w.finished
	}
	return true
}

// decide dispatches invocations until none can start. As memory moves at once, no instance waits for it (R29).
func (w *world) decide() {
	for {
		in, gpu := w.rules.pick(w)
		if in == nil {
			break
		}
		others := w.yields(in.f)
		if gpu < 0 {
			others = others || w.most(in.f) > 1 && w.runs(in.f)
		} else if _, k := w.cost(in.f, gpu); k != gpuWarm {
			others = others || w.spare(in.f) != nil
		}
		if others {
			w.aside = append(w.aside, in.f)
			continue
		}
		if gpu < 0 {
			break
		}
		w.begin(in.f, gpu)
	}
	w.aside = nil
	for f := range w.functions {
		if w.most(f) > 1 {
			w.extend(f)
		}
	}
}

// begin begins a batch (R29). It takes a slot, unless all are taken (R30).
func (w *world) begin(f, gpu int) {
	d, k := w.cost(f, gpu)
	takes := w.slots(gpu) < w.d
	in := w.head(f)
	t := &task{gpu: gpu, container: w.occupy(f, gpu), batch: &batch{takesSlot: takes, started: k == cold, begins: w.now + d - w.functions[f].Warm, changed: w.now}}
	w.running = append(w.running, t)
	w.join(t, k)
	w.rules.started(w, in, gpu, d)
	for w.queued(f) > 0 && len(t.batch.members) < w.most(f) {
		w.join(t, gpuWarm)
	}
}

// join adds the oldest waiting invocation of its function to a batch.
func (w *world) join(t *task, k kind) {
	in := w.head(t.container.f)
	w.waiting = slices.DeleteFunc(w.waiting, func(other *invocation) bool { return other == in })
	in.start, in.kind, in.gpu = w.now, k, t.gpu
	w.change(t, append(slices.Clone(t.batch.members), &member{invocation: in, order: w.order, remaining: float64(w.functions[in.f].Warm)}))
	w.order++
}

// extend lets waiting invocations of a function join its batches, and begin others without a slot (R29, R30).
func (w *world) extend(f int) {
	closed := w.closed(f)
	for w.queued(f) > 0 {
		t := w.spare(f)
		if t == nil || closed && t.batch.begins <= w.now {
			break
		}
		w.join(t, gpuWarm)
	}
	for !closed && w.queued(f) > 0 {
		gpu := w.beside(f)
		if gpu < 0 {
			break
		}
		w.begin(f, gpu)
	}
}

// beside returns the GPU of R30, or -1.
func (w *world) beside(f int) int {
	for g := range w.gpus {
		if b := w.best(f, g); b != nil && b.resident {
			return g
		}
	}
	if slices.ContainsFunc(w.containers, func(b *container) bool { return b.f == f }) {
		return -1
	}
	for g := range w.gpus {
		if w.memory == 0 || w.used(g)+w.functions[f].MemMiB <= w.memory {
			return g
		}
	}
	return -1
}

func (w *world) runs(f int) bool {
	return slices.ContainsFunc(w.running, func(t *task) bool { return t.container.f == f })
}

// spare returns the running batch of a function with the fewest members, among those that are not full, or nil. Of
// several, it is the one with the oldest instance.
func (w *world) spare(f int) (best *task) {
	for _, b := range w.containers {
		for _, t := range w.running {
			if t.container == b && b.f == f && len(t.batch.members) < w.most(f) && (best == nil || len(t.batch.members) < len(best.batch.members)) {
				best = t
			}
		}
	}
	return best
}

// since returns since when a function waits for an instance (R28), and false if it does not.
func (w *world) since(f int) (time.Duration, bool) {
	head := w.head(f)
	if head == nil || w.runs(f) {
		return 0, false
	}
	return max(head.at, w.ranUntil[f]), true
}

// closed reports whether another function has waited for the batch window.
func (w *world) closed(f int) bool {
	for other := range w.functions {
		if since, waits := w.since(other); waits && other != f && w.now-since >= w.window {
			return true
		}
	}
	return false
}

// yields implements R31.
func (w *world) yields(f int) bool {
	if w.policy != "sjf" || w.most(f) == 1 {
		return false
	}
	own := max(w.head(f).at, w.ranUntil[f])
	for other := range w.functions {
		if since, waits := w.since(other); waits && since < own && w.now-since >= w.window {
			return true
		}
	}
	return false
}

// TestBatchesAgainstTwin compares batches with the twin, under the policies whose choices do not depend on charges.
func TestBatchesAgainstTwin(t *testing.T) {
	for _, policy := range []string{"fcfs", "sjf", "eevdf"} {
		t.Run(policy, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { compareBatches(t, policy) })
		})
	}
}

func compareBatches(t *rapid.T, policy string) {
	unit := rapid.SampledFrom([]time.Duration{time.Millisecond, 300 * time.Millisecond}).Draw(t, "unit")
	functions := drawFunctions(t, unit)
	for i := range functions {
		functions[i].Warm += unit // executions and starts that take no time end in another round of R1
		functions[i].Cold += 2 * unit
		functions[i].Inflight = rapid.SampledFrom([]int{1, 2, 2, 3, 8}).Draw(t, "inflight")
		functions[i].BatchSlope = rapid.SampledFrom([]float64{0, 0.1, 0.5, 1}).Draw(t, "slope")
	}
	rows := drawRows(t, len(functions), unit)
	s := drawSettings(t, policy)
	s.pool, s.interference = -1, 0
	s.window = time.Duration(rapid.SampledFrom([]int{0, 10, 60, 100000}).Draw(t, "window")) * unit
	t.Logf("%+v\n%+v\n%v", s, functions, rows)
	w := newWorld(s, functions, rows)
	w.runBatches()

	result, got := simulate(t, s, functions, rows)
	w.starts(t, got)
	for _, f := range result.Functions {
		w.latency(t, f)
	}
}

// latency compares the latency of one function.
func (w *world) latency(t *rapid.T, got sim.FunctionResult) {
	sum, n := 0., 0.
	for _, in := range w.invocations {
		if w.functions[in.f].Name == got.Function && !in.rejected {
			sum += float64(in.completed-in.at) / 1e6
			n++
		}
	}
	if mean := sum / max(n, 1); math.Abs(mean-got.MeanMS) > 1e-6 {
		t.Fatalf("mean latency of %s: got %v ms, want %v ms, as in the twin", got.Function, got.MeanMS, mean)
	}
}
