package queue_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// plans drives a policy with one GPU of one slot and two functions, which take 100 ms, or 2.1 s
// with a cold start.
type plans struct {
	t      *testing.T
	policy queue.Policy
	calls  int64
}

func newPlans(t *testing.T, policy string) *plans {
	p, err := queue.New(queue.Config{Policy: policy, Pool: residency.Unlimited, Options: queue.Defaults()})
	if err != nil {
		t.Fatal(err)
	}
	spec := &queue.Function{Warm: 100 * time.Millisecond, Cold: 2100 * time.Millisecond, Load: time.Second, Weight: 1}
	w := &plans{t: t, policy: p}
	w.step(0, &queue.GPUSet{Slots: 1},
		&queue.FunctionSet{Spec: *spec}, &queue.FunctionSet{Function: 1, Spec: *spec})
	return w
}

// adopt adds a planned instance of function 0 with that duration per invocation. IDs are -2, -3,
// ….
func (w *plans) adopt(id residency.ID, each time.Duration) {
	w.step(0, &queue.Adopted{Instance: id, To: residency.GPUWarm, Pinned: true, Warm: each})
}

// step reports events and returns the dispatches and the next Wake.
func (w *plans) step(now time.Duration, events ...queue.Event) (dispatches string) {
	for _, a := range w.policy.Step(now, events, nil) {
		switch a.Kind {
		case queue.Run:
			dispatches += fmt.Sprintf("%d on %d;", a.ID, a.Instance)
		case queue.Wake:
			if a.At < queue.Never {
				dispatches += fmt.Sprintf("wake %v;", a.At)
			}
		case queue.Remove: // policies without warm instances
		default:
			w.t.Errorf("at %v: got action %+v, want only Run, Wake and Remove", now, a)
		}
	}
	return dispatches
}

func (w *plans) arrives(now time.Duration, function int32) string {
	w.calls++
	return w.step(now, &queue.Arrived{Function: function, ID: w.calls, At: now})
}

func (w *plans) completes(now time.Duration, id int64, instance residency.ID, executed time.Duration) string {
	return w.step(now, &queue.Completed{Execution: queue.Execution{ID: id, Instance: instance, Executed: executed}})
}

func (w *plans) expect(got, want string) {
	w.t.Helper()
	if got != want {
		w.t.Errorf("%q, want %q", got, want)
	}
}

// TestPlannedBeside checks under every policy that planned instances run in addition to others
// and take no slot.
func TestPlannedBeside(t *testing.T) {
	for _, policy := range queue.Names() {
		t.Run(policy, func(t *testing.T) {
			w := newPlans(t, policy)
			w.adopt(-2, 100*time.Millisecond)
			w.expect(w.arrives(0, 1), "1 on 1;") // the slot is busy
			w.expect(w.arrives(0, 0), "2 on -2;")
			w.completes(50*time.Millisecond, 1, 1, 50*time.Millisecond)
			if got := w.arrives(60*time.Millisecond, 1); !strings.HasPrefix(got, "3 on ") { // the planned instance takes no slot
				t.Errorf("invocation 3, of function 1, beside the planned instance: got %q, want it dispatched", got)
			}
		})
	}
}

// TestPlannedFirst checks that a call goes to the free planned instance that would answer first,
// first by Adopted.Warm, then by measurements.
func TestPlannedFirst(t *testing.T) {
	const ms = time.Millisecond
	w := newPlans(t, "gfaas")
	w.adopt(-2, 300*ms)
	w.adopt(-3, 100*ms)
	w.expect(w.arrives(0, 0), "1 on -3;")
	w.expect(w.arrives(0, 0), "2 on -2;")
	w.expect(w.arrives(0, 0), "wake 2.100000001s;") // it waits: a start takes longer, unless the instances are overdue
	w.expect(w.completes(90*ms, 1, -3, 90*ms), "3 on -3;")
	w.completes(150*ms, 2, -2, 20*ms)
	w.completes(200*ms, 3, -3, 90*ms)
	w.expect(w.arrives(time.Second, 0), "4 on -2;")
}

