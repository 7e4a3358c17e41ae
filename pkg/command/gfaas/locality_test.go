package gfaas

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/record"
)

// setting is a policy with its number of slots per GPU. Side by side, functions compute on the simulated GPU, because
// the settings of the GPU do not affect a function that only waits.
type setting struct {
	policy      string
	concurrency int
	sideBySide  bool
}

func (s setting) String() string {
	if s.sideBySide {
		return fmt.Sprintf("%s, D = %d, side by side", s.policy, s.concurrency)
	}
	return fmt.Sprintf("%s, D = %d", s.policy, s.concurrency)
}

// byTurns and sideBySide are the compared settings. Without GFAAS_LOCALITY, TestLocality uses only the first ones of
// byTurns.
var (
	byTurns = []setting{{policy: "fcfs", concurrency: 2}, {policy: "mqfq-sticky", concurrency: 2}, {policy: "gfaas", concurrency: 2}, {policy: "lalb-o3", concurrency: 1},
		{policy: "fcfs", concurrency: 1}, {policy: "mqfq-sticky", concurrency: 1}, {policy: "gfaas", concurrency: 1}}
	sideBySide = []setting{{"fcfs", 2, true}, {"mqfq-sticky", 2, true}, {"gfaas", 2, true}}
)

// functions is the number of functions in the trace.
const functions = 8

// locality replays a trace through gateways and compares the results with gfaas-sim.
type locality struct {
	*environment
	t                   *testing.T
	long                time.Duration // length of the trace
	measured, simulated map[setting]figures
}

// TestLocality replays a bursty trace through a gateway with a small pool, under several policies. In gfaas-sim,
// the record of each replay must give exactly the same decisions. With measured costs, gfaas-sim queue must predict the
// same number of misses, the same mean latency and the same order of the policies. GFAAS_LOCALITY=N (make locality)
// replays a minute N times per setting, and accepts a difference of 15% of the medians. Otherwise the test replays two
// seconds and compares only the decisions, because timings need an idle host.
func TestLocality(t *testing.T) {
	t.Parallel()
	long, runs, groups := 2*time.Second, 1, [][]setting{byTurns[:4]}
	measure := os.Getenv("GFAAS_LOCALITY") != ""
	if measure {
		long, groups = time.Minute, [][]setting{byTurns, sideBySide}
		if _, err := fmt.Sscan(os.Getenv("GFAAS_LOCALITY"), &runs); err != nil {
			t.Fatalf("GFAAS_LOCALITY: %v", err)
		}
	}
	for _, list := range groups {
		name := "turns"
		if list[0].sideBySide {
			name = "side-by-side"
		}
		t.Run(name, func(t *testing.T) {
			l := &locality{newEnvironment(t), t, long, map[setting]figures{}, map[setting]figures{}}
			l.write("f.yaml", l.functions(list[0].sideBySide))
			l.write("trace.csv", bursts(long, 0))
			l.output("apply", "-f", "f.yaml")
			for _, s := range list {
				var measured, simulated []figures
				for range runs {
					live, predicted := l.replay(s)
					measured, simulated = append(measured, live), append(simulated, predicted)
				}
				l.measured[s], l.simulated[s] = medians(measured), medians(simulated)
				if measure {
					l.checkSteady(s)
				}
			}
			if measure {
				l.compare("misses", list, func(f figures) float64 { return float64(f.misses()) })
				l.compare("mean latency", list, func(f figures) float64 { return f.Latency.Mean })
			}
		})
	}
}

