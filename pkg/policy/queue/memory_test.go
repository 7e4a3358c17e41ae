package queue_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// memory drives a policy with functions 0 and 1, which request mem bytes each, and one GPU.
type memory struct {
	t      *testing.T
	policy queue.Policy
	mem    int64
	now    time.Duration
	calls  int64
	ran    map[int64]residency.ID // by call: its latest instance
	parks  bool                   // offloads succeed
}

// on returns the latest instance of a call.
func (w *memory) on(call int64) residency.ID { return w.ran[call] }

func newMemory(t *testing.T, policy string, gpu, mem int64) *memory {
	p, err := queue.New(queue.Config{Policy: policy, Pool: residency.Unlimited, Options: queue.Defaults()})
	if err != nil {
		t.Fatal(err)
	}
	w := &memory{t: t, policy: p, mem: mem, ran: map[int64]residency.ID{}}
	w.step(&queue.GPUSet{Slots: 4, Mem: gpu},
		&queue.FunctionSet{Spec: *w.spec(0)}, &queue.FunctionSet{Function: 1, Spec: *w.spec(0)})
	return w
}

func (w *memory) spec(need int64) *queue.Function {
	return &queue.Function{Warm: 10 * time.Millisecond, Load: time.Second, Cold: 2 * time.Second, Mem: w.mem, MeasuredMem: need, Weight: 1}
}

// step reports events to the policy one second later, and returns its actions. Instances stop at
// once.
func (w *memory) step(events ...queue.Event) string {
	w.now += time.Second
	var actions []string
	var lost []queue.Event
	for _, a := range w.policy.Step(w.now, events, nil) {
		switch a.Kind {
		case queue.Run, queue.Reject:
			actions = append(actions, fmt.Sprintf("%v %d", a.Kind, a.ID))
			w.ran[a.ID] = a.Instance
		case queue.Remove:
			actions = append(actions, fmt.Sprintf("remove %d", a.Function))
			lost = append(lost, &queue.Lost{Instance: a.Instance, Function: a.Function})
		case queue.Offload:
			actions = append(actions, fmt.Sprintf("offload %d", a.Function))
			lost = append(lost, &queue.Moved{Instance: a.Instance, Function: a.Function, To: residency.HostWarm, Failed: !w.parks})
		}
	}
	if len(lost) > 0 {
		if more := w.step(lost...); more != "" {
			actions = append(actions, more)
		}
	}
	return strings.Join(actions, ", ")
}

func (w *memory) arrives(function int32) string {
	w.calls++
	return w.step(&queue.Arrived{Function: function, ID: w.calls, At: w.now + time.Second})
}

// instance returns the only instance of a function.
func (w *memory) instance(function int32) residency.ID {
	w.t.Helper()
	for _, i := range w.policy.Snapshot().Instances {
		if i.Function == function {
			return i.Instance
		}
	}
	w.t.Fatalf("function %d has no instance, want one", function)
	return residency.None
}

// idle runs a call of function 0 to its end, and returns the instance.
func (w *memory) idle() residency.ID {
	w.t.Helper()
	w.expect(w.arrives(0), fmt.Sprintf("run %d", w.calls))
	id := w.instance(0)
	w.step(&queue.Started{Instance: id, ID: w.calls}, &queue.Completed{Execution: queue.Execution{Instance: id, ID: w.calls, Executed: time.Millisecond}})
	return id
}

func (w *memory) expect(got, want string) {
	w.t.Helper()
	if got != want {
		w.t.Errorf("%q, want %q", got, want)
	}
}

// TestMemoryMeasured checks that measurements count, not only requests: function 1 evicts the
// idle instance of function 0 although their requests would fit together.
func TestMemoryMeasured(t *testing.T) {
	const beside, evicts = "run 2", "offload 0, remove 0, run 2"
	for _, c := range []struct {
		name string
		mem  int64
		tell func(w *memory, id residency.ID) []queue.Event
		want string
	}{
		{"as they ask", 4, func(*memory, residency.ID) []queue.Event { return nil }, beside},
		{"an instance takes more", 4, func(_ *memory, id residency.ID) []queue.Event {
			return []queue.Event{&queue.Measured{Instance: id, Mem: 7}}
		}, evicts},
		{"an instance takes less than it was promised", 6, func(_ *memory, id residency.ID) []queue.Event {
			return []queue.Event{&queue.Measured{Instance: id, Mem: 1}}
		}, evicts},
		{"it took more before", 4, func(_ *memory, id residency.ID) []queue.Event {
			return []queue.Event{&queue.Measured{Instance: id, Mem: 7}, &queue.Measured{Instance: id, Mem: 5}}
		}, beside},
		{"an instance whose function asks for none takes all", 0, func(_ *memory, id residency.ID) []queue.Event {
			return []queue.Event{&queue.Measured{Instance: id, Mem: 9}, &queue.Learned{Function: 1, Spec: queue.Function{MeasuredMem: 2}}}
		}, evicts},
		{"a new instance needs more", 4, func(w *memory, _ residency.ID) []queue.Event {
			return []queue.Event{&queue.Learned{Function: 1, Spec: *w.spec(7)}}
		}, evicts},
		{"a new instance needs more than the GPU has", 4, func(w *memory, _ residency.ID) []queue.Event {
			return []queue.Event{&queue.Learned{Function: 1, Spec: *w.spec(70)}}
		}, evicts},
		{"other programs take memory", 4, func(*memory, residency.ID) []queue.Event {
			return []queue.Event{&queue.GPUSet{Slots: 4, Mem: 7}}
		}, evicts},
		{"other programs take so much that a call cannot run", 4, func(*memory, residency.ID) []queue.Event {
			return []queue.Event{&queue.GPUSet{Slots: 4, Mem: 3}}
		}, "reject 2"},
		{"they gave it back", 4, func(*memory, residency.ID) []queue.Event {
			return []queue.Event{&queue.GPUSet{Slots: 4, Mem: 7}, &queue.GPUSet{Slots: 4, Mem: 10}}
		}, beside},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newMemory(t, "gfaas", 10, c.mem)
			w.step(c.tell(w, w.idle())...)
			w.expect(w.arrives(1), c.want)
		})
	}
}

