package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/sim"
)

// results returns results of a number of policies with a number of functions. Policy i is i+1 times
// as slow as the first, policy 0.
func results(policies, functions int) []*sim.Result {
	var out []*sim.Result
	for i := range policies {
		r := &sim.Result{Policy: fmt.Sprint("policy-", i)}
		for _, q := range Quantiles() {
			r.Curve = append(r.Curve, q*100*float64(i+1))
		}
		for k := range functions {
			r.Functions = append(r.Functions, sim.FunctionResult{Function: fmt.Sprintf("f%d<&\"", k), Invocations: int64(k), MeanMS: float64(i * k)})
		}
		out = append(out, r)
	}
	return out
}

func draw(t *testing.T, r []*sim.Result) string {
	t.Helper()
	var out bytes.Buffer
	if err := HTML(&out, Comparison{Setting: "a <setting>", Results: r}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestPage checks that the page is well formed and self-contained, shows every policy, and counts
// the functions that it omits.
func TestPage(t *testing.T) {
	for _, c := range []struct{ policies, functions int }{{1, 1}, {2, 0}, {3, 30}, {20, 3}} {
		text := draw(t, results(c.policies, c.functions))
		if text != draw(t, results(c.policies, c.functions)) {
			t.Errorf("%v: got another page for the same results, want the same", c)
		}
		for _, other := range []string{"http:", "https:", "src=", "<script", "@import", "NaN", "Inf"} {
			if strings.Contains(text, other) {
				t.Errorf("%v: the page contains %s, want none", c, other)
			}
		}
		if n := strings.Count(text, "<polyline"); n != c.policies {
			t.Errorf("%+v: got %d curves, want %d", c, n, c.policies)
		}
		if omitted := strings.Contains(text, "6 more are omitted"); omitted != (c.functions == 30) {
			t.Errorf("%v: note about omitted functions: got %v, want %v", c, omitted, c.functions == 30)
		}
		wellFormed(t, text)
	}
}

func wellFormed(t *testing.T, text string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(text))
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestAxisWithoutInvocations checks that there is an axis without invocations, or with
// invocations that took no time.
func TestAxisWithoutInvocations(t *testing.T) {
	wellFormed(t, draw(t, []*sim.Result{{Policy: "fcfs"}}))
	wellFormed(t, draw(t, []*sim.Result{{Policy: "fcfs", Curve: make([]float64, len(Quantiles()))}}))
}

func TestHuman(t *testing.T) {
	for ms, want := range map[float64]string{0: "0 ms", 1: "1 ms", 99.94: "99.9 ms", 250.4: "250 ms", 1000: "1 s", 12340: "12.3 s", 123456: "123 s"} {
		if got := formatMS(ms); got != want {
			t.Errorf("%g ms: %s, want %s", ms, got, want)
		}
	}
}

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		axis axis
		want []float64
	}{
		{axis{1, 10}, []float64{1, 2, 5, 10}},
		{axis{0.3, 100}, []float64{0.5, 1, 2, 5, 10, 20, 50, 100}},
		{axis{0.1, 5000}, []float64{0.1, 1, 10, 100, 1000}},
	} {
		got := c.axis.ticks()
		if len(got) != len(c.want) {
			t.Errorf("%v: got %v, want %v", c.axis, got, c.want)
			continue
		}
		for i := range got {
			if math.Abs(got[i]/c.want[i]-1) > 1e-9 {
				t.Errorf("%v: got %v, want %v", c.axis, got, c.want)
			}
		}
	}
}

// TestWinners checks the sentences about the policies with the lowest latency.
func TestWinners(t *testing.T) {
	result := func(policy string, mean, p99 float64) *sim.Result {
		return &sim.Result{Policy: policy, Completed: 1, LatencyMS: sim.Latency{Mean: mean, P99: p99}}
	}
	for name, c := range map[string]struct {
		results []*sim.Result
		want    []string
	}{
		"one policy":        {[]*sim.Result{result("fcfs", 80, 90)}, nil},
		"nothing completed": {[]*sim.Result{{Policy: "fcfs"}, {Policy: "mqfq"}}, nil},
		"a winner": {[]*sim.Result{result("fcfs", 80, 90), result("mqfq", 60, 2000), result("sjf", 100, 1000)}, []string{
			"mqfq has the lowest mean latency, 60 ms: 25.0% less than fcfs, the next policy (80 ms).",
			"fcfs has the lowest p99 latency, 90 ms: 91.0% less than sjf, the next policy (1 s).",
		}},
		"a tie": {[]*sim.Result{result("fcfs", 50, 7), result("mqfq", 50.01, 7), result("sjf", 100, 7)}, []string{
			"fcfs and mqfq have the lowest mean latency, 50 ms: 50.0% less than sjf, the next policy (100 ms).",
			"All policies have the same p99 latency, 7 ms.",
		}},
		"instances and models": {[]*sim.Result{result("fcfs", 50, 5), result("lb", 4, 4), result("mqfq", 40, 5), result("lalb", 3, 4)}, []string{
			"Among the policies that keep instances, mqfq has the lowest mean latency, 40 ms: 20.0% less than fcfs, the next policy (50 ms).",
			"Among the policies that keep instances, all have the same p99 latency, 5 ms.",
			"Among the policies that keep models, lalb has the lowest mean latency, 3 ms: 25.0% less than lb, the next policy (4 ms).",
			"Among the policies that keep models, all have the same p99 latency, 4 ms.",
		}},
		"no latency": {[]*sim.Result{result("fcfs", 0, 0), result("mqfq", 0, 5)}, []string{
			"All policies have the same mean latency, 0 ms.",
			"fcfs has the lowest p99 latency, 0 ms: 100.0% less than mqfq, the next policy (5 ms).",
		}},
	} {
		if got := winners(c.results); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
