package queue_test

import (
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// TestOverdue has an invocation sent to a busy GPU, since the work there should
// end before it could start elsewhere; the work goes on for an hour. It does not
// wait that long beside an idle GPU, unless the policy is told to be as patient
// as LALB's paper.
func TestOverdue(t *testing.T) {
	for _, c := range []struct {
		policy  string
		patient bool
		want    time.Duration // when it starts at the latest; 0 is not at all
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
		machine := &queue.GPU{Slots: 1, Mem: 100}
		spec := &queue.Function{Name: "f", Warm: time.Second, Load: 5 * time.Second, Cold: 10 * time.Second, Mem: 10, Weight: 1}
		actions := p.Step(0, []queue.Event{{Kind: queue.GPUSet, GPU: 0, Machine: machine}, {Kind: queue.GPUSet, GPU: 1, Machine: machine},
			{Kind: queue.FunctionSet, Spec: spec}, {Kind: queue.Arrived, ID: 1}}, nil)
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
		actions = p.Step(now, []queue.Event{{Kind: queue.Completed, Instance: first.Instance, ID: 1, Executed: time.Second},
			{Kind: queue.Arrived, ID: 2, At: now}}, nil)
		if second := ran(); second.ID != 2 || second.GPU != first.GPU {
			t.Fatalf("%s: %+v runs second", c.policy, second)
		}
		now += time.Second / 2
		wake, started := queue.Never, time.Duration(0)
		actions = p.Step(now, []queue.Event{{Kind: queue.Arrived, ID: 3, At: now}}, nil)
		for came := now; ; actions = p.Step(now, []queue.Event{{Kind: queue.Woke}}, nil) {
			if third := ran(); third.ID == 3 {
				if started = now - came; third.GPU == first.GPU {
					t.Fatalf("%s: %+v", c.policy, third)
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
			t.Errorf("%s, patient %v: started after %v, want %v at most", c.policy, c.patient, started, c.want)
		}
	}
}

// TestBacklog has calls wait for a busy GPU, and then take less than they were expected
// to. Once they have gone the GPU has no more to do than what it runs.
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
		return queue.Event{Kind: queue.Completed, Instance: a.Instance, ID: a.ID, Executed: 100 * ms}
	}
	step(0, queue.Event{Kind: queue.GPUSet, Machine: &queue.GPU{Slots: 1}}, queue.Event{Kind: queue.GPUSet, GPU: 1, Machine: &queue.GPU{Slots: 1}},
		queue.Event{Kind: queue.FunctionSet, Spec: &queue.Function{Warm: time.Second, Load: 3 * time.Second, Cold: 9 * time.Second, Weight: 1}})
	first := step(0, arrives(0, 1))
	runs := step(time.Second, ends(first), arrives(0, 2))
	for id := range int64(2) {
		if a := step(0, arrives(0, 3+id)); a.Kind != queue.Assign || a.GPU != first.GPU {
			t.Fatalf("%+v", a)
		}
	}
	step(0, queue.Event{Kind: queue.Learned, Spec: &queue.Function{Warm: 100 * ms, Load: time.Second, Cold: 9 * time.Second}})
	for range 2 {
		runs = step(100*ms, ends(runs))
	}
	if runs.ID != 4 || runs.Expected != 100*ms {
		t.Fatalf("%+v", runs)
	}
	if a := step(0, arrives(0, 5)); a.Kind != queue.Assign || a.Reason.Value != 100 {
		t.Errorf("free in 100 ms: %+v", a)
	}
}
