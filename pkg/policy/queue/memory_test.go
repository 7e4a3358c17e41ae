package queue_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// memory is a policy with functions 0 and 1, which ask for mem bytes each, on one GPU.
type memory struct {
	t      *testing.T
	policy queue.Policy
	mem    int64
	now    time.Duration
	calls  int64
	ran    map[int64]residency.ID // by call, where it was sent last
	parks  bool                   // memory goes to the host when it is told to
}

// on returns the instance that a call was sent to last.
func (w *memory) on(call int64) residency.ID { return w.ran[call] }

func newMemory(t *testing.T, policy string, gpu, mem int64) *memory {
	p, err := queue.New(queue.Config{Policy: policy, Pool: residency.Unlimited, Options: queue.Defaults()})
	if err != nil {
		t.Fatal(err)
	}
	w := &memory{t: t, policy: p, mem: mem, ran: map[int64]residency.ID{}}
	w.step(queue.Event{Kind: queue.GPUSet, Machine: &queue.GPU{Slots: 4, Mem: gpu}},
		queue.Event{Kind: queue.FunctionSet, Spec: w.spec(0)}, queue.Event{Kind: queue.FunctionSet, Function: 1, Spec: w.spec(0)})
	return w
}

func (w *memory) spec(need int64) *queue.Function {
	return &queue.Function{Warm: 10 * time.Millisecond, Load: time.Second, Cold: 2 * time.Second, Mem: w.mem, Need: need, Weight: 1}
}

// step tells the policy events, a second after those before, and returns what it does.
// Instances leave as soon as they are told to.
func (w *memory) step(events ...queue.Event) string {
	w.now += time.Second
	var did []string
	var lost []queue.Event
	for _, a := range w.policy.Step(w.now, events, nil) {
		switch a.Kind {
		case queue.Run, queue.Reject:
			did = append(did, fmt.Sprintf("%v %d", a.Kind, a.ID))
			w.ran[a.ID] = a.Instance
		case queue.Remove:
			did = append(did, fmt.Sprintf("remove %d", a.Function))
			lost = append(lost, queue.Event{Kind: queue.Lost, Instance: a.Instance, Function: a.Function})
		case queue.Offload:
			did = append(did, fmt.Sprintf("offload %d", a.Function))
			lost = append(lost, queue.Event{Kind: queue.Moved, Instance: a.Instance, Function: a.Function, To: residency.HostWarm, Fault: !w.parks})
		}
	}
	if len(lost) > 0 {
		if more := w.step(lost...); more != "" {
			did = append(did, more)
		}
	}
	return strings.Join(did, ", ")
}

func (w *memory) arrives(function int32) string {
	w.calls++
	return w.step(queue.Event{Kind: queue.Arrived, Function: function, ID: w.calls, At: w.now + time.Second})
}

// instance returns the only instance of a function.
func (w *memory) instance(function int32) residency.ID {
	w.t.Helper()
	for _, i := range w.policy.Snapshot().Instances {
		if i.Function == function {
			return i.Instance
		}
	}
	w.t.Fatalf("function %d has no instance", function)
	return residency.None
}

// idle has function 0 run a call and become idle.
func (w *memory) idle() residency.ID {
	w.t.Helper()
	w.want(w.arrives(0), fmt.Sprintf("run %d", w.calls))
	id := w.instance(0)
	w.step(queue.Event{Kind: queue.Started, Instance: id, ID: w.calls}, queue.Event{Kind: queue.Completed, Instance: id, ID: w.calls, Executed: time.Millisecond})
	return id
}

func (w *memory) want(got, want string) {
	w.t.Helper()
	if got != want {
		w.t.Errorf("%q, want %q", got, want)
	}
}

