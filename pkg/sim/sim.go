// Package sim runs queueing policies on a virtual clock: a trace comes in, the
// policy says what runs where, and a model of GPUs says how long it takes
// (docs/simulation.md). Policies know of no clock: the gateway runs the same.
package sim

import (
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/trace"
)

// Config is what is simulated.
type Config struct {
	queue.Config
	Functions   []trace.Function
	GPUs        int
	Mem         int64 // bytes of memory of each GPU; 0 is no limit
	Concurrency int   // invocations that a GPU runs at once (D); lb and lalb run one
	// Interference is how much longer an invocation takes for each other that
	// runs on its GPU when it starts: 1 + Interference × others times as long.
	Interference float64
	// Curve are the quantiles of latency, 0 to 1, to return in the result's.
	Curve []float64
	// Demand is the share of a GPU that an invocation keeps busy, for policies
	// that adapt to it; 0 is all of it.
	Demand float64
	// Decide, unless nil, sees every decision as it is taken.
	Decide func(now time.Duration, a *queue.Action) error
	// Restart, unless nil, is called when decisions seen so far do not count:
	// the trace has to be sorted first.
	Restart func() error
	// Progress, unless nil, is told now and then how many invocations have
	// arrived; its error ends the run.
	Progress func(arrived int64) error
}

// run is one simulation under way.
type run struct {
	config  Config
	policy  queue.Policy
	trace   trace.Rows
	now     time.Duration
	next    trace.Row // the next arrival
	more    bool      // whether there is one
	ids     int64
	starts  int64
	busy    []int32 // invocations that run, by GPU
	flight  flight
	events  []queue.Event
	actions []queue.Action
	stats   *stats
	gap     *gap
	wake    time.Duration // when the policy wants to be called
	sampled time.Duration // when utilization was looked at last
	alike   int           // samples since anything else happened
}

// Run simulates a trace to its end. The functions of the trace's rows are
// indices into the config's. The error is the trace's, the config's, or that
// of the clock running out.
func Run(c Config, rows trace.Rows) (*Result, error) {
	p, err := queue.New(c.Config)
	if err != nil {
		return nil, err
	}
	r := &run{config: c, policy: p, trace: rows, busy: make([]int32, c.GPUs),
		stats: newStats(len(c.Functions)), gap: newGap(c.Functions), wake: queue.Never}
	p.Step(0, setUp(c), nil)
	if err := r.advance(); err != nil {
		return nil, err
	}
	for {
		if done, err := r.step(); done || err != nil {
			if err != nil {
				return nil, err
			}
			return r.result(), nil
		}
	}
}

// TooLarge says whether no GPU can hold a function: its invocations are
// rejected.
func TooLarge(c Config, f trace.Function) bool { return c.Mem > 0 && memory(f.MemMiB) > c.Mem }

// setUp is how a policy learns of the machine and the functions.
func setUp(c Config) []queue.Event {
	var events []queue.Event
	for g := range c.GPUs {
		events = append(events, queue.Event{Kind: queue.GPUSet, GPU: int32(g), Machine: &queue.GPU{Slots: c.Concurrency, Mem: c.Mem}})
	}
	functions := policyFunctions(c.Functions)
	for i := range functions {
		if f := &functions[i]; queue.OneAtATime(c.Policy) {
			f.Cold = f.Warm + f.Load // there are no containers (R18)
		}
	}
	for i := range functions {
		events = append(events, queue.Event{Kind: queue.FunctionSet, Function: int32(i), Spec: &functions[i]})
	}
	return events
}

// policyFunctions are functions as policies know them.
func policyFunctions(functions []trace.Function) []queue.Function {
	models, tenants := map[string]int32{}, map[string]int32{}
	number := func(of map[string]int32, name string, next int) int32 {
		if _, known := of[name]; !known {
			of[name] = int32(next)
		}
		return of[name]
	}
	out := make([]queue.Function, len(functions))
	for i, f := range functions {
		out[i] = queue.Function{Name: f.Name, Warm: f.Warm, Cold: f.Cold, Load: f.Load, Mem: memory(f.MemMiB), Weight: f.Weight,
			Model: number(models, f.Model, i+1), Tenant: number(tenants, f.Tenant, len(tenants))}
	}
	return out
}

func memory(mib float64) int64 { return int64(math.Round(min(mib*(1<<20), 1<<62))) }