// TestMemoryStays checks that memory which an instance on the host keeps on the GPU counts, and
// that the instance stops if another one needs that memory.
func TestMemoryStays(t *testing.T) {
	for stays, want := range map[int64]string{0: "offload 0, run 2", 2: "offload 0, run 2", 3: "offload 0, remove 0, run 2"} {
		w := newMemory(t, "gfaas", 10, 4)
		w.parks = true
		w.step(&queue.Measured{Instance: w.idle(), Mem: 4 + stays, Residual: stays},
			&queue.Learned{Function: 1, Spec: *w.spec(8)})
		w.expect(w.arrives(1), want)
	}
	// Several instances on the host are evicted one after another.
	w := newMemory(t, "gfaas", 10, 1)
	w.parks = true
	for f := range int32(3) {
		w.step(&queue.FunctionSet{Function: f, Spec: *w.spec(0)}, &queue.Adopted{Instance: residency.ID(-2 - f), Function: f, To: residency.HostWarm},
			&queue.Measured{Instance: residency.ID(-2 - f), Function: f, Mem: 3, Residual: 2})
	}
	w.step(&queue.FunctionSet{Function: 3, Spec: *w.spec(7)})
	w.expect(w.arrives(3), "remove 0, remove 1, run 1")
	w.expect(w.arrives(2), "run 2") // its memory returns
}

// TestMemoryShort checks that a start which failed for lack of GPU memory is repeated after idle
// instances were evicted. If there is no idle instance, it counts as a failed start.
func TestMemoryShort(t *testing.T) {
	failed := func(w *memory, short bool) string {
		return w.step(&queue.Failed{Execution: queue.Execution{ID: w.calls, Function: 1, Instance: w.instance(1)}, Starting: true, OutOfMemory: short, Requeue: true})
	}
	for _, policy := range queue.Names() {
		t.Run(policy, func(t *testing.T) {
			w := newMemory(t, policy, 10, 4)
			w.idle()
			if policy != "exclusive" && policy != "fcfs-naive" { // these policies keep no idle instance of another function
				w.expect(w.arrives(1), "run 2")
				if got := failed(w, memoryShort); !strings.HasSuffix(got, "remove 0, run 2") {
					t.Errorf("after a start short of GPU memory: got %q, want remove 0, run 2 at the end", got)
				}
			} else {
				w.arrives(1)
			}
			w.expect(failed(w, memoryShort), "run 2")
			w.expect(failed(w, memoryShort), "run 2")
			w.expect(failed(w, memoryShort), "reject 2") // there is no other instance to evict
		})
	}
	t.Run("not short", func(t *testing.T) {
		w := newMemory(t, "gfaas", 10, 4)
		w.idle()
		w.arrives(1)
		for range 2 {
			w.expect(failed(w, memorySufficed), "run 2")
		}
		w.expect(failed(w, memorySufficed), "reject 2")
		w.expect(w.arrives(0), "run 3") // its instance still exists
	})
	t.Run("no limit", func(t *testing.T) {
		w := newMemory(t, "gfaas", 0, 4)
		w.idle()
		w.arrives(1)
		for range 2 {
			w.expect(failed(w, memoryShort), "run 2")
		}
		w.expect(failed(w, memoryShort), "reject 2")
	})
	t.Run("one that runs makes room when it has ended", func(t *testing.T) {
		w := newMemory(t, "gfaas", 10, 4)
		w.expect(w.arrives(0), "run 1")
		id := w.instance(0)
		w.step(&queue.Started{Instance: id, ID: 1})
		w.expect(w.arrives(1), "run 2")
		w.expect(failed(w, memoryShort), "")
		w.expect(w.step(&queue.Completed{Execution: queue.Execution{Instance: id, ID: 1, Executed: time.Second}}), "offload 0, remove 0, run 2")
	})
	t.Run("kept ready", func(t *testing.T) {
		w := newMemory(t, "gfaas", 10, 4)
		w.idle()
		f := w.spec(0)
		f.Min = 1
		starts := func(events ...queue.Event) (n int) {
			w.now += time.Second
			for _, a := range w.policy.Step(w.now, events, nil) {
				if a.Kind == queue.Start {
					n++
				}
			}
			return n
		}
		if n := starts(&queue.FunctionSet{Function: 1, Spec: *f}); n != 1 {
			t.Fatalf("starts for a function with min 1: got %d, want 1", n)
		}
		if n := starts(&queue.Lost{Instance: w.instance(1), Function: 1, OutOfMemory: true}); n != 0 {
			t.Errorf("starts without room beside the idle instance: got %d, want 0", n)
		}
	})
}

