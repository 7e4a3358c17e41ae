// Package sim runs the queueing policies of pkg/policy/queue on a virtual clock. It reads a trace
// of invocations, performs the policy's decisions on model GPUs, and measures latency, starts and
// fairness (docs/simulation.md). Policies do not read a clock, so the gateway runs the same code.
// Run takes a Config and a trace and returns a Result; pkg/command/sim calls it.
package sim

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/trace"
)

// Config describes a simulation.
type Config struct {
	queue.Config
	Functions   []trace.Function
	GPUs        int
	Mem         int64 // bytes of memory of each GPU; 0 means no limit
	Concurrency int   // concurrent invocations of a GPU (D); lb, lalb and lalb-o3 use 1
	// Interference lengthens an invocation by 1 + Interference × others, where others is the
	// number of other invocations on its GPU when it starts.
	Interference float64
	// RepeatUntil makes a closed loop: when an invocation completes before this time, another one
	// of its function arrives at the same instant. 0 means that none does.
	RepeatUntil time.Duration
	// Curve lists the quantiles of latency, 0 to 1, for Result.Curve.
	Curve []float64
	// Mover, unless nil, is how memory moves; see SetMover. Fault and Hints are its parameters: paging
	// takes Fault times as long as a move of the whole memory, and Hints is the time of the hints of an invocation.
	Mover *Mover
	Fault float64
	Hints time.Duration
	// Demand is the share of a GPU that an invocation keeps busy, for policies that adapt to
	// utilization; 0 means the whole GPU.
	Demand float64
	// WeightsMem is the memory of each GPU, in bytes, for the weights that functions share (gfaas-modeld's
	// capacity); 0 means no limit. It does not count for Mem.
	WeightsMem int64
	// BatchWindow is how long invocations join a batch while others wait for another instance.
	BatchWindow time.Duration
	// Decide, unless nil, is called for every decision.
	Decide func(now time.Duration, a *queue.Action) error
	// Restart, unless nil, discards the effects of earlier calls of Decide. Callers of Run call it
	// before they simulate the trace again, sorted.
	Restart func() error
	// Progress, unless nil, is called periodically with the number of arrivals. Its error ends
	// the run.
	Progress func(arrived int64) error
}

// run is a simulation in progress.
type run struct {
	config      Config
	policy      queue.Policy
	trace       trace.Rows
	now         time.Duration
	next        trace.Row // the next arrival
	hasNext     bool      // whether next is valid
	ids         int64
	starts      int64
	busy        []int32 // by GPU: invocations in flight
	flight      flight
	batches     batches
	weights     *weights // nil if functions share none
	events      []queue.Event
	arrivals    []queue.Arrived   // the Arrived events in events
	completions []queue.Completed // the Completed events in events
	repeats     []int32           // functions of invocations that arrive now in a closed loop
	actions     []queue.Action
	stats       *stats
	gap         *gap
	wake        time.Duration // time of the policy's last Wake
	evicted     evictions
	sampled     time.Duration // last sample of the utilization
	idleSamples int           // consecutive samples without other events
}

// Run simulates a trace to its end. The functions in the trace's rows are indices into
// c.Functions. Run returns an error if the trace or the configuration is invalid, or if the clock
// would overflow.
func Run(c Config, rows trace.Rows) (*Result, error) {
	r, err := newRun(c, rows)
	if err != nil {
		return nil, err
	}
	return r.finish()
}

// newRun returns a simulation before its first step.
func newRun(c Config, rows trace.Rows) (*run, error) {
	p, err := queue.New(c.Config)
	if err != nil {
		return nil, err
	}
	r := &run{config: c, policy: p, trace: rows, busy: make([]int32, c.GPUs), evicted: evictions{time: make([]time.Duration, c.GPUs)},
		stats: newStats(len(c.Functions)), gap: newGap(c.Functions), wake: queue.Never}
	if c.Policy != "batch" && slices.ContainsFunc(c.Functions, func(f trace.Function) bool { return f.Inflight > 1 }) {
		r.batches.running = map[residency.ID]*batch{}
	}
	r.weights = newWeights(&c)
	p.Step(0, setUp(c), nil)
	return r, r.advance()
}

// finish performs all steps of a simulation.
func (r *run) finish() (*Result, error) {
	for {
		done, err := r.step()
		if err != nil {
			return nil, err
		}
		if done {
			return r.result(), nil
		}
	}
}

// TooLarge reports whether no GPU can hold the function, so that its invocations are rejected.
func TooLarge(c Config, f trace.Function) bool { return c.Mem > 0 && memory(f.MemMiB) > c.Mem }

