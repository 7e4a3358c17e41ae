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

// plans is a policy with one GPU of one slot; function 0 takes 100 ms, and its start
// 2 s more, function 1 is another.
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
	w.step(0, queue.Event{Kind: queue.GPUSet, Machine: &queue.GPU{Slots: 1}},
		queue.Event{Kind: queue.FunctionSet, Spec: spec}, queue.Event{Kind: queue.FunctionSet, Function: 1, Spec: spec})
	return w
}

// adopt has function 0 have an instance -2, -3, … that takes so long for each.
func (w *plans) adopt(id residency.ID, each time.Duration) {
	w.step(0, queue.Event{Kind: queue.Adopted, Instance: id, To: residency.GPUWarm, Pinned: true, Spec: &queue.Function{Warm: each}})
}

// step says what runs where, and when it is to be woken.
func (w *plans) step(now time.Duration, events ...queue.Event) (out string) {
	for _, a := range w.policy.Step(now, events, nil) {
		switch a.Kind {
		case queue.Run:
			out += fmt.Sprintf("%d on %d;", a.ID, a.Instance)
		case queue.Wake:
			if a.At < queue.Never {
				out += fmt.Sprintf("wake %v;", a.At)
			}
		case queue.Remove: // a policy that keeps nothing warm
		default:
			w.t.Errorf("%v: %+v", now, a)
		}
	}
	return out
}

func (w *plans) arrives(now time.Duration, function int32) string {
	w.calls++
	return w.step(now, queue.Event{Kind: queue.Arrived, Function: function, ID: w.calls, At: now})
}

func (w *plans) completes(now time.Duration, id int64, on residency.ID, took time.Duration) string {
	return w.step(now, queue.Event{Kind: queue.Completed, ID: id, Instance: on, Executed: took})
}

func (w *plans) want(got, want string) {
	w.t.Helper()
	if got != want {
		w.t.Errorf("%q, want %q", got, want)
	}
}

// TestPlannedBeside: what a plan has for a function runs whatever else does, under
// every policy, and leaves the slots to others.
func TestPlannedBeside(t *testing.T) {
	for _, policy := range queue.Names() {
		t.Run(policy, func(t *testing.T) {
			w := newPlans(t, policy)
			w.adopt(-2, 100*time.Millisecond)
			w.want(w.arrives(0, 1), "1 on 1;") // the slot is taken
			w.want(w.arrives(0, 0), "2 on -2;")
			w.completes(50*time.Millisecond, 1, 1, 50*time.Millisecond)
			if got := w.arrives(60*time.Millisecond, 1); !strings.HasPrefix(got, "3 on ") { // the plan's holds no slot
				t.Error(got)
			}
		})
	}
}

// TestPlannedFirst: of several that are free the one that answers first takes a call,
// as its Spec says and then as was measured.
func TestPlannedFirst(t *testing.T) {
	const ms = time.Millisecond
	w := newPlans(t, "gfaas")
	w.adopt(-2, 300*ms)
	w.adopt(-3, 100*ms)
	w.want(w.arrives(0, 0), "1 on -3;")
	w.want(w.arrives(0, 0), "2 on -2;")
	w.want(w.arrives(0, 0), "wake 2.100000001s;") // it waits: a start takes longer, unless they are overdue
	w.want(w.completes(90*ms, 1, -3, 90*ms), "3 on -3;")
	w.completes(150*ms, 2, -2, 20*ms)
	w.completes(200*ms, 3, -3, 90*ms)
	w.want(w.arrives(time.Second, 0), "4 on -2;")
}

// TestPlannedTooBusy: an instance is started beside those of a plan when these will
// not have taken what waits before, or are overdue.
func TestPlannedTooBusy(t *testing.T) {
	const ms = time.Millisecond
	w := newPlans(t, "gfaas")
	w.adopt(-2, 100*ms)
	w.want(w.arrives(0, 0), "1 on -2;")
	w.want(w.arrives(0, 0), "wake 2.100000001s;")
	w.want(w.step(2100*ms+1, queue.Event{Kind: queue.Woke}), "2 on 1;")

	w = newPlans(t, "gfaas")
	w.adopt(-2, 100*ms)
	w.arrives(0, 0)
	for range 20 { // two seconds of work, as long as a start takes
		if got := w.arrives(0, 0); got != "" && got != "wake 2.100000001s;" {
			t.Fatal(got)
		}
	}
	w.want(w.arrives(0, 0), "2 on 1;")
}

// TestPlannedBeforeRoom: an invocation that waits for room on a GPU goes to an instance
// of a plan that can take it meanwhile, under every policy.
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
			p.Step(0, []queue.Event{{Kind: queue.GPUSet, Machine: &queue.GPU{Slots: 1, Mem: 10}},
				{Kind: queue.FunctionSet, Spec: spec}, {Kind: queue.FunctionSet, Function: 1, Spec: spec},
				{Kind: queue.Adopted, Instance: -2, To: residency.GPUWarm, Pinned: true, Spec: &queue.Function{Warm: 10 * s}},
				{Kind: queue.Adopted, Instance: -3, Function: 1, To: residency.GPUWarm},
				{Kind: queue.Arrived, ID: 1}}, nil)
			run := func(a queue.Action) bool { return a.Kind == queue.Run }
			if slices.ContainsFunc(p.Step(s, []queue.Event{{Kind: queue.Arrived, ID: 2, At: s}}, nil), run) {
				t.Fatal("runs before there is room")
			}
			st := p.Snapshot()
			waited = waited || slices.ContainsFunc(st.Instances, func(i residency.Standing) bool { return i.State == "waits for room" })
			did := p.Step(2*s, []queue.Event{{Kind: queue.Completed, Instance: -2, ID: 1, Executed: 2 * s}}, nil)
			if i := slices.IndexFunc(did, run); i < 0 || did[i].ID != 2 || did[i].Instance != -2 {
				t.Errorf("%+v", did)
			}
			st = p.Snapshot()
			if f := st.Functions[0]; f.Waiting != 0 || f.InFlight != 1 || f.Instances != 1 {
				t.Errorf("%+v", st)
			}
			if did := p.Step(3*s, []queue.Event{{Kind: queue.Lost, Instance: -3, Function: 1}, {Kind: queue.Moved, Instance: -3, Function: 1, To: residency.HostWarm}}, nil); slices.ContainsFunc(did, run) {
				t.Errorf("runs there too: %+v", did)
			}
		})
	}
	if !waited {
		t.Error("nothing waited for room")
	}
}

