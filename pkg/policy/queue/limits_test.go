package queue_test

import (
	"slices"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// limited is a policy whose tenants may have so many invocations admitted. Function 0
// is of tenant 0, function 1 of tenant 1.
func limited(t *testing.T, policy string, slots, gpus int) (step func(...queue.Event) []queue.Action) {
	options := queue.Defaults()
	options.Limits.Slots = slots
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
		step(queue.Event{Kind: queue.GPUSet, GPU: g, Machine: &queue.GPU{Slots: 1}})
	}
	for f := range int32(2) {
		step(queue.Event{Kind: queue.FunctionSet, Function: f, Spec: of(f)})
	}
	return step
}

// of is a function of a tenant.
func of(tenant int32) *queue.Function {
	return &queue.Function{Warm: time.Second, Cold: time.Second, Weight: 1, Tenant: tenant}
}

func arrives(f int32, id int64) queue.Event {
	return queue.Event{Kind: queue.Arrived, Function: f, ID: id}
}

// ends completes what runs until nothing does, and gives what ran.
func ends(step func(...queue.Event) []queue.Action, running ...queue.Action) (ran []int64) {
	for len(running) > 0 {
		a := running[0]
		ran = append(ran, a.ID)
		running = append(running[1:], step(queue.Event{Kind: queue.Completed, Function: a.Function, Instance: a.Instance, ID: a.ID, Executed: time.Second})...)
	}
	return ran
}

// TestCancelledAgain has an invocation wait again behind one with a lower number, which
// its tenant's limit let through late. When its caller leaves it runs no more, under
// every policy.
func TestCancelledAgain(t *testing.T) {
	for _, policy := range queue.Names() {
		t.Run(policy, func(t *testing.T) {
			step := limited(t, policy, 2, 3)
			var runs []queue.Action
			for id, f := range []int32{1, 1, 1, 0, 0} { // 2 is over the limit, 4 finds no GPU
				runs = append(runs, step(arrives(f, int64(id)))...)
			}
			if len(runs) != 3 || runs[2].ID != 3 {
				t.Fatalf("%+v", runs)
			}
			did := step(queue.Event{Kind: queue.GPUGone, GPU: runs[0].GPU}, queue.Event{Kind: queue.GPUGone, GPU: runs[2].GPU},
				queue.Event{Kind: queue.Failed, Function: 1, Instance: runs[0].Instance})
			did = append(did, step(queue.Event{Kind: queue.Failed, Function: 0, Instance: runs[2].Instance, ID: 3, Again: true})...)
			did = append(did, step(queue.Event{Kind: queue.Cancelled, Function: 0, ID: 3})...)
			if len(did) > 0 {
				t.Fatalf("%+v", did)
			}
			ran := ends(step, runs[1])
			slices.Sort(ran)
			if want := []int64{1, 2, 4}; !slices.Equal(ran, want) {
				t.Errorf("%v ran, want %v", ran, want)
			}
		})
	}
}

// TestTenantChanges: what waits for a tenant's turn waits for that of another once its
// function is that one's, in order, and the first has its turn back.
func TestTenantChanges(t *testing.T) {
	step := limited(t, "fcfs", 1, 4)
	runs := append(step(arrives(0, 0)), step(arrives(1, 1))...)
	for id, f := range []int32{0, 1, 0} { // all over the limit
		if did := step(arrives(f, int64(id+2))); len(did) > 0 {
			t.Fatalf("%+v", did)
		}
	}
	if did := step(queue.Event{Kind: queue.FunctionSet, Function: 0, Spec: of(2)}); len(did) != 1 || did[0].ID != 2 {
		t.Fatalf("of a tenant that has none: %+v", did)
	} else {
		runs = append(runs, did...)
	}
	if did := step(queue.Event{Kind: queue.FunctionSet, Function: 0, Spec: of(1)}); len(did) > 0 {
		t.Fatalf("of a tenant that has one: %+v", did)
	}
	if ran, want := ends(step, runs[1]), []int64{1, 3, 4}; !slices.Equal(ran, want) {
		t.Errorf("%v ran, want %v", ran, want)
	}
	if did := step(queue.Event{Kind: queue.FunctionSet, Function: 1, Spec: of(0)}, arrives(1, 5)); len(did) > 0 {
		t.Fatalf("of a tenant that has one: %+v", did)
	}
	if ran, want := ends(step, runs[0]), []int64{0, 5}; !slices.Equal(ran, want) {
		t.Errorf("%v ran, want %v", ran, want)
	}
}
