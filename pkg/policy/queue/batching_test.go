package queue

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// batchWorld plays random invocations of functions with batches, and checks each decision against its own view of
// the instances: at most Inflight at once, and no joins after the window.
type batchWorld struct {
	t         *rapid.T
	policy    *engine
	charges   *charges
	functions []Function
	window    time.Duration
	now, wake time.Duration
	pending   []timed
	waiting   map[int64]batchCall
	instances map[residency.ID]*batchInstance
	needs     map[int32]time.Duration // functions that wait without a running instance, and since when
	longest   time.Duration           // the longest such wait
	order     int64
	ids       int64
	joined    []int32 // functions whose batches were joined although they execute, in this step
}

type batchCall struct {
	function int32
	at       time.Duration
}

type batchInstance struct {
	function  int32
	calls     map[int64]time.Duration // running: when each began to execute, or its dispatch while the instance is not ready
	ready     bool
	begins    time.Duration // when memory on its way has arrived
	intervals [][2]time.Duration
}

// charges records the charges of an order.
type charges struct {
	order
	total []time.Duration // by function
}

func (c *charges) finished(now time.Duration, f int32, r *run, executed time.Duration) {
	c.total = grown(c.total, int(f)+1)
	c.total[f] += executed
	c.order.finished(now, f, r, executed)
}

// step reports events to the policy and performs its actions.
func (w *batchWorld) step(events ...Event) {
	moved := map[int32]bool{}
	for len(events) > 0 {
		actions := w.policy.Step(w.now, events, nil)
		events = nil
		for i := range actions {
			a := &actions[i]
			if event, needed := a.Confirmation(); needed {
				events = append(events, event)
			}
			switch a.Kind {
			case Wake:
				w.wake = a.At
			case Run:
				w.run(a)
			case Offload, Remove:
				moved[a.Function] = true
			}
		}
	}
	w.measureWaits()
	w.checkJoined(moved)
}

// measureWaits measures for how long a function has invocations that wait, but no instance that runs.
func (w *batchWorld) measureWaits() {
	needs := map[int32]bool{}
	for _, c := range w.waiting {
		needs[c.function] = true
	}
	for _, i := range w.instances {
		if len(i.calls) > 0 {
			delete(needs, i.function)
		}
	}
	for f, since := range w.needs {
		if w.longest = max(w.longest, w.now-since); !needs[f] {
			delete(w.needs, f)
		}
	}
	for f := range needs {
		if _, known := w.needs[f]; !known {
			w.needs[f] = w.now
		}
	}
}

func (w *batchWorld) run(a *Action) {
	f := &w.functions[a.Function]
	i := w.instances[a.Instance]
	if i == nil {
		i = &batchInstance{function: a.Function, calls: map[int64]time.Duration{}}
		w.instances[a.Instance] = i
		begins := w.now + f.Cold - f.Warm
		w.after(begins, func() {
			i.ready, i.begins = true, begins
			for id := range i.calls {
				i.calls[id] = begins
			}
			w.step(&Started{Function: a.Function, Instance: a.Instance, ID: a.ID})
		})
		i.begins = begins
	} else if a.Start == residency.HostWarm {
		i.begins = w.now + f.Load
	}
	if a.Reason.Code == joinsInstance {
		w.checkJoin(a, i)
	}
	if len(i.calls) >= int(f.Inflight) {
		w.t.Fatalf("at %v: invocation %d joins %d others, want at most %d at once", w.now, a.ID, len(i.calls), f.Inflight)
	}
	delete(w.waiting, a.ID)
	i.calls[a.ID] = max(w.now, i.begins)
	takes := time.Duration(rapid.IntRange(1, 10).Draw(w.t, "duration")) * time.Second / 10
	w.after(max(w.now, i.begins)+takes, func() {
		began := i.calls[a.ID]
		delete(i.calls, a.ID)
		i.intervals = append(i.intervals, [2]time.Duration{began, w.now})
		w.step(&Completed{Execution{Function: a.Function, Instance: a.Instance, ID: a.ID, Executed: w.now - began}})
	})
}

