package gate

import (
	"reflect"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/policy/search"
	"github.com/gfaas/gfaas/pkg/profile"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"p95_ms > 69":                           "p95_ms > 69",
		"p95_ms>69":                             "p95_ms > 69",
		"  errors  !=  0 ":                      "errors != 0",
		"throughput_rps <= 1e3":                 "throughput_rps <= 1000",
		"p95_ms > 69 at sm_pct=24,quota=0.4":    "p95_ms > 69 at sm_pct=24,quota=0.4",
		"p95_ms > 69 at sm_pct=24.0, quota=.40": "p95_ms > 69 at sm_pct=24,quota=0.4",
		"cold_ms >= 5 at function=a,batch=4":    "cold_ms >= 5 at function=a,batch=4",
		"p95_ms>slo":                            "p95_ms > slo",
	} {
		g, err := parse(text, RowMetrics())
		if err != nil || g.String() != want {
			t.Errorf("%q: %q, %v", text, g, err)
		}
	}
	for text, reason := range map[string]string{
		"":                                 "invalid condition",
		"p95_ms":                           "invalid condition",
		"p95_ms > ":                        "invalid condition",
		"p95_ms => 3":                      "invalid condition",
		"p95_ms > 69ms":                    "not a number",
		"p95_ms > NaN":                     "not a number",
		"p96_ms > 69":                      "unknown metric p96_ms: expected ",
		"p95_ms > 69 at":                   "invalid condition",
		"p95_ms > 69 at sm_pct":            "expected KEY=VALUE",
		"p95_ms > 69 at sm=24":             "a key of function, sm_pct",
		"p95_ms > 69 at quota=":            "expected KEY=VALUE",
		"p95_ms > 69 at quota=x":           "not a number",
		"p95_ms > 69 at quota=1,quota=0.2": "quota appears twice",
		"p95_ms > 69 or errors > 0":        "invalid condition",
		"throughput_rps < slo":             "slo is a latency, but throughput_rps is not",
	} {
		if g, err := parse(text, RowMetrics()); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%q: %+v, %v, want %q", text, g, err, reason)
		}
	}
}

func TestJudgeUsesConfidenceIntervals(t *testing.T) {
	row := profile.Row{
		Function: "f", Config: profile.Config{SMPct: 24, Quota: 0.4, Batch: 1},
		ThroughputRPS: 48, P95MS: 69,
	}
	known := row
	known.P95CIMS, known.ThroughputCIRPS = 4, 3
	unstable := known
	unstable.Unstable, unstable.Errors, unstable.GPUMemMiB, unstable.SLOMS = 1, 2, 100, 69
	for _, tc := range []struct {
		row  profile.Row
		gate string
		want Verdict
	}{
		{unstable, "p95_ms > 64.9", Doubtful},
		{unstable, "p95_ms > 69", Doubtful},
		{unstable, "p95_ms > 80", Passed},
		{unstable, "p95_ms >= slo", Doubtful},
		{unstable, "throughput_rps < 60", Doubtful},
		{unstable, "efficacy < 10000", Doubtful},
		{unstable, "p95_ms != 1", Doubtful},
		{unstable, "goodput_rps < 10", Doubtful},
		{unstable, "goodput_ci_rps > 10", Doubtful},
		{unstable, "cold_ms > 1", Unknown},
		{row, "goodput_rps < 10", Unknown},
		{unstable, "unstable > 0", Tripped},
		{unstable, "errors > 0", Tripped},
		{unstable, "gpu_mem_mib > 99", Tripped},
		{row, "p95_ms > 69", Passed},
		{row, "p95_ms >= 69", Tripped},
		{row, "p95_ms == 69", Tripped},
		{row, "p95_ms < 70 at function=f", Tripped},
		{row, "p95_ms < 70 at sm_pct=24,quota=0.4,batch=1", Tripped},
		{row, "efficacy > 499", Tripped},
		{row, "efficacy > 501", Passed},
		{row, "cold_ms > 0", Unknown},
		{row, "errors > 0", Passed},
		{row, "p95_ms > slo", Passed},
		{row, "p95_ms >= slo", Tripped},
		// 65 to 73 ms, 45 to 51 requests a second.
		{known, "p95_ms > 64.9", Tripped},
		{known, "p95_ms > 65.1", Doubtful},
		{known, "p95_ms > 72.9", Doubtful},
		{known, "p95_ms > 73.1", Passed},
		{known, "p95_ms > slo", Doubtful},
		{known, "p95_ms < 73.1", Tripped},
		{known, "p95_ms <= 66", Doubtful},
		{known, "p95_ms != 69", Passed},
		{known, "throughput_rps < 52", Tripped},
		{known, "throughput_rps < 48", Doubtful},
		{known, "throughput_rps < 45", Passed},
		{known, "efficacy < 500", Doubtful},
	} {
		g, err := parse(tc.gate, RowMetrics())
		if err != nil {
			t.Fatal(err)
		}
		if f := g.Judge("f", FiguresOf(tc.row), 69); f.Verdict != tc.want || (f.Text == "") != (tc.want == Passed) {
			t.Errorf("%s: %+v, want verdict %d", tc.gate, f, tc.want)
		}
	}
	if g, _ := parse("p95_ms > slo", RowMetrics()); g.Judge("f", FiguresOf(row), 0).Verdict != Unknown {
		t.Error("a function without an slo was judged by it")
	}
}

func TestMatchesAny(t *testing.T) {
	fns := []function.Function{{Name: "f"}}
	space := search.Space{SMPct: []float64{12, 24}, Quota: []float64{0.2, 1}, Batch: []int{1}}
	for text, want := range map[string]bool{
		"p95_ms > 1":                        true,
		"p95_ms > 1 at sm_pct=24,quota=0.2": true,
		"p95_ms > 1 at sm_pct=25":           false,
		"p95_ms > 1 at function=g":          false,
		"p95_ms > 1 at batch=2":             false,
	} {
		g, err := parse(text, RowMetrics())
		if err != nil || g.MatchesAny(fns, space) != want {
			t.Errorf("%s: got %v, want %v (%v)", text, !want, want, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"p95_ms > 69", "p95_ms>69 at sm_pct=24,quota=0.4", "errors != 0 at function=f", "x", "p95_ms > 1e300"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		g, err := parse(text, RowMetrics())
		if err != nil {
			return
		}
		again, err := parse(g.String(), RowMetrics())
		if err != nil || !reflect.DeepEqual(again, g) {
			t.Fatalf("%q parsed to %+v, printed %q, parsed to %+v, %v", text, g, g, again, err)
		}
	})
}
