package queue

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// TestExpectedEndsInBatches plays random batches on one instance by R33, and checks at each instant that the policy
// expects each invocation to end when it does, and that the order knows when the GPU is free.
func TestExpectedEndsInBatches(t *testing.T) {
	const s = time.Second
	type invocation struct {
		at, executes time.Duration
		remaining    float64 // ns of execution alone
	}
	rapid.Check(t, func(t *rapid.T) {
		policy := rapid.SampledFrom([]string{"fcfs", "gfaas", "exclusive", "lalb", "lalb-o3"}).Draw(t, "policy")
		f := Function{Warm: 10 * s, Load: 5 * s, Cold: 15 * s, Weight: 1, Batches: true, BatchWindow: time.Hour,
			Inflight: rapid.Int32Range(2, 5).Draw(t, "inflight"), BatchSlope: float64(rapid.IntRange(0, 4).Draw(t, "slope")) / 4}
		e := newEngine(Config{Policy: policy, Pool: residency.Unlimited, Options: Defaults()})
		e.Step(0, []Event{&GPUSet{GPU: 0, Slots: 1}, &FunctionSet{Function: 0, Spec: f}}, nil)
		var arrivals []time.Duration
		for at := time.Duration(0); len(arrivals) < 12; at += time.Duration(rapid.IntRange(0, 8).Draw(t, "gap")) * s {
			arrivals = append(arrivals, at)
		}
		running := map[int64]*invocation{}
		instance, started, completed := residency.None, time.Duration(0), 0
		endOf := func(v *invocation, now time.Duration) time.Duration {
			return max(now, v.executes) + multiplied(time.Duration(v.remaining), stretch(f.BatchSlope, float64(len(running))))
		}
		for now, ids := time.Duration(0), int64(0); completed < 12; {
			next := Never
			if ids < 12 {
				next = arrivals[ids]
			}
			if started > now {
				next = min(next, started)
			}
			for _, v := range running {
				next = min(next, endOf(v, now))
			}
			for _, v := range running { // at most one of them begins to execute in the middle of this, which is an instant
				v.remaining -= float64(max(next-max(now, v.executes), 0)) / stretch(f.BatchSlope, float64(len(running)))
			}
			now = next
			var events []Event
			if started == now && now > 0 {
				events = append(events, &Started{Instance: instance, ID: 0})
			}
			for _, id := range slices.Sorted(maps.Keys(running)) {
				if v := running[id]; v.executes <= now && v.remaining < 100 {
					events = append(events, &Completed{Execution{Instance: instance, ID: id, Executed: now - max(v.executes, v.at)}})
					completed++
				}
			}
			for _, ev := range events {
				if done, ok := ev.(*Completed); ok {
					delete(running, done.ID)
				}
			}
			for ids < 12 && arrivals[ids] == now {
				events = append(events, &Arrived{ID: ids, At: now})
				ids++
			}
			for _, a := range e.Step(now, events, nil) {
				if a.Kind != Run {
					continue
				}
				v := &invocation{at: now, executes: now, remaining: float64(f.Warm)}
				switch {
				case a.Start == residency.Cold:
					instance, started = a.Instance, now+f.Cold-f.Warm
					fallthrough
				case started > now:
					v.executes = started
				}
				running[a.ID] = v
				if alone := endOf(v, now) - now; max(a.Expected-alone, alone-a.Expected) > time.Microsecond {
					t.Fatalf("%v: invocation %d: expected %v at its dispatch, want %v", now, a.ID, a.Expected, alone)
				}
			}
			first, last := Never, now
			for id, v := range running {
				want, got := endOf(v, now), e.runs.find(instance, id).expectedEnd
				if max(got-want, want-got) > time.Microsecond {
					t.Fatalf("%v: expected end of invocation %d of %d: got %v, want %v", now, id, len(running), got, want)
				}
				first, last = min(first, got), max(last, got)
			}
			if len(running) == 0 {
				continue
			}
			switch o := e.order.(type) {
			case *gfaas:
				if got := o.wait(0, now); got != first-now {
					t.Fatalf("%v: expected wait for the GPU: got %v, want %v", now, got, first-now)
				}
			case *lalb:
				if got := o.gpus[0].expectedEnd; got != last {
					t.Fatalf("%v: expected end on the GPU: got %v, want %v", now, got, last)
				}
			}
		}
	})
}

