package gfaas

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
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

// setting is a policy with its number of slots per GPU.
type setting struct {
	policy      string
	concurrency int
}

func (s setting) String() string { return fmt.Sprintf("%s, D = %d", s.policy, s.concurrency) }

// settings are the compared settings. Without GFAAS_LOCALITY, TestLocality uses only the first ones.
var settings = []setting{{"fcfs", 2}, {"mqfq-sticky", 2}, {"gfaas", 2}, {"lalb-o3", 1}, {"fcfs", 1}, {"mqfq-sticky", 1}, {"gfaas", 1}}

// locality replays a trace through gateways and compares the results with gfaas-sim.
type locality struct {
	*environment
	t                   *testing.T
	measured, simulated map[setting]figures
}

// TestLocality replays a bursty trace through a gateway with a small pool, under several policies. In gfaas-sim,
// the record of each replay must give exactly the same decisions. With measured costs, gfaas-sim queue must predict the
// same number of misses, the same mean latency and the same order of the policies. GFAAS_LOCALITY=N (make locality)
// replays a minute N times per setting, and accepts a difference of 15% of the medians. Otherwise the test replays two
// seconds and compares only the decisions, because timings need an idle host.
func TestLocality(t *testing.T) {
	t.Parallel()
	long, runs, list := 2*time.Second, 1, settings[:4]
	measure := os.Getenv("GFAAS_LOCALITY") != ""
	if measure {
		long, list = time.Minute, settings
		if _, err := fmt.Sscan(os.Getenv("GFAAS_LOCALITY"), &runs); err != nil {
			t.Fatalf("GFAAS_LOCALITY: %v", err)
		}
	}
	l := &locality{newEnvironment(t), t, map[setting]figures{}, map[setting]figures{}}
	const functions = 8
	var text strings.Builder
	for n := range functions {
		fmt.Fprintf(&text, "---\n{name: f%d, command: [%s], scale: {idle: 1h}, env: {START_MS: \"%d\", WARM_MS: \"%d\"}}\n",
			n, l.getenv("FUNCTION"), 200+50*(n%4), 20+10*(n%3))
	}
	l.write("f.yaml", text.String())
	l.write("trace.csv", bursts(functions, long))
	l.output("apply", "-f", "f.yaml")
	for _, s := range list {
		var measured, simulated []figures
		for range runs {
			live, predicted := l.replay(s)
			measured, simulated = append(measured, live), append(simulated, predicted)
		}
		l.measured[s], l.simulated[s] = medians(measured), medians(simulated)
	}
	if measure {
		l.compare("misses", list, func(f figures) float64 { return float64(f.misses()) })
		l.compare("mean latency", list, func(f figures) float64 { return f.Latency.Mean })
	}
}

// replay replays trace.csv and returns the measured figures, and those of gfaas-sim queue for the same arrivals
// and costs.
func (l *locality) replay(s setting) (live, predicted figures) {
	t := l.t
	options := []string{"--policy", s.policy, "--concurrency", fmt.Sprint(s.concurrency), "--pool", "4"}
	g := l.serve(append(options, "--record", "record.jsonl")...)
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
	l.write("costs.csv", costsOf(t, filepath.Join(l.dir, "record.jsonl")))
	text, err = l.sim(append([]string{"queue", "--functions", "costs.csv", "--trace", "arrivals.csv", "-o", "json"}, options...)...)
	if err != nil {
		t.Fatalf("%v: queue: %v\n%s", s, err, text)
	}
	predicted = decode(t, text)
	if live.Invocations != predicted.Invocations || live.Completed != live.Invocations || live.misses() == 0 {
		t.Errorf("%v: got the measured figures %+v, want all invocations completed, some misses, and the number of invocations of %+v", s, live, predicted)
	}
	t.Logf("%-18v measured %3d misses of %d, mean %6.1f ms, sent late by %.1f ms at most; simulated %3d misses, mean %6.1f ms",
		s, live.misses(), live.Invocations, live.Latency.Mean, live.LateMS, predicted.misses(), predicted.Latency.Mean)
	return live, predicted
}

// compare checks that a measured figure differs from the simulated one by at most 15%, and that the order of the
// settings is the same.
func (l *locality) compare(name string, list []setting, of func(figures) float64) {
	l.t.Helper()
	order := func(figure map[setting]figures) []setting {
		return slices.SortedStableFunc(slices.Values(list), func(a, b setting) int { return cmp.Compare(of(figure[a]), of(figure[b])) })
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

// bursts returns a trace of functions that are called in bursts, in descending order of frequency.
func bursts(functions int, long time.Duration) string {
	random := rand.New(rand.NewPCG(1, 2))
	type call struct {
		at time.Duration
		of int
	}
	var calls []call
	for at := time.Duration(0); at < long; at += time.Duration(random.ExpFloat64() * float64(350*time.Millisecond)) {
		of := int(math.Min(float64(functions-1), random.ExpFloat64()*float64(functions)/3))
		burst := at
		for range 1 + random.IntN(6) {
			calls = append(calls, call{burst, of})
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

// costsOf returns the costs of the functions in a record: the mean duration of their calls and of their starts.
func costsOf(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	type sums struct {
		warm, start   time.Duration
		calls, starts int
	}
	of := map[string]*sums{}
	started := map[int64]time.Duration{} // cold starts, by invocation
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var line struct {
			record.Event
			Action string
			Start  string
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		s := of[line.Function]
		if s == nil {
			s = &sums{}
			of[line.Function] = s
		}
		switch {
		case line.Action == "run" && line.Start == "cold":
			started[*line.Invocation] = time.Duration(line.TimeMS)
		case line.Event.Event == "started":
			s.start += time.Duration(line.TimeMS) - started[*line.Invocation]
			s.starts++
		case line.Event.Event == "completed":
			s.warm += time.Duration(line.ExecutedMS)
			s.calls++
		}
	}
	var text bytes.Buffer
	text.WriteString("function,warm_ms,cold_ms,load_ms\n") // with lalb-o3, gfaas-sim takes a miss for a load, not for a start
	for name, s := range of {
		if s.calls == 0 || s.starts == 0 {
			continue
		}
		warm, start := float64(s.warm)/float64(s.calls)/1e6, float64(s.start)/float64(s.starts)/1e6
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