// checkJoin notes a function of which an invocation joins a batch that executes, for checkJoined.
func (w *batchWorld) checkJoin(a *Action, on *batchInstance) {
	began := time.Duration(-1) // the latest begin of an invocation on the instance
	for _, at := range on.calls {
		began = max(began, at)
	}
	if on.begins > w.now || began == w.now { // it does not execute yet, or the batch begins now
		return
	}
	w.joined = append(w.joined, a.Function)
}

// checkJoined checks the batches that were joined in a step, at its end: by then, the function that waited longest
// may have got its instance. A function whose only instance has moved in the step was blocked (Max).
func (w *batchWorld) checkJoined(running map[int32]bool) {
	for _, i := range w.instances {
		running[i.function] = running[i.function] || len(i.calls) > 0
	}
	for _, f := range w.joined {
		for g, since := range w.needs {
			if g != f && !running[g] && w.now-since >= w.window {
				w.t.Fatalf("at %v: an invocation joins a batch of function %d, although function %d has waited for an instance since %v, want none after %v",
					w.now, f, g, since, w.window)
			}
		}
	}
	w.joined = w.joined[:0]
}

func (w *batchWorld) after(at time.Duration, do func()) {
	w.order++
	w.pending = append(w.pending, timed{at: at, order: w.order, Event: call{do}})
	slices.SortStableFunc(w.pending, func(a, b timed) int { return cmp.Compare(a.at, b.at) })
}

// call is an event of the world, not of the policy.
type call struct{ do func() }

func (call) event() {}

// union returns the length of the union of intervals, as a plain scan.
func union(intervals [][2]time.Duration) (length time.Duration) {
	slices.SortFunc(intervals, func(a, b [2]time.Duration) int { return cmp.Compare(a[0], b[0]) })
	end := time.Duration(0)
	for _, i := range intervals {
		length += max(i[1]-max(i[0], end), 0)
		end = max(end, i[1])
	}
	return length
}

// TestBatches checks, for random functions and arrivals under each policy, that an instance runs at most Inflight
// invocations at once, that none joins after the batch window, that each function is charged for the union
// of its invocations' intervals on each instance, and that no invocation waits for longer than a turn of each
// function, which lasts at most for the window, the longest execution and the start of an instance.
func TestBatches(t *testing.T) {
	for _, policy := range Names() {
		if policy == "batch" {
			continue // its instances run one invocation at a time
		}
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) { playBatches(t, policy) })
		})
	}
}

func playBatches(t *rapid.T, policy string) {
	config := Config{Policy: policy, Pool: residency.Unlimited, Options: Defaults()}
	config.T = time.Hour // no function is throttled
	p, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	w := &batchWorld{t: t, policy: p.(*engine), wake: Never, waiting: map[int64]batchCall{}, instances: map[residency.ID]*batchInstance{}, needs: map[int32]time.Duration{}}
	w.charges = &charges{order: w.policy.order}
	w.policy.order = w.charges
	w.window = time.Duration(rapid.IntRange(0, 3).Draw(t, "window")) * 400 * time.Millisecond
	fit := rapid.IntRange(1, 3).Draw(t, "functions that fit")
	events := []Event{&GPUSet{Slots: rapid.IntRange(1, 3).Draw(t, "slots"), Mem: int64(fit) * 10}}
	n := rapid.IntRange(2, 4).Draw(t, "functions")
	longest := time.Duration(0)
	for f := range n {
		spec := Function{Warm: time.Duration(rapid.IntRange(1, 10).Draw(t, "warm")) * time.Second / 10, Mem: 10, Weight: 1, Inflight: int32(rapid.IntRange(2, 4).Draw(t, "inflight")),
			Batches: true, BatchWindow: w.window, Max: int32(rapid.IntRange(0, 1).Draw(t, "max")), Load: time.Duration(rapid.IntRange(0, 5).Draw(t, "load")) * time.Second / 10}
		spec.Cold = spec.Warm + spec.Load
		if longest = max(longest, spec.Load); OneAtATime(policy) {
			spec.Model = int32(f + 1)
		}
		w.functions = append(w.functions, spec)
		events = append(events, &FunctionSet{Function: int32(f), Spec: spec})
	}
	w.step(events...)
	arrivals := rapid.IntRange(1, 60).Draw(t, "arrivals")
	for range arrivals {
		at := time.Duration(rapid.IntRange(0, 200).Draw(t, "at")) * 50 * time.Millisecond
		f := int32(rapid.IntRange(0, n-1).Draw(t, "function"))
		w.after(at, func() {
			id := w.ids
			w.ids++
			w.waiting[id] = batchCall{f, w.now}
			w.step(&Arrived{Function: f, ID: id, At: w.now})
		})
	}
	for len(w.pending) > 0 || w.wake < Never {
		if w.wake < Never && (len(w.pending) == 0 || w.wake <= w.pending[0].at) {
			w.now, w.wake = max(w.now, w.wake), Never
			w.step(&Woke{})
			continue
		}
		next := w.pending[0]
		w.pending = w.pending[1:]
		w.now = next.at
		next.Event.(call).do()
	}
	if len(w.waiting) > 0 {
		t.Fatalf("%d invocations wait at the end, want none: %+v", len(w.waiting), w.policy.Snapshot())
	}
	const execution = time.Second
	bound := time.Duration(n-1) * (w.window + execution + longest)
	if yields := newEngine(Config{Policy: policy}).order.prefers(); yields && w.longest > bound {
		t.Fatalf("a function waited for an instance for %v, want at most %v: %d turns of the window, an execution and a start", w.longest, bound, n-1)
	}
	want := make([]time.Duration, n)
	for _, i := range w.instances {
		want[i.function] += union(i.intervals)
	}
	for f := range want {
		got := time.Duration(0)
		if f < len(w.charges.total) {
			got = w.charges.total[f]
		}
		if got != want[f] {
			t.Fatalf("function %d: charged %v, want %v, the union of its invocations' intervals", f, got, want[f])
		}
	}
}