// functions returns definitions of functions whose starts take 200 to 350 ms more than that of the program, and whose
// calls wait for 20 to 40 ms or, with gpu, compute for this time on all SMs of the simulated GPU.
func (l *locality) functions(gpu bool) string {
	var text strings.Builder
	if gpu {
		l.env = append(l.env, gpuFunctions...)
	}
	for n := range functions {
		start, warm := 200+50*(n%4), 20+10*(n%3)
		command, env := fmt.Sprintf("[%q]", l.getenv("FUNCTION")), fmt.Sprintf("START_MS: \"%d\", WARM_MS: \"%d\"", start, warm)
		if gpu { // a kernel takes 2 ms
			command = fmt.Sprintf("[sh, -c, \"sleep 0.%d; exec %s\"], contract: http", start, saxpy)
			env = fmt.Sprintf("SAXPY_LAUNCHES: \"%d\"", warm/2)
		}
		fmt.Fprintf(&text, "---\n{name: f%d, command: %s, scale: {idle: 1h}, env: {%s}}\n", n, command, env)
	}
	return text.String()
}

// replay replays trace.csv and returns the measured figures, and those of gfaas-sim queue for the same arrivals
// and costs.
func (l *locality) replay(s setting) (live, predicted figures) {
	t := l.t
	options := []string{"--policy", s.policy, "--concurrency", fmt.Sprint(s.concurrency), "--pool", "4"}
	serve := append(slices.Clone(options), "--record", "record.jsonl")
	if s.sideBySide {
		serve = append(serve, "--side-by-side")
	}
	g := l.serve(serve...)
	text, err := l.command("replay", "trace.csv", "--quiet", "-o", "json").Output()
	if err != nil {
		t.Fatalf("%v: replay: %v\n%s", s, err, text)
	}
	live = decode(t, text)
	if code := g.end(syscall.SIGTERM); code != 0 {
		t.Errorf("%v: exit status of the gateway: got %d, want 0", s, code)
	}
	if text, err := l.sim("replay", "record.jsonl"); err != nil {
		t.Errorf("%v: the record does not replay to the same decisions: %v\n%s", s, err, text)
	}
	arrivals, err := l.sim("replay", "record.jsonl", "--as-trace")
	if err != nil {
		t.Fatal(err)
	}
	l.write("arrivals.csv", string(arrivals))
	costs := costsIn(t, filepath.Join(l.dir, "record.jsonl"))
	if s.sideBySide {
		options = append(options, "--set", fmt.Sprintf("interference=%.3f", costs.separate()))
	}
	l.write("costs.csv", costs.csv())
	text, err = l.sim(append([]string{"queue", "--functions", "costs.csv", "--trace", "arrivals.csv", "-o", "json"}, options...)...)
	if err != nil {
		t.Fatalf("%v: queue: %v\n%s", s, err, text)
	}
	predicted = decode(t, text)
	if live.Invocations != predicted.Invocations || live.Completed != live.Invocations || live.misses() == 0 {
		t.Errorf("%v: got the measured figures %+v, want all invocations completed, some misses, and the number of invocations of %+v", s, live, predicted)
	}
	t.Logf("%-18v measured %3d misses of %d, mean %6.1f ms, sent late by %.1f ms at most; simulated %3d misses, mean %6.1f ms %v",
		s, live.misses(), live.Invocations, live.Latency.Mean, live.LateMS, predicted.misses(), predicted.Latency.Mean, options[6:])
	return live, predicted
}

// checkSteady checks that the simulated mean latency changes by at most 30% if calls come up to 50 ms later. Otherwise, the
// trace may have two outcomes, which differ by a factor of 2: with or without a backlog that never ends. A replay, whose
// durations vary a little, may then have the other outcome than the simulation.
func (l *locality) checkSteady(s setting) {
	l.t.Helper()
	least, most := math.Inf(1), 0.0
	for shift := range uint64(8) {
		l.write("shifted.csv", bursts(l.long, shift))
		text, err := l.sim("queue", "--functions", "costs.csv", "--trace", "shifted.csv", "-o", "json", "--policy", s.policy, "--concurrency", fmt.Sprint(s.concurrency), "--pool", "4")
		if err != nil {
			l.t.Fatalf("%v: queue: %v\n%s", s, err, text)
		}
		mean := decode(l.t, text).Latency.Mean
		least, most = min(least, mean), max(most, mean)
	}
	if most > 1.3*least {
		l.t.Errorf("%v: simulated mean latency with shifted calls: got %.1f to %.1f ms, want at most 30%% more than the least", s, least, most)
	}
}

