// Package workload makes traces and costs to try policies on: patterns of
// arrivals, and the workloads of papers as far as they print them. The same
// seed gives the same workload.
package workload

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/trace"
)

// Workload is what functions cost and when they are invoked, in order of time.
type Workload struct {
	Functions []trace.Function
	Rows      []trace.Row
}

// MaxRows is the most invocations a workload may be expected to have.
const MaxRows = 50_000_000

// Mixed is a workload of functions with one pattern of arrivals.
type Mixed struct {
	Pattern
	Functions int
	Rate      float64 // invocations a second, of all functions together
	Duration  float64 // seconds
	Zipf      float64 // the k-th function's share is 1/k^Zipf of the first's
}

// Make draws the workload. What functions cost is drawn too, evenly over the
// orders of magnitude: 20 ms to 2 s warm, 1 to 10 s more for a new container,
// 100 MiB to 4 GiB, which load at 12 GiB/s.
func (m Mixed) Make(seed uint64) Workload {
	r := newRandom(seed, 0)
	var w Workload
	for i := range m.Functions {
		warm := r.logUniform(20, 2000)
		mem := math.Round(r.logUniform(100, 4096))
		f := function(i, m.Functions, warm, warm+r.logUniform(1000, 10000), mem/(12*1024)*1000)
		f.MemMiB = mem
		w.Functions = append(w.Functions, f)
	}
	m.arrive(&w, seed)
	return w
}

// arrive draws the invocations of functions that are there.
func (m Mixed) arrive(w *Workload, seed uint64) {
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

// shares are parts of 1 that go down by rank as 1/rank^s.
func shares(n int, s float64) []float64 {
	out, sum := make([]float64, n), 0.0
	for i := range out {
		out[i] = math.Pow(float64(i+1), -s)
		sum += out[i]
	}
	for i := range out {
		out[i] /= sum
	}
	return out
}

// function is one of n functions; times are in milliseconds.
func function(i, n int, warm, cold, load float64) trace.Function {
	name := fmt.Sprintf("f%0*d", len(fmt.Sprint(n-1)), i)
	return trace.Function{Name: name, Model: name, Weight: 1, Warm: millis(warm), Cold: millis(cold), Load: millis(load)}
}

// millis and micros round to what files are to show: tenths of a millisecond
// of costs, whole microseconds of arrivals.
func millis(ms float64) time.Duration {
	return time.Duration(math.Round(ms*10)) * (time.Millisecond / 10)
}

func micros(seconds float64) time.Duration {
	return time.Duration(seconds*1e6) * time.Microsecond
}
