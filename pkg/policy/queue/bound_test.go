package queue_test

import (
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// binding lists the policies under which invocations can be bound to instances.
var binding = []string{"gfaas", "mqfq-sticky", "mqfq", "fcfs", "sjf", "eevdf", "cfs-affinity"}

// TestBoundJoinsAreBounded checks that a chain of bound invocations, which join their instance one after
// another without a pause, delays an invocation of another function, and an unbound one of the same function,
// only until the invocations that ran before it have ended.
func TestBoundJoinsAreBounded(t *testing.T) {
	for _, policy := range binding {
		for waiting := range int32(2) {
			p, err := queue.New(queue.Config{Policy: policy, Pool: residency.Unlimited, Options: queue.Defaults()})
			if err != nil {
				t.Fatal(err)
			}
			spec := queue.Function{Warm: 100 * time.Millisecond, Cold: 200 * time.Millisecond, Load: 50 * time.Millisecond, Weight: 1, Inflight: 2, Max: 1}
			runs := map[int64]residency.ID{}
			now, id := time.Duration(0), int64(0)
			step := func(events ...queue.Event) {
				for _, a := range p.Step(now, events, nil) {
					if a.Kind == queue.Run {
						runs[a.ID] = a.Instance
					}
				}
			}
			arrive := func(f int32, bound bool) int64 {
				id++
				step(&queue.Arrived{Function: f, ID: id, At: now, Bound: bound, Instance: runs[1]})
				return id
			}
			ends := func(id int64) {
				step(&queue.Completed{Execution: queue.Execution{ID: id, Instance: runs[id], Executed: 100 * time.Millisecond}})
			}
			step(&queue.GPUSet{Slots: 1}, &queue.FunctionSet{Spec: spec}, &queue.FunctionSet{Function: 1, Spec: spec})
			older := []int64{arrive(0, false), arrive(0, true)}
			waits := arrive(waiting, false)
			if _, started := runs[waits]; started || len(runs) != 2 {
				t.Fatalf("%s: got the runs %v, want two invocations of function 0 and none of function %d", policy, runs, waiting)
			}
			now += 10 * time.Millisecond
			chain := arrive(0, true)
			ends(older[0])
			if _, joined := runs[chain]; !joined {
				t.Errorf("%s: a bound invocation waits while its instance runs an older one than that which waits, want it to join", policy)
			}
			now += 10 * time.Millisecond
			ends(older[1])
			next := arrive(0, true)
			_, joined := runs[next]
			_, ran := runs[waits]
			if joined || ran != (waiting == 0) {
				t.Errorf("%s: the older invocations have ended: the next bound one joins: %v, want false; that of function %d runs: %v, want %v", policy, joined, waiting, ran, waiting == 0)
			}
			ends(chain)
			if ran {
				ends(waits)
			}
			if _, joined = runs[next]; waiting == 0 && !joined {
				t.Errorf("%s: no invocation waits, and the instance has a free place: the bound invocation waits, want it to run", policy)
			}
			if _, ran = runs[waits]; !ran && !joined {
				t.Errorf("%s: the instance is idle, and two invocations wait, want one of them to run", policy)
			}
		}
	}
}

// TestBindingEnds checks that a bound invocation runs elsewhere if its instance is lost, and that a binding
// to an unknown instance, or one of another function, has no effect.
func TestBindingEnds(t *testing.T) {
	for _, policy := range queue.Names() {
		w := newPlans(t, policy)
		first := w.arrives(0, 0)
		if first == "" {
			t.Errorf("%s: the first invocation does not run", policy)
			continue
		}
		w.step(1, &queue.Started{ID: 1})
		w.calls++
		w.step(2, &queue.Arrived{ID: w.calls, At: 2, Bound: true, Instance: 0})
		if got := w.step(3, &queue.Failed{Execution: queue.Execution{ID: 1, Instance: 0}}, &queue.Lost{Instance: 0}); got == "" {
			t.Errorf("%s: after the loss of the instance, the bound invocation does not run", policy)
		}
		for i, instance := range []residency.ID{77, -9, residency.None} {
			v := newPlans(t, policy)
			v.calls++
			if got := v.step(0, &queue.Arrived{ID: v.calls, Bound: true, Instance: instance}); got == "" {
				t.Errorf("%s: %d: an invocation that is bound to the unknown instance %d does not run", policy, i, instance)
			}
		}
	}
}