// TestPlannedExclusive: the policy exclusive gives a client no GPU whose memory a plan's
// instance has while another could hold the client, and has it swap one that cannot.
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
	want := func(runs []queue.Action, id int64, gpu int32) queue.Event {
		t.Helper()
		if len(runs) != 1 || runs[0].ID != id || runs[0].GPU != gpu {
			t.Fatalf("%+v, want %d on GPU %d", runs, id, gpu)
		}
		return queue.Event{Kind: queue.Completed, Function: runs[0].Function, Instance: runs[0].Instance, ID: id, Executed: s}
	}
	pin := func(id residency.ID, gpu int32) queue.Event {
		return queue.Event{Kind: queue.Adopted, Instance: id, GPU: gpu, To: residency.GPUWarm, Pinned: true}
	}
	machine := &queue.GPU{Slots: 1, Mem: 10}
	step(queue.Event{Kind: queue.GPUSet, Machine: machine}, queue.Event{Kind: queue.GPUSet, GPU: 1, Machine: machine})
	for f, mem := range []int64{8, 5, 2} {
		step(queue.Event{Kind: queue.FunctionSet, Function: int32(f), Spec: &queue.Function{Warm: s, Cold: 2 * s, Load: s, Mem: mem, Weight: 1}})
	}
	step(pin(-2, 0))
	lost := func(id residency.ID) queue.Event { return queue.Event{Kind: queue.Lost, Instance: id} }
	done := want(step(arrives(1, 1)), 1, 1)
	step(done)
	step(lost(-2), pin(-3, 1)) // what idled there is to make room
	step(lost(done.Instance))
	done = want(step(arrives(1, 2)), 2, 0)
	step(done)
	step(want(step(arrives(2, 3)), 3, 1))
	step(lost(-3), pin(-4, 0))
	step(lost(done.Instance))
	step(want(step(arrives(1, 4)), 4, 1))
	want(step(arrives(2, 5)), 5, 0)
}

// TestOccupied: memory that instances have which a policy knows on another GPU is
// nobody's, under every policy: what idles makes room for it, what does not fit beside
// it waits, and goes once it is free.
func TestOccupied(t *testing.T) {
	for _, policy := range queue.Names() {
		t.Run(policy, func(t *testing.T) {
			p, err := queue.New(queue.Config{Policy: policy, Pool: residency.Unlimited, Options: queue.Defaults()})
			if err != nil {
				t.Fatal(err)
			}
			step := func(now time.Duration, events ...queue.Event) (out []queue.ActionKind) {
				for _, a := range p.Step(now, events, nil) {
					if a.Kind != queue.Wake {
						out = append(out, a.Kind)
					}
				}
				return out
			}
			spec := func(name string, mem int64) *queue.Function {
				return &queue.Function{Name: name, Warm: time.Second, Cold: 3 * time.Second, Load: time.Second, Mem: mem, Weight: 1}
			}
			step(0, queue.Event{Kind: queue.GPUSet, Machine: &queue.GPU{Slots: 1, Mem: 10}},
				queue.Event{Kind: queue.FunctionSet, Spec: spec("small", 4)}, queue.Event{Kind: queue.FunctionSet, Function: 1, Spec: spec("large", 6)})
			run := []queue.ActionKind{queue.Run}
			if did := step(0, queue.Event{Kind: queue.Arrived, Function: 1}); !slices.Equal(did, run) {
				t.Fatalf("on a GPU without others: %v", did)
			}
			large := residency.ID(0)
			did := step(4*time.Second, queue.Event{Kind: queue.Completed, Function: 1, Instance: large, Executed: time.Second})
			switch did = append(did, step(5*time.Second, queue.Event{Kind: queue.Occupied, Mem: 5})...); {
			case slices.Equal(did, []queue.ActionKind{queue.Offload}):
				step(6*time.Second, queue.Event{Kind: queue.Moved, Function: 1, Instance: large, To: residency.HostWarm})
			case slices.Equal(did, []queue.ActionKind{queue.Remove}):
				step(6*time.Second, queue.Event{Kind: queue.Lost, Function: 1, Instance: large})
			default:
				t.Fatalf("what idles there: %v", did)
			}
			if did := step(7*time.Second, queue.Event{Kind: queue.Arrived, ID: 1, Function: 1, At: 7 * time.Second}); len(did) > 0 {
				t.Fatalf("what does not fit: %v", did)
			}
			if f := p.Snapshot().Functions[1]; f.Waiting != 1 || f.Why == "" {
				t.Errorf("what does not fit: %+v", f)
			}
			if did := step(8*time.Second, queue.Event{Kind: queue.Occupied, Mem: 4}); !slices.Equal(did, run) {
				t.Errorf("when it fits: %v", did)
			}
		})
	}
}
