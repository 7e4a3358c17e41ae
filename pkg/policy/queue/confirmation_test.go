package queue_test

import (
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// TestConfirmations checks the decisions after an offload. An invocation of b evicts the memory of
// a, and the next invocation is of a. If the driver confirms in no time, the policy decides after
// the confirmation and reuses the instance of a. Otherwise it decides again at the same instant,
// and starts a second instance of a while the memory of the first is on its way.
func TestConfirmations(t *testing.T) {
	for _, c := range []struct {
		name     string
		confirms bool
		want     residency.Start
	}{{"in no time", true, residency.HostWarm}, {"later", false, residency.Cold}} {
		t.Run(c.name, func(t *testing.T) {
			p, err := queue.New(queue.Config{Policy: "fcfs", Pool: residency.Unlimited, Options: queue.Defaults()})
			if err != nil {
				t.Fatal(err)
			}
			const a, b, other = 0, 1, 2
			spec := &queue.Function{Warm: time.Second, Load: time.Second, Cold: 9 * time.Second, Mem: 4, Weight: 1}
			p.Step(0, []queue.Event{&queue.GPUSet{Slots: 2, Mem: 10}, &queue.FunctionSet{Function: a, Spec: *spec},
				&queue.FunctionSet{Function: b, Spec: *spec}, &queue.FunctionSet{Function: other, Spec: *spec},
				&queue.Adopted{Instance: -2, Function: a, To: residency.GPUWarm}, &queue.Adopted{Instance: -3, Function: other, To: residency.GPUWarm}}, nil)
			now, ran := time.Minute, map[int32]residency.Start{}
			events := []queue.Event{arrives(b, 1), arrives(a, 2)}
			for range 10 {
				actions := p.Step(now, events, nil)
				events = nil
				for i := range actions {
					act := &actions[i]
					event, needed := act.Confirmation()
					switch {
					case act.Kind == queue.Run:
						ran[act.Function] = act.Start
					case act.Kind == queue.Wake && act.At < now:
						t.Fatalf("wake at %v: the time is already %v, want a later time", act.At, now)
					case act.Kind == queue.Wake && act.At == now && !c.confirms:
						events = append(events, &queue.Woke{})
					case needed && c.confirms:
						events = append(events, event)
					}
				}
				if len(events) == 0 {
					break
				}
			}
			st := p.Snapshot()
			if start, runs := ran[a]; c.confirms && (!runs || start != c.want || ran[b] != residency.Cold) {
				t.Errorf("kinds of start by function: got %v, want b cold and a %v", ran, c.want)
			}
			if !c.confirms && (len(ran) > 0 || st.Functions[a].Instances != 2) {
				t.Errorf("kinds of start by function: got %v and %+v, want none, and a second instance of a that waits for room", ran, st)
			}
		})
	}
}
