package queue_test

import (
	"fmt"
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
	p, err := queue.New(queue.Config{Policy: policy, Pool: residency.Unlimited, Live: true, Options: queue.Defaults()})
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