// advance looks at the next arrival.
func (r *run) advance() error {
	row, err := r.trace.Next()
	r.next, r.more = row, err == nil
	if !r.more && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// step goes to the next instant at which something happens, tells the policy,
// and does what it says.
func (r *run) step() (done bool, err error) {
	now, some := r.upcoming()
	if !some {
		return true, nil
	}
	if now < r.now {
		return false, fmt.Errorf("the simulated time goes beyond %s ms", trace.Millis(math.MaxInt64))
	}
	r.now = now
	r.gap.to(now, &r.flight)
	r.events = r.events[:0]
	r.complete()
	r.woke()
	if err := r.arrive(); err != nil {
		return false, err
	}
	r.sample()
	r.stats.events += int64(len(r.events))
	for { // until nothing follows from what instances answer, which they do at once
		r.actions = r.policy.Step(now, r.events, r.actions[:0])
		r.events = r.events[:0]
		for i := range r.actions {
			if err := r.act(&r.actions[i]); err != nil {
				return false, err
			}
		}
		if len(r.events) == 0 {
			return false, nil
		}
	}
}

// upcoming is the next instant at which something happens.
func (r *run) upcoming() (now time.Duration, some bool) {
	if r.more {
		now, some = r.next.At, true
	}
	if r.flight.len() > 0 && (!some || r.flight.end() < now) {
		now, some = r.flight.end(), true
	}
	if r.wake < queue.Never && (!some || r.wake < now) {
		now, some = r.wake, true
	}
	if some && r.config.Utilization > 0 && r.flight.len() > 0 && r.alike < mostAlike {
		now = min(now, max(r.sampled+samplePeriod, r.now))
	}
	return now, some
}

// samplePeriod is how often GPUs' utilization is looked at (MQFQ-Sticky,
// section 5).
const samplePeriod = 200 * time.Millisecond

// mostAlike is after how many samples without anything happening between there
// is nothing new to learn from more.
const mostAlike = 100

// sample tells a policy that adapts to it how busy GPUs are.
func (r *run) sample() {
	if r.config.Utilization == 0 || r.now < r.sampled+samplePeriod {
		return
	}
	r.alike++
	if len(r.events) > 0 {
		r.alike = 0
	}
	r.sampled = r.now
	demand := r.config.Demand
	if demand == 0 {
		demand = 1
	}
	for g, n := range r.busy {
		r.events = append(r.events, queue.Event{Kind: queue.Used, GPU: int32(g), Busy: min(float64(n)*demand, 1)})
	}
}

// complete takes what ends now, by GPU and order of start (R1).
func (r *run) complete() {
	for r.flight.len() > 0 && r.flight.end() == r.now {
		v := r.flight.pop()
		r.busy[v.gpu]--
		r.stats.completed(v)
		r.gap.ended(v)
		r.events = append(r.events, queue.Event{Kind: queue.Completed, Function: v.function, GPU: v.gpu,
			Instance: v.instance, ID: v.id, Executed: v.end - v.executes})
	}
}

func (r *run) woke() {
	if r.wake <= r.now {
		r.wake = queue.Never
		r.events = append(r.events, queue.Event{Kind: queue.Woke})
	}
}

// arrive takes the invocations that come now, in the order of the trace.
func (r *run) arrive() error {
	for r.more && r.next.At == r.now {
		f := r.next.Function
		r.events = append(r.events, queue.Event{Kind: queue.Arrived, Function: f, ID: r.ids, At: r.now})
		r.stats.arrived(r.now)
		r.gap.arrived(f)
		r.ids++
		if r.ids%(1<<16) == 0 && r.config.Progress != nil {
			if err := r.config.Progress(r.ids); err != nil {
				return err
			}
		}
		if err := r.advance(); err != nil {
			return err
		}
	}
	return nil
}

// act does what the policy says.
func (r *run) act(a *queue.Action) error {
	switch a.Kind {
	case queue.Run:
		if a.Start == residency.Cold && queue.OneAtATime(r.config.Policy) {
			a.Start = residency.HostWarm // R18
		}
		if err := r.start(a); err != nil {
			return err
		}
	case queue.Reject:
		r.stats.reject(a.Function)
		r.gap.left(a.Function)
	case queue.Wake:
		r.wake = a.At
	}
	if answer, wanted := a.Answer(); wanted {
		r.events = append(r.events, answer)
	}
	if r.config.Decide != nil {
		return r.config.Decide(r.now, a)
	}
	return nil
}

// start begins an invocation: it takes as long as the policy expects, longer
// when others run beside it.
func (r *run) start(a *queue.Action) error {
	total, warm := a.Expected, min(r.gap.functions[a.Function].warm, a.Expected)
	if others := r.busy[a.GPU]; others > 0 && r.config.Interference > 0 {
		factor := 1 + r.config.Interference*float64(others)
		total, warm = stretch(total, factor), stretch(warm, factor)
	}
	end := r.now + total
	if end < r.now {
		return fmt.Errorf("the simulated time goes beyond %s ms", trace.Millis(math.MaxInt64))
	}
	r.busy[a.GPU]++
	v := invocation{end: end, executes: end - warm, begin: r.now, arrived: a.Arrived, id: a.ID,
		function: a.Function, gpu: a.GPU, instance: a.Instance}
	r.flight.push(v, r.starts)
	r.starts++
	r.stats.started(a)
	r.gap.started(a.Function, warm)
	return nil
}

func stretch(d time.Duration, factor float64) time.Duration {
	return time.Duration(min(math.Round(float64(d)*factor), math.MaxInt64/2))
}
