package queue_test

import (
	"cmp"
	pq "container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// crowd drives a policy like a busy gateway with a constant number of pending invocations: a new
// one arrives for each that completes or is rejected. Starts, moves and stops take time and
// succeed.
type crowd struct {
	policy    queue.Policy
	r         *rand.Rand
	popular   *rand.Zipf
	functions []queue.Function
	now       time.Duration
	pending   eventHeap
	wake      time.Duration
	known     map[residency.ID]bool // running and starting instances
	ids       int64
	actions   []queue.Action
	stepTimes []time.Duration // duration of each step while timed is set
	timed     bool
}

type timedEvent struct {
	at time.Duration
	queue.Event
}

// eventHeap is a heap with the earliest event at the root.
type eventHeap []timedEvent

func (u eventHeap) Len() int           { return len(u) }
func (u eventHeap) Less(i, j int) bool { return u[i].at < u[j].at }
func (u eventHeap) Swap(i, j int)      { u[i], u[j] = u[j], u[i] }
func (u *eventHeap) Push(x any)        { *u = append(*u, x.(timedEvent)) }
func (u *eventHeap) Pop() any {
	last := len(*u) - 1
	x := (*u)[last]
	*u = (*u)[:last]
	return x
}

// shape describes the size of a crowd.
type shape struct {
	functions, waiting int
	gpus, slots, pool  int
	mem                int64 // of a GPU; a function uses at most half of it
	inflight           int32 // concurrent calls of an instance, for every tenth function
	batches            bool  // these functions run batches
}

const crowdPatience = time.Minute // like the gateway's --queue-timeout

func newCrowd(tb testing.TB, name string, s shape) *crowd {
	policy, err := queue.New(queue.Config{Policy: name, Pool: s.pool, Options: queue.Defaults()})
	if err != nil {
		tb.Fatal(err)
	}
	c := &crowd{policy: policy, r: rand.New(rand.NewPCG(1, 2)), known: map[residency.ID]bool{}, wake: queue.Never}
	c.popular = rand.NewZipf(c.r, 1.1, 10, uint64(s.functions-1))
	for g := range s.gpus {
		c.step(&queue.GPUSet{GPU: int32(g), Slots: s.slots, Mem: s.mem})
	}
	for f := range s.functions {
		warm := time.Duration(5+c.r.IntN(100)) * time.Millisecond
		spec := queue.Function{Warm: warm, Cold: warm + time.Duration(200+c.r.IntN(800))*time.Millisecond, Load: 50 * time.Millisecond,
			Mem: s.mem/64 + c.r.Int64N(s.mem*31/64+1), Weight: 1, Inflight: 1, Name: fmt.Sprint("f", f)}
		if s.inflight > 1 && f%10 == 0 {
			spec.Inflight, spec.Batches, spec.BatchWindow = s.inflight, s.batches, time.Second
		}
		c.functions = append(c.functions, spec)
		c.step(&queue.FunctionSet{Function: int32(f), Spec: spec})
	}
	for n := range s.waiting { // as after arrivals at a steady rate
		c.arrive(crowdPatience * time.Duration(n+1) / time.Duration(s.waiting))
	}
	return c
}

// arrive adds an invocation that waits for at most patience.
func (c *crowd) arrive(patience time.Duration) {
	c.ids++
	c.step(&queue.Arrived{ID: c.ids, Function: int32(c.popular.Uint64()), At: c.now, Deadline: c.now + patience})
}

func (c *crowd) after(d time.Duration, e queue.Event) { pq.Push(&c.pending, timedEvent{c.now + d, e}) }

// next processes the next event.
func (c *crowd) next() {
	if c.wake < c.pending[0].at {
		c.now, c.wake = c.wake, queue.Never
		c.step(&queue.Woke{})
		return
	}
	d := pq.Pop(&c.pending).(timedEvent)
	c.now = d.at
	if lost, ok := d.Event.(*queue.Lost); ok {
		delete(c.known, lost.Instance)
	}
	c.step(d.Event)
	if _, ok := d.Event.(*queue.Completed); ok {
		c.arrive(crowdPatience)
	}
}

// step reports an event to the policy and performs its actions.
func (c *crowd) step(e queue.Event) {
	events := [1]queue.Event{e}
	begin := time.Now()
	c.actions = c.policy.Step(c.now, events[:], c.actions[:0])
	if took := time.Since(begin); c.timed {
		c.stepTimes = append(c.stepTimes, took)
	}
	more := 0
	for i := range c.actions {
		switch a := &c.actions[i]; a.Kind {
		case queue.Run:
			f, start := &c.functions[a.Function], time.Duration(0)
			switch {
			case !c.known[a.Instance]:
				c.known[a.Instance], start = true, f.Cold-f.Warm
				c.after(start, &queue.Started{Function: a.Function, Instance: a.Instance, ID: a.ID})
			case a.Start == residency.HostWarm:
				start = f.Load
			}
			executed := f.Warm/2 + time.Duration(c.r.Int64N(int64(f.Warm)))
			c.after(start+executed, &queue.Completed{Execution: queue.Execution{Function: a.Function, Instance: a.Instance, ID: a.ID, Executed: executed}})
		case queue.Start:
			c.known[a.Instance] = true
			c.after(time.Second, &queue.Ready{Function: a.Function, Instance: a.Instance})
		case queue.Remove:
			c.after(50*time.Millisecond, &queue.Lost{Function: a.Function, Instance: a.Instance})
		case queue.Offload:
			c.after(20*time.Millisecond, &queue.Moved{Function: a.Function, Instance: a.Instance, To: residency.HostWarm})
		case queue.Prefetch:
			c.after(20*time.Millisecond, &queue.Moved{Function: a.Function, Instance: a.Instance, To: residency.GPUWarm})
		case queue.Wake:
			c.wake = max(a.At, c.now)
		case queue.Reject:
			more++
		}
	}
	for range more {
		c.arrive(crowdPatience)
	}
}

// BenchmarkDecision measures the time that a policy takes for one event, with 1,000 functions and
// 10,000 pending invocations: the median, the 99th percentile and the maximum. Invocations that
// wait too long are rejected.
func BenchmarkDecision(b *testing.B) {
	for _, w := range []struct {
		name string
		shape
	}{
		{"memory", shape{functions: 1000, waiting: 10000, gpus: 8, slots: 4, pool: 32, mem: 16 << 30}},
		{"shared", shape{functions: 1000, waiting: 10000, gpus: 8, slots: 4, pool: 32, mem: 80 << 30, inflight: 4}},
		{"batches", shape{functions: 1000, waiting: 10000, gpus: 8, slots: 4, pool: 32, mem: 80 << 30, inflight: 4, batches: true}},
		{"slots", shape{functions: 1000, waiting: 10000, gpus: 8, slots: 4, pool: 64}},
	} {
		for _, name := range queue.Names() {
			b.Run(w.name+"/"+name, func(b *testing.B) {
				c := newCrowd(b, name, w.shape)
				for c.now < 2*crowdPatience { // until the rate of rejections is stable
					c.next()
				}
				c.timed = true
				b.ReportAllocs()
				for b.Loop() {
					c.next()
				}
				slices.SortFunc(c.stepTimes, cmp.Compare)
				at := func(q float64) float64 { return c.stepTimes[int(q*float64(len(c.stepTimes)-1))].Seconds() * 1e6 }
				b.ReportMetric(at(0.5), "p50-us")
				b.ReportMetric(at(0.99), "p99-us")
				b.ReportMetric(at(1), "max-us")
			})
		}
	}
}

// BenchmarkScale measures the time for one event on 1,024 and on 65,536 GPUs with the same load for
// each GPU. It measures the second 8 events for each GPU, because the first ones mostly start
// instances, and later ones run on other numbers of instances.
func BenchmarkScale(b *testing.B) {
	for _, name := range []string{"gfaas", "lalb-o3", "cfs-affinity"} {
		for _, gpus := range []int{1 << 10, 1 << 16} {
			b.Run(fmt.Sprintf("%s/%d", name, gpus), func(b *testing.B) {
				var c *crowd
				remaining := 0
				for b.Loop() {
					if remaining == 0 {
						b.StopTimer()
						c = newCrowd(b, name, shape{functions: 1000, waiting: 6 * gpus, gpus: gpus, slots: 4, pool: 8, mem: 16 << 30})
						for range 8 * gpus {
							c.next()
						}
						remaining = 8 * gpus
						b.StartTimer()
					}
					c.next()
					remaining--
				}
			})
		}
	}
}
