// Package workload generates traces and costs for simulations: patterns of arrivals, and the
// workloads of papers as far as they are published. The same seed generates the same workload.
// Mixed, LALB and MQFQ generate whole workloads, and Pattern generates arrivals; pkg/command/sim
// and pkg/sim/planned use them.
package workload

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/trace"
)

// Workload holds the costs of functions and their invocations, in order of time.
type Workload struct {
	Functions []trace.Function
	Rows      []trace.Row
}

// MaxRows is the limit on the expected number of invocations.
const MaxRows = 50_000_000

// Mixed describes a workload whose functions share one pattern of arrivals.
type Mixed struct {
	Pattern
	Functions int
	Rate      float64 // invocations per second of all functions
	Duration  float64 // seconds
	Zipf      float64 // the k-th function's share is 1/k^Zipf of the first's
}

// Generate draws the workload, including the costs. Costs are log-uniform: warm executions take 20
// ms to 2 s, cold starts 1 to 10 s more, and memory is 100 MiB to 4 GiB and loads at 12 GiB/s.
func (m Mixed) Generate(seed uint64) Workload {
	r := newRandom(seed, 0)
	var w Workload
	for i := range m.Functions {
		warm := r.logUniform(20, 2000)
		mem := math.Round(r.logUniform(100, 4096))
		f := function(i, m.Functions, costsMS{warm: warm, cold: warm + r.logUniform(1000, 10000), load: mem / (12 * 1024) * 1000})
		f.MemMiB = mem
		w.Functions = append(w.Functions, f)
	}
	m.addInvocations(&w, seed)
	return w
}

// addInvocations draws the invocations of the functions in w. It uses only m's arrivals, not its
// number of functions.
func (m Mixed) addInvocations(w *Workload, seed uint64) {
	for i, share := range shares(len(w.Functions), m.Zipf) {
		for _, t := range m.arrivals(newRandom(seed, uint64(i)+1), m.Rate*share, m.Duration) {
			w.Rows = append(w.Rows, trace.Row{At: micros(t), Function: int32(i)})
		}
	}
	w.sort()
}

func (w *Workload) sort() {
	slices.SortStableFunc(w.Rows, func(a, b trace.Row) int { return cmp.Compare(a.At, b.At) })
}

// shares returns n fractions that are proportional to 1/rank^s and add up to 1.
func shares(n int, s float64) []float64 {
	fractions, sum := make([]float64, n), 0.0
	for i := range fractions {
		fractions[i] = math.Pow(float64(i+1), -s)
		sum += fractions[i]
	}
	for i := range fractions {
		fractions[i] /= sum
	}
	return fractions
}

// costsMS holds the times of a function in milliseconds: of a warm execution, of an execution after a
// cold start, and to load the function's memory to the GPU.
type costsMS struct{ warm, cold, load float64 }

// function returns the description of function i of n.
func function(i, n int, c costsMS) trace.Function {
	name := fmt.Sprintf("f%0*d", len(fmt.Sprint(n-1)), i)
	return trace.Function{Name: name, Model: name, Weight: 1, Warm: millis(c.warm), Cold: millis(c.cold), Load: millis(c.load)}
}

// millis and micros round to the precision of files: tenths of a millisecond for costs,
// microseconds for arrivals.
func millis(ms float64) time.Duration {
	return time.Duration(math.Round(ms*10)) * (time.Millisecond / 10)
}

func micros(seconds float64) time.Duration {
	return time.Duration(seconds*1e6) * time.Microsecond
}