// TestPlannedBatch checks that a planned instance runs as many invocations at once as its batch, if its function
// batches invocations itself, and that this number can change.
func TestPlannedBatch(t *testing.T) {
	w := newPlans(t, "gfaas")
	spec := queue.Function{Warm: 100 * time.Millisecond, Cold: 2100 * time.Millisecond, Load: time.Second, Weight: 1, Inflight: 2, BatchesItself: true, Max: 1}
	adopted := func(batch int32) *queue.Adopted {
		return &queue.Adopted{Instance: -2, To: residency.GPUWarm, Pinned: true, Warm: time.Second, Batch: batch}
	}
	w.step(0, &queue.FunctionSet{Spec: spec}, adopted(3))
	for _, want := range []string{"1 on -2;", "2 on -2;", "3 on -2;"} {
		w.expect(w.arrives(0, 0), want)
	}
	if got := w.arrives(0, 0); strings.Contains(got, "on -2") {
		t.Errorf("got %q, want no fourth invocation at once", got)
	}
	w.expect(w.step(0, adopted(4)), "4 on -2;")
	w.step(0, adopted(1)) // the function's own limit, 2, holds again
	if got := w.arrives(0, 0) + w.completes(0, 1, -2, 0) + w.completes(0, 2, -2, 0); strings.Contains(got, "on -2") {
		t.Errorf("got %q, want no further invocation while two run", got)
	}
	w.expect(w.completes(0, 3, -2, 0), "5 on -2;")
}

// TestPlannedTooBusy checks that an additional instance is started if the planned ones are
// overdue, or would not finish the waiting calls before that start.
func TestPlannedTooBusy(t *testing.T) {
	const ms = time.Millisecond
	w := newPlans(t, "gfaas")
	w.adopt(-2, 100*ms)
	w.expect(w.arrives(0, 0), "1 on -2;")
	w.expect(w.arrives(0, 0), "wake 2.100000001s;")
	w.expect(w.step(2100*ms+1, &queue.Woke{}), "2 on 1;")

	w = newPlans(t, "gfaas")
	w.adopt(-2, 100*ms)
	w.arrives(0, 0)
	for range 20 { // 2 s of work, as long as a start takes
		if got := w.arrives(0, 0); got != "" && got != "wake 2.100000001s;" {
			t.Fatalf("got %q, want no dispatch, and a wake at 2.100000001s", got)
		}
	}
	w.expect(w.arrives(0, 0), "2 on 1;")
}

// TestPlannedBeforeRoom checks under every policy that an invocation that waits for room moves to
// a planned instance that becomes free earlier.
func TestPlannedBeforeRoom(t *testing.T) {
	const s = time.Second
	waited := false
	for _, policy := range queue.Names() {
		t.Run(policy, func(t *testing.T) {
			p, err := queue.New(queue.Config{Policy: policy, Pool: residency.Unlimited, Options: queue.Defaults()})
			if err != nil {
				t.Fatal(err)
			}
			spec := &queue.Function{Warm: s, Cold: 2 * s, Load: s, Mem: 4, Weight: 1}
			p.Step(0, []queue.Event{&queue.GPUSet{Slots: 1, Mem: 10},
				&queue.FunctionSet{Spec: *spec}, &queue.FunctionSet{Function: 1, Spec: *spec},
				&queue.Adopted{Instance: -2, To: residency.GPUWarm, Pinned: true, Warm: 10 * s},
				&queue.Adopted{Instance: -3, Function: 1, To: residency.GPUWarm},
				&queue.Arrived{ID: 1}}, nil)
			run := func(a queue.Action) bool { return a.Kind == queue.Run }
			if slices.ContainsFunc(p.Step(s, []queue.Event{&queue.Arrived{ID: 2, At: s}}, nil), run) {
				t.Fatal("invocation 2 runs before there is room, want it queued")
			}
			st := p.Snapshot()
			waited = waited || slices.ContainsFunc(st.Instances, func(i residency.InstanceStatus) bool { return i.State == "waits for room" })
			actions := p.Step(2*s, []queue.Event{&queue.Completed{Execution: queue.Execution{Instance: -2, ID: 1, Executed: 2 * s}}}, nil)
			if i := slices.IndexFunc(actions, run); i < 0 || actions[i].ID != 2 || actions[i].Instance != -2 {
				t.Errorf("invocation 2 after the planned instance has completed: got %+v, want it on instance -2", actions)
			}
			st = p.Snapshot()
			if f := st.Functions[0]; f.Waiting != 0 || f.InFlight != 1 || f.Instances != 1 {
				t.Errorf("function 0: got %+v, want 0 waiting, 1 in flight, 1 instance", f)
			}
			if actions := p.Step(3*s, []queue.Event{&queue.Lost{Instance: -3, Function: 1}, &queue.Moved{Instance: -3, Function: 1, To: residency.HostWarm}}, nil); slices.ContainsFunc(actions, run) {
				t.Errorf("after instance -3 has moved and was lost: got %+v, want no further execution", actions)
			}
		})
	}
	if !waited {
		t.Error("instances that wait for room: got none under all policies, want some")
	}
}