// setUp returns the events that add the GPUs and the functions.
func setUp(c Config) []queue.Event {
	events := make([]queue.Event, 0, c.GPUs+len(c.Functions))
	for g := range c.GPUs {
		events = append(events, &queue.GPUSet{GPU: int32(g), Slots: c.Concurrency, Mem: c.Mem})
	}
	functions := policyFunctions(c.Functions)
	for i := range functions {
		f := &functions[i]
		if queue.OneAtATime(c.Policy) {
			f.Cold = f.Warm + f.Load // there are no instances (R18)
		}
		if f.Inflight > 1 {
			f.Batches, f.BatchWindow = true, c.BatchWindow
		}
	}
	for i := range functions {
		events = append(events, &queue.FunctionSet{Function: int32(i), Spec: functions[i]})
	}
	return events
}

// policyFunctions converts functions to the descriptions that policies use.
func policyFunctions(functions []trace.Function) []queue.Function {
	models, tenants := map[string]int32{}, map[string]int32{}
	number := func(of map[string]int32, name string, next int) int32 {
		if _, known := of[name]; !known {
			of[name] = int32(next)
		}
		return of[name]
	}
	list := make([]queue.Function, len(functions))
	for i, f := range functions {
		list[i] = queue.Function{Name: f.Name, Warm: f.Warm, Cold: f.Cold, Load: f.Load, Mem: memory(f.MemMiB), Weight: f.Weight,
			Model: number(models, f.Model, i+1), Tenant: number(tenants, f.Tenant, len(tenants)), Inflight: int32(f.Inflight), BatchSlope: f.BatchSlope}
	}
	return list
}

func memory(mib float64) int64 { return int64(math.Round(min(mib*(1<<20), 1<<62))) }

