package gfaas

import (
	"bufio"
	"bytes"
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

// TestLocality replays a bursty trace through a gateway with D = 2 and a small pool, under three policies. In gfaas-sim,
// the record of each replay must give exactly the same decisions. With measured costs, gfaas-sim queue must predict the
// same number of cold starts, the same mean latency and the same order of the policies. GFAAS_LOCALITY=1 (make locality)
// replays one minute per policy and accepts a difference of 20%. Otherwise the test replays two seconds and compares
// only the decisions, because timings need an idle host.
func TestLocality(t *testing.T) {
	t.Parallel()
	long, measure := 2*time.Second, os.Getenv("GFAAS_LOCALITY") != ""
	if measure {
		long = time.Minute
	}
	p := newEnvironment(t)
	const functions = 8
	var text strings.Builder
	for n := range functions {
		fmt.Fprintf(&text, "---\n{name: f%d, command: [%s], scale: {idle: 1h}, env: {START_MS: \"%d\", WARM_MS: \"%d\"}}\n",
			n, p.getenv("FUNCTION"), 200+50*(n%4), 20+10*(n%3))
	}
	p.write("f.yaml", text.String())
	p.write("trace.csv", bursts(functions, long))
	p.output("apply", "-f", "f.yaml")
	measured, simulated := map[string]figures{}, map[string]figures{}
	policies := []string{"fcfs", "mqfq-sticky", "gfaas"}
	for _, policy := range policies {
		s := p.serve("--policy", policy, "--concurrency", "2", "--pool", "4", "--record", policy+".jsonl")
		text, err := p.command("replay", "trace.csv", "--quiet", "-o", "json").Output()
		if err != nil {
			t.Fatalf("%s: replay: %v\n%s", policy, err, text)
		}
		live := decode(t, text)
		if code := s.end(syscall.SIGTERM); code != 0 {
			t.Errorf("%s: exit status of the gateway: got %d, want 0", policy, code)
		}
		if text, err := p.sim("replay", policy+".jsonl"); err != nil {
			t.Errorf("%s: the record does not replay to the same decisions: %v\n%s", policy, err, text)
		}
		arrivals, err := p.sim("replay", policy+".jsonl", "--as-trace")
		if err != nil {
			t.Fatal(err)
		}
		p.write(policy+".csv", string(arrivals))
		p.write(policy+"-costs.csv", costsOf(t, filepath.Join(p.dir, policy+".jsonl")))
		text, err = p.sim("queue", "--functions", policy+"-costs.csv", "--trace", policy+".csv", "--policy", policy, "--concurrency", "2", "--pool", "4", "-o", "json")
		if err != nil {
			t.Fatalf("%s: queue: %v\n%s", policy, err, text)
		}
		measured[policy], simulated[policy] = live, decode(t, text)
		if live.Invocations != simulated[policy].Invocations || live.Completed != live.Invocations || live.ColdStarts == 0 {
			t.Errorf("%s: got the measured figures %+v, want all invocations completed, some cold starts, and the number of invocations of %+v", policy, live, simulated[policy])
		}
		t.Logf("%-12s measured %3d cold of %d, mean %6.1f ms, sent late by %.1f ms at most; simulated %3d cold, mean %6.1f ms",
			policy, live.ColdStarts, live.Invocations, live.Latency.Mean, live.LateMS, simulated[policy].ColdStarts, simulated[policy].Latency.Mean)
	}
	if !measure {
		return
	}
	for _, description := range []struct {
		name string
		of   func(figures) float64
	}{{"cold starts", func(f figures) float64 { return float64(f.ColdStarts) }}, {"mean latency", func(f figures) float64 { return f.Latency.Mean }}} {
		order := func(of map[string]figures) []string {
			return slices.SortedStableFunc(slices.Values(policies), func(a, b string) int { return int(math.Copysign(1, description.of(of[a])-description.of(of[b]))) })
		}
		for _, policy := range policies {
			if got, want := description.of(measured[policy]), description.of(simulated[policy]); math.Abs(got-want) > 0.2*want {
				t.Errorf("%s: %s: got %.1f, want the simulated %.1f ± 20%%", policy, description.name, got, want)
			}
		}
		if got, want := order(measured), order(simulated); !slices.Equal(got, want) {
			t.Errorf("order of the policies by %s: got %v, want the simulated %v", description.name, got, want)
		}
	}
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
	Latency     struct {
		Mean float64 `json:"mean"`
	} `json:"latency_ms"`
	LateMS float64 `json:"late_ms"`
}

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
	text.WriteString("function,warm_ms,cold_ms\n")
	for name, s := range of {
		if s.calls == 0 || s.starts == 0 {
			continue
		}
		warm := float64(s.warm) / float64(s.calls)
		fmt.Fprintf(&text, "%s,%.3f,%.3f\n", name, warm/1e6, (warm+float64(s.start)/float64(s.starts))/1e6)
	}
	return text.String()
}

// sim runs gfaas-sim.
func (p *environment) sim(args ...string) ([]byte, error) {
	cmd := exec.Command("gfaas-sim", args...)
	cmd.Dir, cmd.Env = p.dir, append(os.Environ(), p.env...)
	return cmd.Output()
}
