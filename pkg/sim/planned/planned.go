// Package planned foretells what the instances of a plan keep of functions'
// objectives when requests come as they do. Each GPU's time is given out by the
// policy that the token daemon drives (multi-token), on a virtual clock, and a router
// gives every request to an instance of its function. The rules are in
// docs/simulation.md. Times are in ms, but for those inside, which are durations since
// the first window began.
package planned

import (
	"math"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/splitmix"
)

// Instance is an instance on a GPU.
type Instance struct {
	Function string
	Slice    gpu.Slice  // its memory does not count
	Turns    []gpu.Turn // parts of the window that are its own
	Work     float64    // ms of the GPU that a batch takes on its SMs, whatever is in it
	HandOver float64    // ms from the end of a batch's work to its answer, when it may begin the next
	Batch    int        // most requests in a batch
	RPS      float64    // what it is counted on for: its weight under Weighted

	// Endless says that it takes no requests and always has work: what is on other
	// GPUs of an instance that spans some.
	Endless bool
}

// Routing says which instance a request goes to.
type Routing string

// Least has requests wait until an instance is free, and of those that are it is the
// one that would answer first, by how long its batches took; Weighted is one at
// random, in proportion to what each is counted on for; Random any.
const (
	Least    Routing = "least"
	Weighted Routing = "weighted"
	Random   Routing = "random"
)

// Routings are all of them.
func Routings() []string { return []string{string(Least), string(Weighted), string(Random)} }

// Config is what is played.
type Config struct {
	GPUs     [][]Instance
	Arrivals map[string][]float64 // of each function's requests, in order
	Routing  Routing
	WindowMS float64 // 0 is gpu.Window
	Seed     uint64  // of the router, where it draws lots
}

// Latencies are how long each request of a function took from its arrival to its
// answer, in ms, in ascending order. Functions without instances have none.
func Latencies(c Config) map[string][]float64 {
	w := newWorld(c)
	w.run()
	out := map[string][]float64{}
	for name, f := range w.functions {
		slices.Sort(f.took)
		out[name] = f.took
	}
	return out
}

// Quantile is the latency that a part of the requests, 0 to 1, took at most; 0 of
// none.
func Quantile(sorted []float64, part float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, max(0, int(math.Ceil(part*float64(len(sorted))))-1))]
}

// Within is the part of the requests, 0 to 1, that took at most so long; 0 of
// none.
func Within(sorted []float64, ms float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	n, _ := slices.BinarySearchFunc(sorted, ms, func(v, ms float64) int {
		if v <= ms {
			return -1
		}
		return 1
	})
	return float64(n) / float64(len(sorted))
}

// world is all that is played, at one moment.
type world struct {
	now       time.Duration
	agenda    agenda
	gpus      []*device
	functions map[string]*function
	left      int // requests without an answer
}

func newWorld(c Config) *world {
	w := &world{functions: map[string]*function{}}
	window := duration(c.WindowMS)
	// In the order of the plan, so that a run can be had again.
	var names []string
	for _, instances := range c.GPUs {
		d := newDevice(w, window)
		for _, in := range instances {
			f := w.functions[in.Function]
			if f == nil && !in.Endless {
				f = &function{world: w, arrivals: c.Arrivals[in.Function], routing: c.Routing}
				w.functions[in.Function] = f
				names = append(names, in.Function)
			}
			d.add(in, f)
		}
		w.gpus = append(w.gpus, d)
	}
	for n, name := range names {
		f := w.functions[name]
		f.rng = splitmix.Source(splitmix.Mix(c.Seed + uint64(n)))
		f.took = make([]float64, 0, len(f.arrivals))
		w.left += len(f.arrivals)
		f.await()
	}
	return w
}

// run lets time pass until all requests are answered.
func (w *world) run() {
	for w.left > 0 {
		at, next := w.agenda.pop()
		w.now = at
		next.happen()
	}
}

// duration is so many ms.
func duration(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// ms is so long in ms.
func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
