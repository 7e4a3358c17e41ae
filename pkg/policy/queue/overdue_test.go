package queue_test

import (
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// TestOverdue sends an invocation to a busy GPU whose work should end before a start elsewhere
// could. The work takes an hour. The invocation must move to an idle GPU soon, unless
// Options.Patient selects the rule of LALB's paper.
func TestOverdue(t *testing.T) {
	for _, c := range []struct {
		policy  string
		patient bool
		want    time.Duration // latest start; 0 means never
	}{
		{"gfaas", false, time.Minute}, {"gfaas", true, time.Minute},
		{"lalb", false, time.Minute}, {"lalb-o3", false, time.Minute}, {"lalb", true, 0},
	} {
		options := queue.Defaults()
		options.Patient = c.patient
		p, err := queue.New(queue.Config{Policy: c.policy, Pool: residency.Unlimited, Options: options})
		if err != nil {
			t.Fatal(err)
		}
		spec := &queue.Function{Name: "f", Warm: time.Second, Load: 5 * time.Second, Cold: 10 * time.Second, Mem: 10, Weight: 1}
		actions := p.Step(0, []queue.Event{&queue.GPUSet{Slots: 1, Mem: 100}, &queue.GPUSet{GPU: 1, Slots: 1, Mem: 100},
			&queue.FunctionSet{Spec: *spec}, &queue.Arrived{ID: 1}}, nil)
		ran := func() queue.Action {
			for _, a := range actions {
				if a.Kind == queue.Run {
					return a
				}
			}
			return queue.Action{Kind: queue.Forget}
		}
		first := ran()
		now := 10 * time.Second
		actions = p.Step(now, []queue.Event{&queue.Completed{Execution: queue.Execution{Instance: first.Instance, ID: 1, Executed: time.Second}},
			&queue.Arrived{ID: 2, At: now}}, nil)
		if second := ran(); second.ID != 2 || second.GPU != first.GPU {
			t.Fatalf("%s: second execution: got %+v, want ID 2 and GPU %v", c.policy, second, first.GPU)
		}
		now += time.Second / 2
		wake, started := queue.Never, time.Duration(0)
		actions = p.Step(now, []queue.Event{&queue.Arrived{ID: 3, At: now}}, nil)
		for arrived := now; ; actions = p.Step(now, []queue.Event{&queue.Woke{}}, nil) {
			if third := ran(); third.ID == 3 {
				if started = now - arrived; third.GPU == first.GPU {
					t.Fatalf("%s: third invocation: got %+v, want it on another GPU than %d", c.policy, third, first.GPU)
				}
				break
			}
			for _, a := range actions {
				if a.Kind == queue.Wake {
					wake = a.At
				}
			}
			if wake > time.Hour {
				break
			}
			now, wake = wake, queue.Never
		}
		if c.want == 0 && started > 0 || c.want > 0 && (started == 0 || started > c.want) {
			t.Errorf("%s, patient %v: invocation 3 started after %v, want at most %v", c.policy, c.patient, started, c.want)
		}
	}
}

// TestOverdueAsAnotherEnds lets an invocation wait for a busy GPU, where one invocation becomes overdue in the nanosecond
// in which another one ends. The waiting invocation must start on another GPU.
func TestOverdueAsAnotherEnds(t *testing.T) {
	const ms = time.Millisecond
	p, err := queue.New(queue.Config{Policy: "gfaas", Pool: residency.Unlimited, Options: queue.Defaults()})
	if err != nil {
		t.Fatal(err)
	}
	var now time.Duration
	runs := map[int64]queue.Action{}
	step := func(at time.Duration, events ...queue.Event) {
		now = at
		for _, a := range p.Step(now, events, nil) {
			if a.Kind == queue.Run {
				runs[a.ID] = a
			}
		}
	}
	arrival := func(function int32, id int64) queue.Event { return &queue.Arrived{Function: function, ID: id, At: now} }
	ends := func(id int64) queue.Event {
		return &queue.Completed{Execution: queue.Execution{Instance: runs[id].Instance, ID: id, Executed: 1000 * ms}}
	}
	step(0, &queue.GPUSet{Slots: 2},
		&queue.FunctionSet{Spec: queue.Function{Warm: 1000 * ms, Load: 500 * ms, Cold: 2500 * ms, Weight: 1}},
		&queue.FunctionSet{Function: 1, Spec: queue.Function{Warm: 1000 * ms, Cold: 2000 * ms, Weight: 1}})
	step(0, arrival(0, 1))
	now = 2500 * ms
	step(now, ends(1), arrival(0, 2), arrival(1, 3))
	now = 3000 * ms
	step(now, &queue.GPUSet{GPU: 1, Slots: 1}, arrival(0, 4))
	if len(runs) != 3 || runs[2].GPU != 0 || runs[3].GPU != 0 {
		t.Fatalf("executions: got %+v, want those of invocations 1, 2 and 3 on GPU 0", runs)
	}
	step(4500*ms+1, ends(3))
	if got := runs[4]; got.ID != 4 || got.GPU != 1 {
		t.Errorf("execution of invocation 4: got %+v, want one on GPU 1 as soon as invocation 2 is overdue", got)
	}
}

// TestWaitsForLateWork sends an invocation to a function whose instance is full of streams that began one after another
// and do not end. The invocation must start the second instance after about the time that this start takes, or twice
// the usual duration if that is longer.
func TestWaitsForLateWork(t *testing.T) {
	const full = 50
	for _, cold := range []time.Duration{110 * time.Millisecond, time.Second, 3 * time.Second} {
		for _, apart := range []time.Duration{0, 10 * time.Millisecond, 70 * time.Millisecond} {
			p, err := queue.New(queue.Config{Policy: "gfaas", Pool: residency.Unlimited, Options: queue.Defaults()})
			if err != nil {
				t.Fatal(err)
			}
			spec := queue.Function{Name: "f", Warm: 100 * time.Millisecond, Cold: cold, Weight: 1, Inflight: full, Max: 2, Batches: true, BatchWindow: time.Second}
			actions := p.Step(0, []queue.Event{&queue.GPUSet{Slots: 8, Mem: 100}, &queue.FunctionSet{Spec: spec}}, nil)
			var now time.Duration
			wake := queue.Never
			ran := func(id int64) bool { // after the last step
				found := false
				for _, a := range actions {
					switch {
					case a.Kind == queue.Wake:
						wake = a.At
					case a.Kind == queue.Run && a.ID == id:
						found = true
						if a.Start == residency.Cold {
							actions = p.Step(now, []queue.Event{&queue.Started{Instance: a.Instance}}, nil)
						}
					}
				}
				return found
			}
			for id := range int64(full) {
				now += apart
				actions = p.Step(now, []queue.Event{&queue.Arrived{ID: id, At: now}}, nil)
				if !ran(id) {
					t.Fatalf("stream %d does not run", id)
				}
			}
			arrived := now
			actions = p.Step(now, []queue.Event{&queue.Arrived{ID: full, At: now}}, nil)
			for !ran(full) && wake < time.Minute {
				now, wake = wake, queue.Never
				actions = p.Step(now, []queue.Event{&queue.Woke{}}, nil)
			}
			if waited, most := now-arrived, 2*max(cold, spec.Warm)+time.Millisecond; waited > most {
				t.Errorf("start of %v, streams %v apart: the next one waited for %v, want at most %v", cold, apart, waited, most)
			}
		}
	}
}

// TestBacklog lets calls wait for a busy GPU and complete faster than expected. Afterwards, the
// GPU's expected work must be the running call only.
func TestBacklog(t *testing.T) {
	const ms = time.Millisecond
	p, err := queue.New(queue.Config{Policy: "lalb", Pool: residency.Unlimited, Options: queue.Defaults()})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Duration(0)
	step := func(later time.Duration, events ...queue.Event) queue.Action {
		now += later
		for _, a := range p.Step(now, events, nil) {
			if a.Kind == queue.Run || a.Kind == queue.Assign {
				return a
			}
		}
		return queue.Action{Kind: queue.Forget}
	}
	ends := func(a queue.Action) queue.Event {
		return &queue.Completed{Execution: queue.Execution{Instance: a.Instance, ID: a.ID, Executed: 100 * ms}}
	}
	step(0, &queue.GPUSet{Slots: 1}, &queue.GPUSet{GPU: 1, Slots: 1},
		&queue.FunctionSet{Spec: queue.Function{Warm: time.Second, Load: 3 * time.Second, Cold: 9 * time.Second, Weight: 1}})
	first := step(0, arrives(0, 1))
	runs := step(time.Second, ends(first), arrives(0, 2))
	for id := range int64(2) {
		if a := step(0, arrives(0, 3+id)); a.Kind != queue.Assign || a.GPU != first.GPU {
			t.Fatalf("arrival while the GPU is busy: got %+v, want Kind %v and GPU %v", a, queue.Assign, first.GPU)
		}
	}
	step(0, &queue.Learned{Spec: queue.Function{Warm: 100 * ms, Load: time.Second, Cold: 9 * time.Second}})
	for range 2 {
		runs = step(100*ms, ends(runs))
	}
	if runs.ID != 4 || runs.Expected != 100*ms {
		t.Fatalf("got %+v, want invocation 4 with an expected time of 100ms", runs)
	}
	if a := step(0, arrives(0, 5)); a.Kind != queue.Assign || a.Reason.Value != 100 {
		t.Errorf("arrival while the GPU is free in 100 ms: got %+v, want Kind %v and Reason.Value 100", a, queue.Assign)
	}
}