// TestBatchWaitsForRoom checks that while an instance waits until the memory of another one has moved, all invocations
// of its function that it can take wait for it, and none starts a second instance at the expense of a third function.
func TestBatchWaitsForRoom(t *testing.T) {
	for _, policy := range Names() {
		if policy == "batch" || policy == "fcfs-naive" || policy == "exclusive" || OneAtATime(policy) {
			continue // one invocation or instance at a time, or no idle instance remains
		}
		t.Run(policy, func(t *testing.T) {
			p, err := New(Config{Policy: policy, Pool: residency.Unlimited, Options: Defaults()})
			if err != nil {
				t.Fatal(err)
			}
			var runs, leaving []Action
			step := func(now time.Duration, events ...Event) {
				t.Helper()
				runs = runs[:0]
				for _, a := range p.Step(now, events, nil) {
					switch a.Kind {
					case Run:
						runs = append(runs, a)
					case Offload, Remove:
						leaving = append(leaving, a)
					}
				}
			}
			step(0, &GPUSet{Slots: 2, Mem: 20})
			for f := range int32(3) {
				step(0, &FunctionSet{Function: f, Spec: Function{Warm: time.Second, Cold: 2 * time.Second, Mem: 10, Weight: 1, Inflight: 4, Batches: true, BatchWindow: time.Second}})
			}
			for f := range int32(2) { // fill the GPU
				step(0, &Arrived{Function: f, ID: int64(f)})
				r := runs[0]
				step(2*time.Second, &Started{Function: f, Instance: r.Instance, ID: r.ID})
				step(2*time.Second, &Completed{Execution{Function: f, Instance: r.Instance, ID: r.ID, Executed: time.Second}})
			}
			for id := range int64(5) {
				step(3*time.Second, &Arrived{Function: 2, ID: 2 + id, At: 3 * time.Second})
				step(3*time.Second, &Woke{})
				if want := 1 + int(id)/4; len(runs) > 0 || len(leaving) != want { // the fifth does not fit into the batch
					t.Fatalf("%d invocations wait: got the runs %+v, and %+v leave; want no run, and %d to leave", id+1, runs, leaving, want)
				}
			}
			moved, _ := leaving[0].Confirmation()
			if step(4*time.Second, moved); len(runs) != 4 {
				t.Errorf("when there is room: got the runs %+v, want 4 on one instance", runs)
			}
			for _, r := range runs {
				if r.Function != 2 || r.Instance != runs[0].Instance {
					t.Errorf("got a run of function %d on %v, want function 2 on %v", r.Function, r.Instance, runs[0].Instance)
				}
			}
		})
	}
}
