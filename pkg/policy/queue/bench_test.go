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

// crowd drives a policy as a gateway would that always has so many invocations
// waiting: for each that ends, or is rejected, another comes. Starts, moves and
// stops take their time; all goes well.
type crowd struct {
	policy    queue.Policy
	r         *rand.Rand
	popular   *rand.Zipf
	functions []queue.Function
	now       time.Duration
	due       upcoming
	wake      time.Duration
	known     map[residency.ID]bool // instances that are there, or start
	ids       int64
	actions   []queue.Action
	took      []time.Duration // by each step, once asked for
	timed     bool
}

type timedEvent struct {
	at time.Duration
	queue.Event
}

// upcoming is a heap, the first at the root.
type upcoming []timedEvent

func (u upcoming) Len() int           { return len(u) }
func (u upcoming) Less(i, j int) bool { return u[i].at < u[j].at }
func (u upcoming) Swap(i, j int)      { u[i], u[j] = u[j], u[i] }
func (u *upcoming) Push(x any)        { *u = append(*u, x.(timedEvent)) }
func (u *upcoming) Pop() any {
	last := len(*u) - 1
	x := (*u)[last]
	*u = (*u)[:last]
	return x
}

// shape is what a crowd comes to.
type shape struct {
	functions, waiting int
	gpus, slots, pool  int
	mem                int64 // of a GPU; functions take up to a half of it
	inflight           int32 // calls that an instance of every tenth function takes
}

const crowdPatience = time.Minute // as the gateway's --queue-timeout

func newCrowd(tb testing.TB, name string, s shape) *crowd {
	policy, err := queue.New(queue.Config{Policy: name, Pool: s.pool, Options: queue.Defaults()})
	if err != nil {
		tb.Fatal(err)
	}
	c := &crowd{policy: policy, r: rand.New(rand.NewPCG(1, 2)), known: map[residency.ID]bool{}, wake: queue.Never}
	c.popular = rand.NewZipf(c.r, 1.1, 10, uint64(s.functions-1))
	for g := range s.gpus {
		c.step(queue.Event{Kind: queue.GPUSet, GPU: int32(g), Machine: &queue.GPU{Slots: s.slots, Mem: s.mem}})
	}
	for f := range s.functions {
		warm := time.Duration(5+c.r.IntN(100)) * time.Millisecond
		spec := queue.Function{Warm: warm, Cold: warm + time.Duration(200+c.r.IntN(800))*time.Millisecond, Load: 50 * time.Millisecond,
			Mem: s.mem/64 + c.r.Int64N(s.mem*31/64+1), Weight: 1, Inflight: 1, Name: fmt.Sprint("f", f)}
		if s.inflight > 1 && f%10 == 0 {
			spec.Inflight = s.inflight
		}
		c.functions = append(c.functions, spec)
		c.step(queue.Event{Kind: queue.FunctionSet, Function: int32(f), Spec: &spec})
	}
	for n := range s.waiting { // as if they had come at a steady rate
		c.arrive(crowdPatience * time.Duration(n+1) / time.Duration(s.waiting))
	}
	return c
}

// arrive has another invocation come, that waits for so long.
func (c *crowd) arrive(patience time.Duration) {
	c.ids++
	c.step(queue.Event{Kind: queue.Arrived, ID: c.ids, Function: int32(c.popular.Uint64()), At: c.now, Deadline: c.now + patience})
}

func (c *crowd) after(d time.Duration, e queue.Event) { pq.Push(&c.due, timedEvent{c.now + d, e}) }

// next has the next thing happen.
func (c *crowd) next() {
	if c.wake < c.due[0].at {
		c.now, c.wake = c.wake, queue.Never
		c.step(queue.Event{Kind: queue.Woke})
		return
	}
	d := pq.Pop(&c.due).(timedEvent)
	c.now = d.at
	if d.Kind == queue.Lost {
		delete(c.known, d.Instance)
	}
	c.step(d.Event)
	if d.Kind == queue.Completed {
		c.arrive(crowdPatience)
	}
}

// step gives the policy one event, and has what it says come to be.
func (c *crowd) step(e queue.Event) {
	events := [1]queue.Event{e}
	begin := time.Now()
	c.actions = c.policy.Step(c.now, events[:], c.actions[:0])
	if took := time.Since(begin); c.timed {
		c.took = append(c.took, took)
	}
	more := 0
	for i := range c.actions {
		switch a := &c.actions[i]; a.Kind {
		case queue.Run:
			f, start := &c.functions[a.Function], time.Duration(0)
			switch {
			case !c.known[a.Instance]:
				c.known[a.Instance], start = true, f.Cold-f.Warm
				c.after(start, queue.Event{Kind: queue.Started, Function: a.Function, Instance: a.Instance, ID: a.ID})
			case a.Start == residency.HostWarm:
				start = f.Load
			}
			executed := f.Warm/2 + time.Duration(c.r.Int64N(int64(f.Warm)))
			c.after(start+executed, queue.Event{Kind: queue.Completed, Function: a.Function, Instance: a.Instance, ID: a.ID, Executed: executed})
		case queue.Start:
			c.known[a.Instance] = true
			c.after(time.Second, queue.Event{Kind: queue.Ready, Function: a.Function, Instance: a.Instance})
		case queue.Remove:
			c.after(50*time.Millisecond, queue.Event{Kind: queue.Lost, Function: a.Function, Instance: a.Instance})
		case queue.Offload:
			c.after(20*time.Millisecond, queue.Event{Kind: queue.Moved, Function: a.Function, Instance: a.Instance, To: residency.HostWarm})
		case queue.Prefetch:
			c.after(20*time.Millisecond, queue.Event{Kind: queue.Moved, Function: a.Function, Instance: a.Instance, To: residency.GPUWarm})
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

// BenchmarkDecision is how long a policy takes from an event to what is to be done
// about it, with 1,000 functions of which 10,000 invocations wait: the median, the
// 99th percentile and the longest. What waits too long is rejected meanwhile.
func BenchmarkDecision(b *testing.B) {
	for _, w := range []struct {
		name string
		shape
	}{
		{"memory", shape{functions: 1000, waiting: 10000, gpus: 8, slots: 4, pool: 32, mem: 16 << 30}},
		{"shared", shape{functions: 1000, waiting: 10000, gpus: 8, slots: 4, pool: 32, mem: 80 << 30, inflight: 4}},
		{"slots", shape{functions: 1000, waiting: 10000, gpus: 8, slots: 4, pool: 64}},
	} {
		for _, name := range queue.Names() {
			b.Run(w.name+"/"+name, func(b *testing.B) {
				c := newCrowd(b, name, w.shape)
				for c.now < 2*crowdPatience { // until what is rejected is as much as will be
					c.next()
				}
				c.timed = true
				b.ReportAllocs()
				for b.Loop() {
					c.next()
				}
				slices.SortFunc(c.took, cmp.Compare)
				at := func(q float64) float64 { return c.took[int(q*float64(len(c.took)-1))].Seconds() * 1e6 }
				b.ReportMetric(at(0.5), "p50-us")
				b.ReportMetric(at(0.99), "p99-us")
				b.ReportMetric(at(1), "max-us")
			})
		}
	}
}