// compare checks that a measured figure differs from the simulated one by at most 15%, and that the order of the
// policies is the same, for each number of slots.
func (l *locality) compare(name string, list []setting, of func(figures) float64) {
	l.t.Helper()
	order := func(figure map[setting]figures) []setting {
		return slices.SortedStableFunc(slices.Values(list), func(a, b setting) int {
			return cmp.Or(cmp.Compare(a.concurrency, b.concurrency), cmp.Compare(of(figure[a]), of(figure[b])))
		})
	}
	for _, s := range list {
		if got, want := of(l.measured[s]), of(l.simulated[s]); math.Abs(got-want) > 0.15*want {
			l.t.Errorf("%v: %s: got %.1f, want the simulated %.1f ± 15%%", s, name, got, want)
		}
	}
	if got, want := order(l.measured), order(l.simulated); !slices.Equal(got, want) {
		l.t.Errorf("order of the settings by %s: got %v, want the simulated %v", name, got, want)
	}
}

// medians returns the median of each compared figure.
func medians(list []figures) (f figures) {
	f = list[0]
	slices.SortFunc(list, func(a, b figures) int { return cmp.Compare(a.misses(), b.misses()) })
	f.ColdStarts, f.HostWarm = list[len(list)/2].ColdStarts, list[len(list)/2].HostWarm
	slices.SortFunc(list, func(a, b figures) int { return cmp.Compare(a.Latency.Mean, b.Latency.Mean) })
	f.Latency.Mean = list[len(list)/2].Latency.Mean
	return f
}

// bursts returns a trace of functions that are called in bursts, in descending order of frequency. Unless shift
// is 0, each call is later by up to 50 ms, by random numbers with the seed shift.
func bursts(long time.Duration, shift uint64) string {
	random, shifts := rand.New(rand.NewPCG(4, 2)), rand.New(rand.NewPCG(shift, 7))
	type call struct {
		at time.Duration
		of int
	}
	var calls []call
	for at := time.Duration(0); at < long; at += time.Duration(random.ExpFloat64() * float64(450*time.Millisecond)) {
		of := int(math.Min(float64(functions-1), random.ExpFloat64()*float64(functions)/3))
		burst := at
		for range 1 + random.IntN(6) {
			called := burst
			if shift > 0 {
				called += time.Duration(shifts.Float64() * float64(50*time.Millisecond))
			}
			calls = append(calls, call{called, of})
			burst += time.Duration(random.ExpFloat64() * float64(60*time.Millisecond))
		}
	}
	slices.SortStableFunc(calls, func(a, b call) int { return int(a.at - b.at) })
	var text strings.Builder
	text.WriteString("function,invoke_time_ms\n")
	for _, c := range calls {
		fmt.Fprintf(&text, "f%d,%.3f\n", c.of, float64(c.at)/float64(time.Millisecond))
	}
	return text.String()
}

// figures holds the results that gfaas replay and gfaas-sim queue have in common.
type figures struct {
	Invocations int64 `json:"invocations"`
	Completed   int64 `json:"completed"`
	ColdStarts  int64 `json:"cold_starts"`
	HostWarm    int64 `json:"host_warm_starts"`
	Latency     struct {
		Mean float64 `json:"mean"`
	} `json:"latency_ms"`
	LateMS float64 `json:"late_ms"`
}

// misses returns the number of invocations that had to wait for a start or a load.
func (f figures) misses() int64 { return f.ColdStarts + f.HostWarm }

func decode(t *testing.T, text []byte) (f figures) {
	t.Helper()
	if err := json.Unmarshal(text, &f); err != nil {
		t.Fatalf("decode the figures: %v: %s", err, text)
	}
	return f
}

// execution is a completed invocation in a record.
type execution struct {
	function    string
	start, warm time.Duration // start is 0 if it had an instance
	others      int           // that were in flight on the GPU when it was dispatched
	overlapped  bool          // another one executed on the GPU at the same time
	dispatched  time.Duration
	begun       bool
}

