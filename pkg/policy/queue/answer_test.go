package queue_test

import (
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// TestAnswers has an invocation of b make room by the memory of a, of which one comes
// next. A driver that moves memory in no time has answered before that one is decided:
// it finds the instance of a. To another driver the policy comes back at the same
// instant, and starts a anew while its memory is on its way.
func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		name    string
		answers bool
		want    residency.Start
	}{{"in no time", true, residency.HostWarm}, {"later", false, residency.Cold}} {
		t.Run(c.name, func(t *testing.T) {
			p, err := queue.New(queue.Config{Policy: "fcfs", Pool: residency.Unlimited, Options: queue.Defaults()})
			if err != nil {
				t.Fatal(err)
			}
			const a, b, other = 0, 1, 2
			spec := &queue.Function{Warm: time.Second, Load: time.Second, Cold: 9 * time.Second, Mem: 4, Weight: 1}
			p.Step(0, []queue.Event{{Kind: queue.GPUSet, Machine: &queue.GPU{Slots: 2, Mem: 10}}, {Kind: queue.FunctionSet, Function: a, Spec: spec},
				{Kind: queue.FunctionSet, Function: b, Spec: spec}, {Kind: queue.FunctionSet, Function: other, Spec: spec},
				{Kind: queue.Adopted, Instance: -2, Function: a, To: residency.GPUWarm}, {Kind: queue.Adopted, Instance: -3, Function: other, To: residency.GPUWarm}}, nil)
			now, ran := time.Minute, map[int32]residency.Start{}
			events := []queue.Event{arrives(b, 1), arrives(a, 2)}
			for range 10 {
				actions := p.Step(now, events, nil)
				events = nil
				for i := range actions {
					act := &actions[i]
					answer, wanted := act.Answer()
					switch {
					case act.Kind == queue.Run:
						ran[act.Function] = act.Start
					case act.Kind == queue.Wake && act.At < now:
						t.Fatalf("woken at %v, which is over at %v", act.At, now)
					case act.Kind == queue.Wake && act.At == now && !c.answers:
						events = append(events, queue.Event{Kind: queue.Woke})
					case wanted && c.answers:
						events = append(events, answer)
					}
				}
				if len(events) == 0 {
					break
				}
			}
			st := p.Snapshot()
			if start, runs := ran[a]; c.answers && (!runs || start != c.want || ran[b] != residency.Cold) {
				t.Errorf("ran %v, want b cold and a %v", ran, c.want)
			}
			if !c.answers && (len(ran) > 0 || st.Functions[a].Instances != 2) {
				t.Errorf("ran %v and %+v, want a second instance of a to wait for room", ran, st)
			}
		})
	}
}