// TestStartingElsewhere checks that an instance counts while another process starts it, and that
// calls wait for it.
func TestStartingElsewhere(t *testing.T) {
	starting := func() *queue.Adopted {
		return &queue.Adopted{Instance: -2, Function: 1, To: residency.GPUWarm, Pinned: true, Starting: true}
	}
	for _, policy := range queue.Names() {
		t.Run(policy, func(t *testing.T) {
			w := newMemory(t, policy, 10, 4)
			w.step(starting())
			for range 3 {
				w.expect(w.arrives(1), "")
			}
			if n := len(w.policy.Snapshot().Instances); n != 1 {
				t.Errorf("instances during a start elsewhere: got %d, want 1", n)
			}
			got := w.step(&queue.Ready{Instance: -2, Function: 1, Warm: time.Millisecond})
			if !strings.HasPrefix(got, "run 1") || w.on(1) != -2 {
				t.Errorf("ready after a start elsewhere: got %q, invocation 1 on instance %d; want run 1 on instance -2", got, w.on(1))
			}

			w = newMemory(t, policy, 10, 4) // its start fails
			w.step(starting())
			w.expect(w.arrives(1), "")
			w.expect(w.step(&queue.Lost{Instance: -2, Function: 1}), "run 1")

			w = newMemory(t, policy, 10, 4) // its function is removed first
			w.step(starting())
			w.expect(w.arrives(1), "")
			w.expect(w.step(&queue.FunctionRemoved{Function: 1}), "reject 1, remove 1")
			w.expect(w.step(&queue.Ready{Instance: -2, Function: 1}), "")
			w.expect(w.arrives(0), "run 2")
		})
	}
	t.Run("its memory", func(t *testing.T) {
		w := newMemory(t, "gfaas", 10, 4)
		w.idle()
		more := starting()
		more.Mem = 8
		w.expect(w.step(more), "offload 0, remove 0")
		w.expect(w.arrives(0), "")
		w.expect(w.step(&queue.Lost{Instance: -2, Function: 1}), "run 2")
	})
	t.Run("a call that waits for room", func(t *testing.T) {
		w := newMemory(t, "gfaas", 10, 6)
		w.idle()
		w.calls++
		w.policy.Step(w.now, []queue.Event{&queue.Arrived{Function: 1, ID: w.calls, At: w.now}}, nil) // it waits for the memory of function 0
		more := starting()
		more.GPU = 1
		w.expect(w.step(&queue.GPUSet{GPU: 1, Slots: 1, Mem: 10}, more), "")
		if s := w.policy.Snapshot().Functions[1]; s.Waiting != 1 || s.Instances != 1 {
			t.Errorf("function 1: got %+v, want Waiting 1 and Instances 1", s)
		}
		w.expect(w.step(&queue.Ready{Instance: -2, Function: 1}), "run 2")
	})
	t.Run("several, and idle ones", func(t *testing.T) {
		w := newMemory(t, "gfaas", 10, 1)
		w.idle()
		second, third := starting(), starting()
		second.Function, second.Instance = 0, -3
		third.Function, third.Instance = 0, -4
		w.step(second, third)
		w.expect(w.arrives(0), "run 2") // on the idle instance
		w.expect(w.arrives(0), "")
		w.expect(w.step(&queue.Lost{Instance: -3}), "")
		w.expect(w.step(&queue.Lost{Instance: -4}), "run 3")
	})
	t.Run("after failures", func(t *testing.T) {
		w := newMemory(t, "gfaas", 10, 4)
		w.arrives(1)
		for range 3 {
			w.step(&queue.Failed{Execution: queue.Execution{ID: 1, Function: 1, Instance: w.instance(1)}, Starting: true, Requeue: true})
		}
		w.now -= time.Second
		w.expect(w.arrives(1), "reject 2")
		w.now -= time.Second
		w.step(starting())
		w.now -= time.Second
		w.expect(w.arrives(1), "")
		w.expect(w.step(&queue.Ready{Instance: -2, Function: 1}), "run 3")
	})
}