// TestMemoryMeasured: memory counts as it was measured, not only as functions ask for
// it: the idle instance of function 0 makes room for function 1 where both would fit by
// what they ask for.
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
			return []queue.Event{{Kind: queue.Measured, Instance: id, Mem: 7}}
		}, evicts},
		{"an instance takes less than it was promised", 6, func(_ *memory, id residency.ID) []queue.Event {
			return []queue.Event{{Kind: queue.Measured, Instance: id, Mem: 1}}
		}, evicts},
		{"it took more before", 4, func(_ *memory, id residency.ID) []queue.Event {
			return []queue.Event{{Kind: queue.Measured, Instance: id, Mem: 7}, {Kind: queue.Measured, Instance: id, Mem: 5}}
		}, beside},
		{"an instance whose function asks for none takes all", 0, func(_ *memory, id residency.ID) []queue.Event {
			return []queue.Event{{Kind: queue.Measured, Instance: id, Mem: 9}, {Kind: queue.Learned, Function: 1, Spec: &queue.Function{Need: 2}}}
		}, evicts},
		{"a new instance needs more", 4, func(w *memory, _ residency.ID) []queue.Event {
			return []queue.Event{{Kind: queue.Learned, Function: 1, Spec: w.spec(7)}}
		}, evicts},
		{"a new instance needs more than the GPU has", 4, func(w *memory, _ residency.ID) []queue.Event {
			return []queue.Event{{Kind: queue.Learned, Function: 1, Spec: w.spec(70)}}
		}, evicts},
		{"other programs take memory", 4, func(*memory, residency.ID) []queue.Event {
			return []queue.Event{{Kind: queue.GPUSet, Machine: &queue.GPU{Slots: 4, Mem: 7}}}
		}, evicts},
		{"other programs take so much that a call cannot run", 4, func(*memory, residency.ID) []queue.Event {
			return []queue.Event{{Kind: queue.GPUSet, Machine: &queue.GPU{Slots: 4, Mem: 3}}}
		}, "reject 2"},
		{"they gave it back", 4, func(*memory, residency.ID) []queue.Event {
			return []queue.Event{{Kind: queue.GPUSet, Machine: &queue.GPU{Slots: 4, Mem: 7}}, {Kind: queue.GPUSet, Machine: &queue.GPU{Slots: 4, Mem: 10}}}
		}, beside},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newMemory(t, "gfaas", 10, c.mem)
			w.step(c.tell(w, w.idle())...)
			w.want(w.arrives(1), c.want)
		})
	}
}

// TestMemoryStays: what stays on the GPU of an instance whose memory is on the host
// counts, and the instance stops where that is in the way.
func TestMemoryStays(t *testing.T) {
	for stays, want := range map[int64]string{0: "offload 0, run 2", 2: "offload 0, run 2", 3: "offload 0, remove 0, run 2"} {
		w := newMemory(t, "gfaas", 10, 4)
		w.parks = true
		w.step(queue.Event{Kind: queue.Measured, Instance: w.idle(), Mem: 4 + stays, Stays: stays},
			queue.Event{Kind: queue.Learned, Function: 1, Spec: w.spec(8)})
		w.want(w.arrives(1), want)
	}
	// Several that are on the host make room, one after the other.
	w := newMemory(t, "gfaas", 10, 1)
	w.parks = true
	for f := range int32(3) {
		w.step(queue.Event{Kind: queue.FunctionSet, Function: f, Spec: w.spec(0)}, queue.Event{Kind: queue.Adopted, Instance: residency.ID(-2 - f), Function: f, To: residency.HostWarm},
			queue.Event{Kind: queue.Measured, Instance: residency.ID(-2 - f), Function: f, Mem: 3, Stays: 2})
	}
	w.step(queue.Event{Kind: queue.FunctionSet, Function: 3, Spec: w.spec(7)})
	w.want(w.arrives(3), "remove 0, remove 1, run 1")
	w.want(w.arrives(2), "run 2") // the third is back
}

// TestMemoryShort: a start that failed because the GPU had too little memory has what
// idles make room and is made again. Without anything to make room it counts as a
// failure.
func TestMemoryShort(t *testing.T) {
	failed := func(w *memory, short bool) string {
		return w.step(queue.Event{Kind: queue.Failed, ID: w.calls, Function: 1, Instance: w.instance(1), Starting: true, Short: short, Again: true})
	}
	for _, policy := range queue.Names() {
		t.Run(policy, func(t *testing.T) {
			w := newMemory(t, policy, 10, 4)
			w.idle()
			if policy != "exclusive" && policy != "fcfs-naive" { // under them nothing idles beside another function
				w.want(w.arrives(1), "run 2")
				if got := failed(w, true); !strings.HasSuffix(got, "remove 0, run 2") {
					t.Errorf("short of memory: %q", got)
				}
			} else {
				w.arrives(1)
			}
			w.want(failed(w, true), "run 2")
			w.want(failed(w, true), "run 2")
			w.want(failed(w, true), "reject 2") // nothing else is there
		})
	}
	t.Run("not short", func(t *testing.T) {
		w := newMemory(t, "gfaas", 10, 4)
		w.idle()
		w.arrives(1)
		for range 2 {
			w.want(failed(w, false), "run 2")
		}
		w.want(failed(w, false), "reject 2")
		w.want(w.arrives(0), "run 3") // still there
	})
	t.Run("no limit", func(t *testing.T) {
		w := newMemory(t, "gfaas", 0, 4)
		w.idle()
		w.arrives(1)
		for range 2 {
			w.want(failed(w, true), "run 2")
		}
		w.want(failed(w, true), "reject 2")
	})
	t.Run("one that runs makes room when it has ended", func(t *testing.T) {
		w := newMemory(t, "gfaas", 10, 4)
		w.want(w.arrives(0), "run 1")
		id := w.instance(0)
		w.step(queue.Event{Kind: queue.Started, Instance: id, ID: 1})
		w.want(w.arrives(1), "run 2")
		w.want(failed(w, true), "")
		w.want(w.step(queue.Event{Kind: queue.Completed, Instance: id, ID: 1, Executed: time.Second}), "offload 0, remove 0, run 2")
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
		if n := starts(queue.Event{Kind: queue.FunctionSet, Function: 1, Spec: f}); n != 1 {
			t.Fatalf("%d starts", n)
		}
		if n := starts(queue.Event{Kind: queue.Lost, Instance: w.instance(1), Function: 1, Short: true}); n != 0 {
			t.Errorf("%d starts although there is no room beside what idles", n)
		}
	})
}

