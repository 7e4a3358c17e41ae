package sim

import (
	"math"
	"time"

	"github.com/gfaas/gfaas/pkg/trace"
)

// window is how long functions must wait to be compared.
const window = 30 * time.Second

// gap measures fairness: over tumbling windows from the first arrival, among
// functions with invocations waiting during the whole window, the largest
// difference of execution time over weight.
type gap struct {
	functions []gapFunction
	waiting   int     // functions that wait
	fresh     int     // of those the ones that began to in the current window
	ran       []int32 // functions that executed in the current window
	begin     time.Duration
	window    int64 // number of the current window
	begun     bool
	most      float64 // ns
	now       time.Duration
}

// gapFunction is a cache line.
type gapFunction struct {
	weight  float64
	waiting int64         // invocations
	since   time.Duration // when the first of those began to
	window  int64         // that ran counts in
	ran     time.Duration
	longest time.Duration // execution so far
	warm    time.Duration
	service float64 // ns in a slot
}

func newGap(functions []trace.Function) *gap {
	g := &gap{functions: make([]gapFunction, len(functions))}
	for i := range functions {
		g.functions[i] = gapFunction{weight: functions[i].Weight, warm: functions[i].Warm, window: -1}
	}
	return g
}

// to closes the windows that end by now; nothing has happened since the call
// before. Running is what has run since.
func (g *gap) to(now time.Duration, running *flight) {
	g.now = now
	if !g.begun {
		g.begin, g.begun = now, true
	}
	for now-g.begin >= window {
		steady := true
		for v := range running.each {
			g.execute(v.function, overlap(v, g.begin, g.begin+window))
			steady = steady && v.executes <= g.begin && v.begin <= g.begin
		}
		steady = g.close() && steady
		skip := (now - g.begin) / window
		if !steady && g.waiting > 1 {
			skip = 1
		}
		// The windows skipped are like the one closed, or compare nobody.
		g.begin += skip * window
		g.fresh = 0
		g.window += int64(skip)
	}
}

// close compares the functions that waited all through the window, and says
// whether all that wait did.
func (g *gap) close() (all bool) {
	waited, ran := g.waiting-g.fresh, 0
	least, most := math.Inf(1), 0.0
	for _, i := range g.ran {
		f := &g.functions[i]
		if f.waiting == 0 || f.since > g.begin {
			continue
		}
		share := float64(f.ran) / f.weight
		least, most = min(least, share), max(most, share)
		ran++
	}
	if ran < waited {
		least = 0
	}
	if waited > 1 {
		g.most = max(g.most, most-least)
	}
	g.ran = g.ran[:0]
	return g.fresh == 0
}

// overlap is how long an invocation executes between two times.
func overlap(v *invocation, from, to time.Duration) time.Duration {
	return max(min(v.end, to)-max(v.executes, from), 0)
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
	if g.waiting++; f.since > g.begin {
		g.fresh++
	}
}

// left notes that an invocation of the function waits no more.
func (g *gap) left(function int32) {
	f := &g.functions[function]
	if f.waiting--; f.waiting > 0 {
		return
	}
	if g.waiting--; f.since > g.begin {
		g.fresh--
	}
}

func (g *gap) started(function int32, executes time.Duration) {
	g.left(function)
	f := &g.functions[function]
	f.longest = max(f.longest, executes)
}

func (g *gap) ended(v *invocation) {
	g.functions[v.function].service += float64(v.end - v.begin)
	g.execute(v.function, overlap(v, g.begin, v.end))
}

// bound is the most that the gap can be under MQFQ: between two instants two
// backlogged queues' virtual times differ by at most 2T + l_i/w_i + l_j/w_j,
// and what was executed differs from what was dispatched by what runs.
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