// advance reads the next arrival.
func (r *run) advance() error {
	row, err := r.trace.Next()
	r.next, r.hasNext = row, err == nil
	if !r.hasNext && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// step advances to the next instant with an event, reports the events to the policy, and performs
// its actions.
func (r *run) step() (done bool, err error) {
	now, found := r.upcoming()
	if !found {
		return true, nil
	}
	if now < r.now {
		return false, fmt.Errorf("the simulated time exceeds %s ms", trace.Millis(math.MaxInt64))
	}
	r.now = now
	r.gap.closeWindows(now, &r.flight)
	r.events, r.arrivals, r.completions = r.events[:0], r.arrivals[:0], r.completions[:0]
	r.ready()
	r.loadWeights()
	r.complete()
	r.deliverWake()
	if err := r.arrive(); err != nil {
		return false, err
	}
	r.sample()
	r.stats.events += int64(len(r.events))
	// Instances respond at once: repeat until there is no further response.
	for {
		r.actions = r.policy.Step(now, r.events, r.actions[:0])
		r.events = r.events[:0]
		for i := range r.actions {
			if err := r.perform(&r.actions[i]); err != nil {
				return false, err
			}
		}
		if len(r.events) == 0 {
			return false, nil
		}
	}
}

// upcoming returns the next instant with an event, and false if there is none.
func (r *run) upcoming() (now time.Duration, found bool) {
	if r.hasNext {
		now, found = r.next.At, true
	}
	if r.flight.len() > 0 && (!found || r.flight.end() < now) {
		now, found = r.flight.end(), true
	}
	if r.batches.starts.Len() > 0 && (!found || r.batches.starts.At() < now) {
		now, found = r.batches.starts.At(), true
	}
	if r.weights != nil && r.weights.loads.Len() > 0 && (!found || r.weights.loads.At() < now) {
		now, found = r.weights.loads.At(), true
	}
	if r.wake < queue.Never && (!found || r.wake < now) {
		now, found = r.wake, true
	}
	if found && r.config.Utilization > 0 && r.flight.len() > 0 && r.idleSamples < maxIdleSamples {
		now = min(now, max(r.sampled+samplePeriod, r.now))
	}
	return now, found
}

// samplePeriod is the interval between samples of the utilization (MQFQ-Sticky, section 5).
const samplePeriod = 200 * time.Millisecond

// maxIdleSamples is the number of consecutive samples without other events after which further
// samples would change nothing.
const maxIdleSamples = 100

// sample reports the utilization of the GPUs to policies that adapt to it.
func (r *run) sample() {
	if r.config.Utilization == 0 || r.now < r.sampled+samplePeriod {
		return
	}
	r.idleSamples++
	if len(r.events) > 0 {
		r.idleSamples = 0
	}
	r.sampled = r.now
	demand := r.config.Demand
	if demand == 0 {
		demand = 1
	}
	for g, n := range r.busy {
		r.events = append(r.events, &queue.Used{GPU: int32(g), Busy: min(float64(n)*demand, 1)})
	}
}

// complete ends the invocations that are due, by GPU and order of start (R1).
func (r *run) complete() {
	for r.flight.len() > 0 && r.flight.end() == r.now {
		place := r.flight.pop()
		v := &r.flight.entries[place]
		if r.batched(v.function) {
			r.leave(place)
		} else {
			r.busy[v.gpu]--
		}
		r.stats.completed(v)
		r.gap.completed(v)
		if r.now < r.config.RepeatUntil && v.end > v.dispatched { // otherwise, time would stand still
			r.repeats = append(r.repeats, v.function)
		}
		r.completions = append(r.completions, queue.Completed{Execution: queue.Execution{
			Function: v.function, Instance: v.instance, ID: v.id, Executed: v.end - v.executes}})
		r.events = append(r.events, &r.completions[len(r.completions)-1])
	}
}

func (r *run) deliverWake() {
	if r.wake <= r.now {
		r.wake = queue.Never
		r.events = append(r.events, &queue.Woke{})
	}
}

// arrive reports the invocations that arrive now: those of a closed loop, in the order of the
// completions, and those of the trace, in its order.
func (r *run) arrive() error {
	for _, f := range r.repeats {
		if err := r.arriveOne(f); err != nil {
			return err
		}
	}
	r.repeats = r.repeats[:0]
	for r.hasNext && r.next.At == r.now {
		if err := r.arriveOne(r.next.Function); err != nil {
			return err
		}
		if err := r.advance(); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) arriveOne(f int32) error {
	r.arrivals = append(r.arrivals, queue.Arrived{Function: f, ID: r.ids, At: r.now})
	r.events = append(r.events, &r.arrivals[len(r.arrivals)-1])
	if r.ids == 0 {
		r.stats.first = r.now
	}
	r.gap.arrived(f)
	r.ids++
	if r.ids%(1<<16) == 0 && r.config.Progress != nil {
		return r.config.Progress(r.ids)
	}
	return nil
}

// perform performs an action of the policy.
func (r *run) perform(a *queue.Action) error {
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
		r.gap.removeWaiting(a.Function)
	case queue.Wake:
		r.wake = a.At
	case queue.Remove:
		r.releaseWeights(a.Instance)
	case queue.Offload:
		if !a.Reason.AheadOfNeed() {
			r.evicted.add(r.now, a.GPU, r.config.Functions[a.Function].Load)
		}
	}
	if event, needed := a.Confirmation(); needed {
		r.events = append(r.events, event)
	}
	if r.config.Decide != nil {
		return r.config.Decide(r.now, a)
	}
	return nil
}

// start begins an invocation. It takes the duration that the policy expects, lengthened by the
// interference of other invocations on its GPU.
func (r *run) start(a *queue.Action) error {
	total, work := a.Expected, min(r.gap.functions[a.Function].warm, a.Expected)
	executing := work
	if r.batched(a.Function) {
		executing = queue.InBatch(work, r.config.Functions[a.Function].BatchSlope, r.batches.size(a.Instance)+1)
	}
	if others := r.busy[a.GPU]; others > 0 && r.config.Interference > 0 {
		factor := 1 + r.config.Interference*float64(others)
		total, work, executing = stretch(total, factor), stretch(work, factor), stretch(executing, factor)
	}
	extra, paging := r.moving(a)
	total += extra
	work, executing = min(work+paging, total), min(executing+paging, total)
	end := r.now + total
	if end < r.now {
		return fmt.Errorf("the simulated time exceeds %s ms", trace.Millis(math.MaxInt64))
	}
	v := invocation{end: end, executes: end - executing, dispatched: r.now, arrived: a.Arrived, id: a.ID,
		function: a.Function, gpu: a.GPU, instance: a.Instance, counted: end - executing, remaining: float64(work)}
	place := r.flight.push(v, r.starts)
	if r.starts++; r.batched(a.Function) {
		r.join(place, a)
	} else {
		r.busy[a.GPU]++
	}
	r.usesWeights(a, v.executes)
	r.stats.started(a)
	r.gap.started(a.Function, work)
	return nil
}

func stretch(d time.Duration, factor float64) time.Duration {
	return time.Duration(min(math.Round(float64(d)*factor), math.MaxInt64/2))
}