// TestPlannedExclusive checks that the policy exclusive gives a client no GPU on which a
// planned instance leaves too little memory if another GPU has enough, and that a client
// exchanges such a GPU.
func TestPlannedExclusive(t *testing.T) {
	const s = time.Second
	p, err := queue.New(queue.Config{Policy: "exclusive", Pool: residency.Unlimited, Options: queue.Defaults()})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Duration(0)
	step := func(events ...queue.Event) (runs []queue.Action) {
		now += s
		for _, a := range p.Step(now, events, nil) {
			if a.Kind == queue.Run {
				runs = append(runs, a)
			}
		}
		return runs
	}
	want := func(runs []queue.Action, id int64, gpu int32) *queue.Completed {
		t.Helper()
		if len(runs) != 1 || runs[0].ID != id || runs[0].GPU != gpu {
			t.Fatalf("executions: got %+v, want invocation %d on GPU %d", runs, id, gpu)
		}
		return &queue.Completed{Execution: queue.Execution{Function: runs[0].Function, Instance: runs[0].Instance, ID: id, Executed: s}}
	}
	pin := func(id residency.ID, gpu int32) queue.Event {
		return &queue.Adopted{Instance: id, GPU: gpu, To: residency.GPUWarm, Pinned: true}
	}
	step(&queue.GPUSet{Slots: 1, Mem: 10}, &queue.GPUSet{GPU: 1, Slots: 1, Mem: 10})
	for f, mem := range []int64{8, 5, 2} {
		step(&queue.FunctionSet{Function: int32(f), Spec: queue.Function{Warm: s, Cold: 2 * s, Load: s, Mem: mem, Weight: 1}})
	}
	step(pin(-2, 0))
	lost := func(id residency.ID) queue.Event { return &queue.Lost{Instance: id} }
	done := want(step(arrives(1, 1)), 1, 1)
	step(done)
	step(lost(-2), pin(-3, 1)) // the idle instance there is evicted
	step(lost(done.Instance))
	done = want(step(arrives(1, 2)), 2, 0)
	step(done)
	step(want(step(arrives(2, 3)), 3, 1))
	step(lost(-3), pin(-4, 0))
	step(lost(done.Instance))
	step(want(step(arrives(1, 4)), 4, 1))
	want(step(arrives(2, 5)), 5, 0)
}

// TestOccupied checks under every policy how instances on several GPUs count on the further GPUs:
// idle instances are evicted for their memory, and invocations without enough memory wait until
// it is free.
func TestOccupied(t *testing.T) {
	for _, policy := range queue.Names() {
		t.Run(policy, func(t *testing.T) {
			p, err := queue.New(queue.Config{Policy: policy, Pool: residency.Unlimited, Options: queue.Defaults()})
			if err != nil {
				t.Fatal(err)
			}
			step := func(now time.Duration, events ...queue.Event) (kinds []queue.ActionKind) {
				for _, a := range p.Step(now, events, nil) {
					if a.Kind != queue.Wake {
						kinds = append(kinds, a.Kind)
					}
				}
				return kinds
			}
			spec := func(name string, mem int64) *queue.Function {
				return &queue.Function{Name: name, Warm: time.Second, Cold: 3 * time.Second, Load: time.Second, Mem: mem, Weight: 1}
			}
			step(0, &queue.GPUSet{Slots: 1, Mem: 10},
				&queue.FunctionSet{Spec: *spec("small", 4)}, &queue.FunctionSet{Function: 1, Spec: *spec("large", 6)})
			run := []queue.ActionKind{queue.Run}
			if actions := step(0, &queue.Arrived{Function: 1}); !slices.Equal(actions, run) {
				t.Fatalf("arrival on a GPU without other programs: got %v, want %v", actions, run)
			}
			large := residency.ID(0)
			actions := step(4*time.Second, &queue.Completed{Execution: queue.Execution{Function: 1, Instance: large, Executed: time.Second}})
			switch actions = append(actions, step(5*time.Second, &queue.Occupied{Mem: 5})...); {
			case slices.Equal(actions, []queue.ActionKind{queue.Offload}):
				step(6*time.Second, &queue.Moved{Function: 1, Instance: large, To: residency.HostWarm})
			case slices.Equal(actions, []queue.ActionKind{queue.Remove}):
				step(6*time.Second, &queue.Lost{Function: 1, Instance: large})
			default:
				t.Fatalf("idle instance on a GPU that is occupied: got %v, want Offload or Remove", actions)
			}
			if actions := step(7*time.Second, &queue.Arrived{ID: 1, Function: 1, At: 7 * time.Second}); len(actions) > 0 {
				t.Fatalf("arrival of an invocation that does not fit: got %v, want no actions", actions)
			}
			if f := p.Snapshot().Functions[1]; f.Waiting != 1 || f.WaitReason.IsZero() {
				t.Errorf("function whose invocation does not fit: got %+v, want 1 waiting, with a reason", f)
			}
			if actions := step(8*time.Second, &queue.Occupied{Mem: 4}); !slices.Equal(actions, run) {
				t.Errorf("after the invocation fits: got %v, want %v", actions, run)
			}
		})
	}
}