// TestLALBWaitsByBatch checks that lalb and lalb-o3 choose between a busy GPU with the model and a start by the
// durations of batches: of the running one, by its invocations or by Sized, and of those in the local queue.
func TestLALBWaitsByBatch(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name    string
		slope   float64
		load    time.Duration
		times   float64 // Sized of the first two invocations at 8 s, when they begin to execute for 10 s alone; 0 means none
		later   int     // invocations at 11 s, when the batch is full and GPU 1 is idle
		waiting int     // those of them that wait for GPU 0
	}{
		{"at no cost", 0, 8 * s, 0, 1, 1},
		{"longer", 0.5, 8 * s, 0, 1, 0},
		{"large", 0, 8 * s, 1.5, 1, 0},
		{"small", 0.5, 8 * s, 0.6, 1, 1},
		{"waiting batches at no cost", 0, 18 * s, 0, 4, 3},
		{"longer waiting batches", 0.5, 28 * s, 0, 4, 3},
		{"waiting batches that take too long", 0.5, 25 * s, 0, 4, 2},
	} {
		for _, policy := range []string{"lalb", "lalb-o3"} {
			t.Run(fmt.Sprint(c.name, "/", policy), func(t *testing.T) {
				f := Function{Warm: 10 * s, Load: c.load, Cold: 18 * s, Weight: 1, Batches: true, BatchWindow: time.Hour, Inflight: 2, BatchSlope: c.slope}
				e := newEngine(Config{Policy: policy, Pool: residency.Unlimited, Options: Defaults()})
				events := []Event{&GPUSet{GPU: 0, Slots: 1}, &FunctionSet{Function: 0, Spec: f}, &Arrived{ID: 0}, &Arrived{ID: 1}}
				var instance residency.ID
				for _, a := range e.Step(0, events, nil) {
					if a.Kind == Run {
						instance = a.Instance
					}
				}
				events = []Event{&Started{Instance: instance}}
				if c.times > 0 {
					events = append(events, &Sized{Instance: instance, ID: 0, Times: c.times}, &Sized{Instance: instance, ID: 1, Times: c.times})
				}
				e.Step(8*s, events, nil)
				events = []Event{&GPUSet{GPU: 1, Slots: 1}}
				for i := range c.later {
					events = append(events, &Arrived{ID: int64(2 + i), At: 11 * s})
				}
				waiting := 0
				for _, a := range e.Step(11*s, events, nil) {
					if a.Kind == Assign && a.GPU == 0 {
						waiting++
					}
				}
				if waiting != c.waiting {
					t.Errorf("%d invocations wait for the busy GPU, want %d (free in %v)", waiting, c.waiting, e.order.(*lalb).gpus[0].free()-11*s)
				}
			})
		}
	}
}

func TestBacklogOn(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		batches  bool
		inflight int32
		slope    float64
		n        int
		want     time.Duration
	}{
		{false, 1, 0, 3, 30 * s},
		{false, 4, 0.5, 3, 30 * s},
		{true, 4, 0, 0, 0},
		{true, 4, 0, 3, 10 * s},
		{true, 4, 0, 9, 30 * s},
		{true, 4, 0.5, 1, 10 * s},
		{true, 4, 0.5, 4, 25 * s},
		{true, 4, 0.5, 6, 40 * s},
		{true, 4, 1, 7, 70 * s},
	} {
		e := newEngine(Config{Policy: "lalb", Pool: residency.Unlimited, Options: Defaults()})
		e.Step(0, []Event{&GPUSet{GPU: 0, Slots: 1}, &FunctionSet{Function: 0, Spec: Function{Warm: 10 * s, Weight: 1, Batches: c.batches, Inflight: c.inflight, BatchSlope: c.slope}}}, nil)
		if got := e.backlogOn(0, 0, c.n); got != c.want {
			t.Errorf("%+v: got %v", c, got)
		}
	}
}
