package sim

import (
	"math"
	"time"

	"github.com/gfaas/gfaas/pkg/trace"
)

// window is the time that functions must be waiting for to be compared.
const window = 30 * time.Second

// gap measures fairness as the largest difference of execution time over weight. It compares, in
// tumbling windows from the first arrival, the functions that had waiting invocations during the
// whole window.
type gap struct {
	functions    []gapFunction
	waiting      int     // functions with waiting invocations
	newlyWaiting int     // those that began to wait in the current window
	ran          []int32 // functions that executed in the current window
	windowStart  time.Duration
	window       int64 // number of the current window
	windowOpen   bool
	largest      float64 // ns
	now          time.Duration
}

// gapFunction is the state of one function. It fits in a cache line.
type gapFunction struct {
	weight  float64
	waiting int64         // invocations
	since   time.Duration // when the function began to wait
	window  int64         // the window that ran refers to
	ran     time.Duration
	longest time.Duration // longest execution dispatched
	warm    time.Duration
	service float64 // slot time in ns
}

func newGap(functions []trace.Function) *gap {
	g := &gap{functions: make([]gapFunction, len(functions))}
	for i := range functions {
		g.functions[i] = gapFunction{weight: functions[i].Weight, warm: functions[i].Warm, window: -1}
	}
	return g
}

// closeWindows closes the windows that end by now. running holds the invocations in flight since
// the last call. Nothing else may have happened in between.
func (g *gap) closeWindows(now time.Duration, running *flight) {
	g.now = now
	if !g.windowOpen {
		g.windowStart, g.windowOpen = now, true
	}
	for now-g.windowStart >= window {
		steady := true
		for v := range running.each {
			g.execute(v.function, overlap(v, g.windowStart, g.windowStart+window))
			steady = steady && v.executes <= g.windowStart && v.dispatched <= g.windowStart
		}
		steady = g.close() && steady
		skip := (now - g.windowStart) / window
		if !steady && g.waiting > 1 {
			skip = 1
		}
		// Skipped windows equal the closed one, or have fewer than two functions to compare.
		g.windowStart += skip * window
		g.newlyWaiting = 0
		g.window += int64(skip)
	}
}

// close compares the functions that waited during the whole window. It reports whether all
// waiting functions did so.
func (g *gap) close() (allWaited bool) {
	waited, ran := g.waiting-g.newlyWaiting, 0
	low, high := math.Inf(1), 0.0
	for _, i := range g.ran {
		f := &g.functions[i]
		if f.waiting == 0 || f.since > g.windowStart {
			continue
		}
		share := float64(f.ran) / f.weight
		low, high = min(low, share), max(high, share)
		ran++
	}
	if ran < waited {
		low = 0
	}
	if waited > 1 {
		g.largest = max(g.largest, high-low)
	}
	g.ran = g.ran[:0]
	return g.newlyWaiting == 0
}

// overlap returns for how long an invocation executes between two times, and counts.
func overlap(v *invocation, from, to time.Duration) time.Duration {
	return max(min(v.end, to)-max(v.counted, from), 0)
}

func (g *gap) execute(function int32, ran time.Duration) {
	f := &g.functions[function]
	if f.window != g.window {
		f.window, f.ran = g.window, 0
		g.ran = append(g.ran, function)
	}
	f.ran += ran
}

func (g *gap) arrived(function int32) {
	f := &g.functions[function]
	if f.waiting++; f.waiting > 1 {
		return
	}
	f.since = g.now
	if g.waiting++; f.since > g.windowStart {
		g.newlyWaiting++
	}
}

// removeWaiting subtracts a waiting invocation of the function.
func (g *gap) removeWaiting(function int32) {
	f := &g.functions[function]
	if f.waiting--; f.waiting > 0 {
		return
	}
	if g.waiting--; f.since > g.windowStart {
		g.newlyWaiting--
	}
}

func (g *gap) started(function int32, executes time.Duration) {
	g.removeWaiting(function)
	f := &g.functions[function]
	f.longest = max(f.longest, executes)
}

func (g *gap) completed(v *invocation) {
	g.functions[v.function].service += float64(v.end - v.dispatched)
	g.execute(v.function, overlap(v, g.windowStart, v.end))
}

// bound returns the largest gap that MQFQ permits: the virtual times of two backlogged queues
// differ by at most 2T + l_i/w_i + l_j/w_j between two instants, and executed time differs from
// dispatched time by the invocations in flight.
func (g *gap) bound(c Config) float64 {
	first, second := 0.0, 0.0
	for i := range g.functions {
		f := &g.functions[i]
		l := float64(f.longest) / f.weight
		if l > first {
			first, second = l, first
		} else {
			second = max(second, l)
		}
	}
	return 2*float64(c.T) + float64(slots(c)+1)*(first+second)
}