// TestStartingElsewhere: an instance that another process starts counts from its start
// on, and calls wait for it.
func TestStartingElsewhere(t *testing.T) {
	starting := queue.Event{Kind: queue.Adopted, Instance: -2, Function: 1, To: residency.GPUWarm, Pinned: true, Starting: true}
	for _, policy := range queue.Names() {
		t.Run(policy, func(t *testing.T) {
			w := newMemory(t, policy, 10, 4)
			w.step(starting)
			for range 3 {
				w.want(w.arrives(1), "")
			}
			if n := len(w.policy.Snapshot().Instances); n != 1 {
				t.Errorf("%d instances", n)
			}
			got := w.step(queue.Event{Kind: queue.Ready, Instance: -2, Function: 1, Spec: &queue.Function{Warm: time.Millisecond}})
			if !strings.HasPrefix(got, "run 1") || w.on(1) != -2 {
				t.Errorf("%q, on %d", got, w.on(1))
			}

			w = newMemory(t, policy, 10, 4) // it does not become ready
			w.step(starting)
			w.want(w.arrives(1), "")
			w.want(w.step(queue.Event{Kind: queue.Lost, Instance: -2, Function: 1}), "run 1")

			w = newMemory(t, policy, 10, 4) // its function goes first
			w.step(starting)
			w.want(w.arrives(1), "")
			w.want(w.step(queue.Event{Kind: queue.FunctionGone, Function: 1}), "reject 1, remove 1")
			w.want(w.step(queue.Event{Kind: queue.Ready, Instance: -2, Function: 1}), "")
			w.want(w.arrives(0), "run 2")
		})
	}
	t.Run("its memory", func(t *testing.T) {
		w := newMemory(t, "gfaas", 10, 4)
		w.idle()
		more := starting
		more.Mem = 8
		w.want(w.step(more), "offload 0, remove 0")
		w.want(w.arrives(0), "")
		w.want(w.step(queue.Event{Kind: queue.Lost, Instance: -2, Function: 1}), "run 2")
	})
	t.Run("a call that waits for room", func(t *testing.T) {
		w := newMemory(t, "gfaas", 10, 6)
		w.idle()
		w.calls++
		w.policy.Step(w.now, []queue.Event{{Kind: queue.Arrived, Function: 1, ID: w.calls, At: w.now}}, nil) // once function 0 has left
		more := starting
		more.GPU = 1
		w.want(w.step(queue.Event{Kind: queue.GPUSet, GPU: 1, Machine: &queue.GPU{Slots: 1, Mem: 10}}, more), "")
		if s := w.policy.Snapshot().Functions[1]; s.Waiting != 1 || s.Instances != 1 {
			t.Errorf("%+v", s)
		}
		w.want(w.step(queue.Event{Kind: queue.Ready, Instance: -2, Function: 1}), "run 2")
	})
	t.Run("several, and idle ones", func(t *testing.T) {
		w := newMemory(t, "gfaas", 10, 1)
		w.idle()
		second := starting
		second.Function, second.Instance = 0, -3
		third := second
		third.Instance = -4
		w.step(second, third)
		w.want(w.arrives(0), "run 2") // on the one that idles
		w.want(w.arrives(0), "")
		w.want(w.step(queue.Event{Kind: queue.Lost, Instance: -3}), "")
		w.want(w.step(queue.Event{Kind: queue.Lost, Instance: -4}), "run 3")
	})
	t.Run("after failures", func(t *testing.T) {
		w := newMemory(t, "gfaas", 10, 4)
		w.arrives(1)
		for range 3 {
			w.step(queue.Event{Kind: queue.Failed, ID: 1, Function: 1, Instance: w.instance(1), Starting: true, Again: true})
		}
		w.now -= time.Second
		w.want(w.arrives(1), "reject 2")
		w.now -= time.Second
		w.step(starting)
		w.now -= time.Second
		w.want(w.arrives(1), "")
		w.want(w.step(queue.Event{Kind: queue.Ready, Instance: -2, Function: 1}), "run 3")
	})
}
