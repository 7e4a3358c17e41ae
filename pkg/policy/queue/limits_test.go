package queue_test

import (
	"slices"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// limited returns the step function of a policy that admits that many invocations of each tenant at a
// time, on GPUs with one slot each. Function f belongs to tenant f.
func limited(t *testing.T, policy string, admitted, gpus int) (step func(...queue.Event) []queue.Action) {
	options := queue.Defaults()
	options.Limits.Slots = admitted
	p, err := queue.New(queue.Config{Policy: policy, Pool: residency.Unlimited, Options: options})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Duration(0)
	step = func(events ...queue.Event) []queue.Action {
		now += time.Millisecond
		return slices.DeleteFunc(p.Step(now, events, nil), func(a queue.Action) bool { return a.Kind == queue.Wake || a.Kind == queue.Remove })
	}
	for g := range int32(gpus) {
		step(&queue.GPUSet{GPU: g, Slots: 1})
	}
	for f := range int32(2) {
		step(&queue.FunctionSet{Function: f, Spec: *functionOf(f)})
	}
	return step
}

// functionOf returns a function of a tenant.
func functionOf(tenant int32) *queue.Function {
	return &queue.Function{Warm: time.Second, Cold: time.Second, Weight: 1, Tenant: tenant}
}

func arrives(f int32, id int64) queue.Event {
	return &queue.Arrived{Function: f, ID: id}
}

// completeAll completes all running invocations, including new ones, and returns their
// IDs.
func completeAll(step func(...queue.Event) []queue.Action, running ...queue.Action) (ran []int64) {
	for len(running) > 0 {
		a := running[0]
		ran = append(ran, a.ID)
		running = append(running[1:], step(&queue.Completed{Execution: queue.Execution{Function: a.Function, Instance: a.Instance, ID: a.ID, Executed: time.Second}})...)
	}
	return ran
}

// TestCancelledAgain returns an invocation to the queue behind one with a lower ID, which the
// tenant's limit admitted late. It then cancels the invocation, which must not run again under
// any policy.
func TestCancelledAgain(t *testing.T) {
	for _, policy := range queue.Names() {
		t.Run(policy, func(t *testing.T) {
			step := limited(t, policy, 2, 3)
			var runs []queue.Action
			for id, f := range []int32{1, 1, 1, 0, 0} { // 2 exceeds the limit, 4 finds no GPU
				runs = append(runs, step(arrives(f, int64(id)))...)
			}
			if len(runs) != 3 || runs[2].ID != 3 {
				t.Fatalf("first executions: got %+v, want 3, the last with ID 3", runs)
			}
			actions := step(&queue.GPURemoved{GPU: runs[0].GPU}, &queue.GPURemoved{GPU: runs[2].GPU},
				&queue.Failed{Execution: queue.Execution{Function: 1, Instance: runs[0].Instance}})
			actions = append(actions, step(&queue.Failed{Execution: queue.Execution{Function: 0, Instance: runs[2].Instance, ID: 3}, Requeue: true})...)
			actions = append(actions, step(&queue.Cancelled{Function: 0, ID: 3})...)
			if len(actions) > 0 {
				t.Fatalf("after the failure and the cancellation: got %+v, want no actions", actions)
			}
			ran := completeAll(step, runs[1])
			slices.Sort(ran)
			if want := []int64{1, 2, 4}; !slices.Equal(ran, want) {
				t.Errorf("completed invocations: got %v, want %v", ran, want)
			}
		})
	}
}

// TestStartsOnRemovedGPU checks that starts which fail on a removed GPU, like those on a node that has failed, do not count
// as failed starts of the function.
func TestStartsOnRemovedGPU(t *testing.T) {
	for _, policy := range queue.Names() {
		t.Run(policy, func(t *testing.T) {
			step := limited(t, policy, 9, 9)
			id := int64(0)
			fail := func(run queue.Action) []queue.Action {
				return step(&queue.Failed{Execution: queue.Execution{Function: 0, Instance: run.Instance, ID: run.ID}, Starting: true, Requeue: true})
			}
			runs := step(arrives(0, id))
			for range 5 {
				if len(runs) != 1 || runs[0].Kind != queue.Run {
					t.Fatalf("got %+v, want one start", runs)
				}
				gpu := runs[0].GPU
				step(&queue.GPURemoved{GPU: gpu})
				runs = append(fail(runs[0]), step(&queue.GPUSet{GPU: gpu, Slots: 1})...)
			}
		})
	}
}

// TestTenantChanges checks that invocations waiting for admission move in order to the new tenant
// of their function, and that the old tenant gets its slot back.
func TestTenantChanges(t *testing.T) {
	step := limited(t, "fcfs", 1, 4)
	runs := append(step(arrives(0, 0)), step(arrives(1, 1))...)
	for id, f := range []int32{0, 1, 0} { // all beyond the limit
		if actions := step(arrives(f, int64(id+2))); len(actions) > 0 {
			t.Fatalf("arrival %d beyond the tenant's limit: got %+v, want no actions", id+2, actions)
		}
	}
	if actions := step(&queue.FunctionSet{Function: 0, Spec: *functionOf(2)}); len(actions) != 1 || actions[0].ID != 2 {
		t.Fatalf("function 0 moves to a tenant without executions: got %+v, want one action for ID 2", actions)
	} else {
		runs = append(runs, actions...)
	}
	if actions := step(&queue.FunctionSet{Function: 0, Spec: *functionOf(1)}); len(actions) > 0 {
		t.Fatalf("function 0 moves to a tenant with an execution: got %+v, want no actions", actions)
	}
	if ran, want := completeAll(step, runs[1]), []int64{1, 3, 4}; !slices.Equal(ran, want) {
		t.Errorf("completed invocations: got %v, want %v", ran, want)
	}
	if actions := step(&queue.FunctionSet{Function: 1, Spec: *functionOf(0)}, arrives(1, 5)); len(actions) > 0 {
		t.Fatalf("function 1 moves to a tenant with an execution: got %+v, want no actions", actions)
	}
	if ran, want := completeAll(step, runs[0]), []int64{0, 5}; !slices.Equal(ran, want) {
		t.Errorf("completed invocations: got %v, want %v", ran, want)
	}
}
