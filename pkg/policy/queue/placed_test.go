package queue_test

import (
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// TestPlaced checks under every policy that no instance of a placed function starts by itself, that a
// requested one starts on its GPU and serves the waiting invocation, and that a retired one stops after
// its invocation.
func TestPlaced(t *testing.T) {
	for _, name := range queue.Names() {
		if name == "fcfs-naive" {
			continue // it keeps no idle instance
		}
		t.Run(name, func(t *testing.T) {
			p, err := queue.New(queue.Config{Policy: name, Pool: residency.Unlimited, Options: queue.Defaults()})
			if err != nil {
				t.Fatal(err)
			}
			now := time.Duration(0)
			step := func(events ...queue.Event) (only queue.Action) {
				t.Helper()
				now += time.Second
				n := 0
				for _, a := range p.Step(now, events, nil) {
					if a.Kind != queue.Wake {
						only = a
						n++
					}
				}
				if n > 1 {
					t.Fatalf("got %d actions, want at most one", n)
				}
				return only
			}
			spec := queue.Function{Warm: time.Second, Cold: 2 * time.Second, Mem: 5, Weight: 1, Min: 1, Max: 2, Placed: true}
			none := queue.Action{}
			if a := step(&queue.GPUSet{Slots: 2, Mem: 10}, &queue.GPUSet{GPU: 1, Slots: 2, Mem: 10}, &queue.FunctionSet{Spec: spec}, &queue.Arrived{}); a != none {
				t.Fatalf("got %+v, want no start", a)
			}
			if why := p.Snapshot().Functions[0].WaitReason.Code; why != "waiting-for-placement" && name != "lalb" && name != "lalb-o3" && name != "lb" {
				t.Errorf("got the reason %q", why)
			}
			a := step(&queue.StartRequested{GPU: 1})
			if a.Kind != queue.Start || a.GPU != 1 || a.Reason.Code != "placed" {
				t.Fatalf("got %+v, want a start on GPU 1", a)
			}
			first := a.Instance
			if a = step(&queue.Ready{Instance: first}); a.Kind != queue.Run || a.Instance != first {
				t.Fatalf("got %+v, want the invocation on the instance", a)
			}
			if a = step(&queue.Retired{Instance: first}); a != none {
				t.Fatalf("got %+v, want the busy instance to go on", a)
			}
			if a = step(&queue.Arrived{ID: 1, At: now}); a != none {
				t.Fatalf("got %+v, want no further invocation on the retired instance", a)
			}
			a = step(&queue.Completed{Execution: queue.Execution{Instance: first, Executed: time.Second}})
			if a.Kind != queue.Remove || a.Instance != first {
				t.Fatalf("got %+v, want the retired instance stopped", a)
			}
			if a = step(&queue.StartRequested{GPU: 1}); a.Kind != queue.Start || a.GPU != 1 {
				t.Fatalf("beside the memory of the stopping instance: got %+v, want a start", a)
			}
			if a = step(&queue.Retired{Instance: a.Instance}); a.Kind != queue.Remove || a.Reason.Code != "retired" {
				t.Fatalf("got %+v, want the start cancelled", a)
			}
			if a = step(&queue.StartRequested{GPU: 1}); a != none {
				t.Fatalf("got %+v, want no start without room", a)
			}
		})
	}
}

// TestSliced checks that instances of a function take the capacity of their own slices: two with 0.3 and
// 0.6 run on a GPU at the same time, and one with 0.3 does not fit in addition.
func TestSliced(t *testing.T) {
	p, err := queue.New(queue.Config{Policy: "fcfs", Pool: residency.Unlimited, Options: queue.Defaults()})
	if err != nil {
		t.Fatal(err)
	}
	spec := queue.Function{Warm: time.Second, Cold: 2 * time.Second, Weight: 1, Placed: true, Slice: 0.9}
	var instances []residency.ID
	events := []queue.Event{&queue.GPUSet{Slots: 2}, &queue.FunctionSet{Spec: spec}}
	for range 3 {
		events = append(events, &queue.StartRequested{})
	}
	for _, a := range p.Step(0, events, nil) {
		if a.Kind == queue.Start {
			instances = append(instances, a.Instance)
		}
	}
	events = nil
	for i, slice := range []float64{0.3, 0.6, 0.3} {
		events = append(events, &queue.Ready{Instance: instances[i]}, &queue.Sliced{Instance: instances[i], Slice: slice}, &queue.Arrived{ID: int64(i)})
	}
	ran := 0
	for _, a := range p.Step(time.Second, events, nil) {
		if a.Kind == queue.Run {
			ran++
		}
	}
	if ran != 2 {
		t.Errorf("got %d runs at the same time, want 2", ran)
	}
}