// costs holds the executions in a record and the durations that they state for each function.
type costs struct {
	executions  []*execution
	warm, start map[string]time.Duration
}

// costsIn returns the costs of the functions in a record of a gateway with one GPU: the mean duration of their calls
// and of their starts.
func costsIn(t *testing.T, path string) *costs {
	t.Helper()
	c := &costs{}
	inFlight := map[int64]*execution{}
	begin := func(x *execution) {
		x.begun = true
		for _, other := range inFlight {
			if other != x && other.begun {
				x.overlapped, other.overlapped = true, true
			}
		}
	}
	for text := range readLines(t, path) {
		var line struct {
			record.Event
			Action string
			Start  string
		}
		if err := json.Unmarshal(text, &line); err != nil {
			t.Fatal(err)
		}
		now := time.Duration(line.TimeMS)
		switch {
		case line.Action == "run":
			x := &execution{function: line.Function, others: len(inFlight), dispatched: now}
			inFlight[*line.Invocation] = x
			if line.Start != "cold" {
				begin(x)
			}
		case line.Event.Event == "started":
			x := inFlight[*line.Invocation]
			x.start = now - x.dispatched
			begin(x)
		case line.Event.Event == "completed":
			x := inFlight[*line.Invocation]
			x.warm = time.Duration(line.ExecutedMS)
			c.executions = append(c.executions, x)
			delete(inFlight, *line.Invocation)
		case line.Event.Event == "failed":
			delete(inFlight, *line.Invocation)
		}
	}
	c.average(func(*execution) bool { return true })
	return c
}

// average sets the costs of each function to the mean over its starts, and over its calls for which alone holds.
func (c *costs) average(alone func(*execution) bool) {
	mean := func(of func(*execution) time.Duration) map[string]time.Duration {
		sum, n := map[string]time.Duration{}, map[string]time.Duration{}
		for _, x := range c.executions {
			if of(x) > 0 {
				sum[x.function] += of(x)
				n[x.function]++
			}
		}
		for name := range sum {
			sum[name] /= n[name]
		}
		return sum
	}
	c.start = mean(func(x *execution) time.Duration { return x.start })
	c.warm = mean(func(x *execution) time.Duration {
		if !alone(x) {
			return 0
		}
		return x.warm
	})
}

// separate sets the duration of calls to that of calls without another one on the GPU, and returns the interference
// (as in --set interference=) with which the sum of all durations is the recorded one.
func (c *costs) separate() float64 {
	all := c.warm
	c.average(func(x *execution) bool { return !x.overlapped })
	for name, warm := range all {
		if _, ok := c.warm[name]; !ok {
			c.warm[name] = warm
		}
	}
	var recorded, alone, shared time.Duration
	for _, x := range c.executions {
		own := c.warm[x.function]
		if x.start > 0 {
			own += c.start[x.function]
		}
		recorded += x.start + x.warm
		alone += own
		shared += own * time.Duration(x.others)
	}
	return max(0, (recorded-alone).Seconds()/max(shared.Seconds(), 1e-9))
}

// csv returns a file of function costs. With lalb-o3, gfaas-sim takes a miss for a load, not for a start.
func (c *costs) csv() string {
	var text strings.Builder
	text.WriteString("function,warm_ms,cold_ms,load_ms\n")
	for _, name := range slices.Sorted(maps.Keys(c.start)) {
		warm, start := c.warm[name].Seconds()*1000, c.start[name].Seconds()*1000
		fmt.Fprintf(&text, "%s,%.3f,%.3f,%.3f\n", name, warm, warm+start, start)
	}
	return text.String()
}

// sim runs gfaas-sim.
func (p *environment) sim(args ...string) ([]byte, error) {
	cmd := exec.Command("gfaas-sim", args...)
	cmd.Dir, cmd.Env = p.dir, append(os.Environ(), p.env...)
	return cmd.Output()
}
