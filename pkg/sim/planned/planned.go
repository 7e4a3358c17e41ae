// Package planned predicts how well a plan's instances meet the objectives of their functions
// under given arrivals of requests. On a virtual clock, each GPU is shared by a policy of the
// token daemon (pkg/policy/token), and a router assigns every request to an
// instance of its function. FromPlan reads a plan, Run.Predict simulates it, and Latencies is
// the simulation itself; pkg/command/sim calls them. docs/simulation.md has the rules. Times in
// the API are in ms; internally they are durations since the first window began.
package planned

import (
	"slices"
	"sort"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/sim/heap"
	"github.com/gfaas/gfaas/pkg/splitmix"
)

// Instance describes an instance on a GPU.
type Instance struct {
	Function string
	Slice    gpu.Slice  // its memory is ignored
	Turns    []gpu.Turn // its own parts of the window
	WorkMS   float64    // GPU time of a batch on its SMs, regardless of the batch's size
	AnswerMS float64    // time from the end of a batch's work to its answer, after which the next batch may begin
	Batch    int        // largest number of requests in a batch
	RPS      float64    // planned throughput: its weight under Weighted

	// Endless marks an instance that takes no requests and always has work. It stands for the
	// further GPUs of an instance that spans several.
	Endless bool
}

// Routing is a rule for assigning requests to instances.
type Routing string

// Least lets requests wait until an instance is free, and prefers the instance that would answer
// first, judging by its past batches. Weighted draws an instance in proportion to its planned
// throughput. Random draws any instance.
const (
	Least    Routing = "least"
	Weighted Routing = "weighted"
	Random   Routing = "random"
)

// Routings returns the names of all rules.
func Routings() []string { return []string{string(Least), string(Weighted), string(Random)} }

// Config describes a simulation.
type Config struct {
	GPUs     [][]Instance
	Arrivals map[string][]float64 // times of each function's requests, ascending
	Routing  Routing
	WindowMS float64 // 0 means gpu.Window

	// Policy is the policy of the token daemon, or TGS; empty means multi-token. For introspective, Objectives
	// are the latency objectives of functions in ms, and LLMs are the functions of language models.
	Policy        string
	Introspective token.IntrospectiveParameters
	Objectives    map[string]float64
	LLMs          []string

	Seed uint64 // of the router's random numbers
}

// Outcome is the result for one function.
type Outcome struct {
	Latencies []float64 // in ms, ascending
	ServedRPS float64   // answers per second up to the last arrival of any function
}

// Simulate simulates all requests. Functions without instances are missing in the result.
func Simulate(c Config) map[string]Outcome {
	w := newWorld(c)
	w.run()
	outcomes := map[string]Outcome{}
	for name, f := range w.functions {
		slices.Sort(f.latencies)
		o := Outcome{Latencies: f.latencies}
		if w.lastArrival > 0 {
			o.ServedRPS = float64(f.served) / w.lastArrival.Seconds()
		}
		outcomes[name] = o
	}
	return outcomes
}

// Within returns the fraction of the requests that took at most the given time, or 0 if there are
// no requests.
func Within(sorted []float64, ms float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	n := sort.Search(len(sorted), func(i int) bool { return sorted[i] > ms })
	return float64(n) / float64(len(sorted))
}

// world is the state of a simulation.
type world struct {
	now        time.Duration
	agenda     heap.Heap[func()] // scheduled events by time, then in the order in which they were scheduled
	scheduled  int64             // number of events ever scheduled
	gpus       []*device
	functions  map[string]*function
	unanswered int // unanswered requests

	lastArrival time.Duration // of all functions
}

func newWorld(c Config) *world {
	w := &world{functions: map[string]*function{}}
	// In the order of the plan, so that runs are reproducible.
	var names []string
	for _, instances := range c.GPUs {
		d := newDevice(w, c)
		for _, in := range instances {
			f := w.functions[in.Function]
			if f == nil && !in.Endless {
				f = &function{world: w, arrivals: c.Arrivals[in.Function], routing: c.Routing}
				w.functions[in.Function] = f
				names = append(names, in.Function)
			}
			d.add(in, f, token.AddInstance{SLO: fromMS(c.Objectives[in.Function]), LLM: slices.Contains(c.LLMs, in.Function)})
		}
		w.gpus = append(w.gpus, d)
	}
	for n, name := range names {
		f := w.functions[name]
		f.rng = splitmix.Source(splitmix.Mix(c.Seed + uint64(n)))
		f.latencies = make([]float64, 0, len(f.arrivals))
		w.unanswered += len(f.arrivals)
		if n := len(f.arrivals); n > 0 {
			w.lastArrival = max(w.lastArrival, fromMS(f.arrivals[n-1]))
		}
		f.scheduleNext()
	}
	return w
}

// run advances the clock until all requests are answered.
func (w *world) run() {
	for w.unanswered > 0 {
		w.now = w.agenda.At()
		w.agenda.Pop()()
	}
}

// schedule schedules an event.
func (w *world) schedule(at time.Duration, event func()) {
	w.scheduled++
	w.agenda.Push(at, w.scheduled, event)
}

// fromMS converts milliseconds.
func fromMS(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// ms converts a duration to milliseconds.
func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
