package profile

import (
	"reflect"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/policy/search"
	"github.com/gfaas/gfaas/pkg/profile"
)

func TestParseGate(t *testing.T) {
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
		g, err := parseGate(text, ofRows)
		if err != nil || g.String() != want {
			t.Errorf("%q: %q, %v", text, g, err)
		}
	}
	for text, why := range map[string]string{
		"":                                 "is no condition",
		"p95_ms":                           "is no condition",
		"p95_ms > ":                        "is no condition",
		"p95_ms => 3":                      "is no condition",
		"p95_ms > 69ms":                    "not a number",
		"p95_ms > NaN":                     "not a number",
		"p96_ms > 69":                      "not measured: expected one of",
		"p95_ms > 69 at":                   "is no condition",
		"p95_ms > 69 at sm_pct":            "expected KEY=VALUE",
		"p95_ms > 69 at sm=24":             "a key of function, sm_pct",
		"p95_ms > 69 at quota=":            "expected KEY=VALUE",
		"p95_ms > 69 at quota=x":           "not a number",
		"p95_ms > 69 at quota=1,quota=0.2": "given twice",
		"p95_ms > 69 or errors > 0":        "is no condition",
		"throughput_rps < slo":             "slo is a latency, throughput_rps is none",
	} {
		if g, err := parseGate(text, ofRows); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %+v, %v, want %q", text, g, err, why)
		}
	}
}

func TestGateJudges(t *testing.T) {
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
		want verdict
	}{
		{unstable, "p95_ms > 64.9", doubtful},
		{unstable, "p95_ms > 69", doubtful},
		{unstable, "p95_ms > 80", passed},
		{unstable, "p95_ms >= slo", doubtful},
		{unstable, "throughput_rps < 60", doubtful},
		{unstable, "efficacy < 10000", doubtful},
		{unstable, "p95_ms != 1", doubtful},
		{unstable, "goodput_rps < 10", doubtful},
		{unstable, "goodput_ci_rps > 10", doubtful},
		{unstable, "cold_ms > 1", unknown},
		{row, "goodput_rps < 10", unknown},
		{unstable, "unstable > 0", tripped},
		{unstable, "errors > 0", tripped},
		{unstable, "gpu_mem_mib > 99", tripped},
		{row, "p95_ms > 69", passed},
		{row, "p95_ms >= 69", tripped},
		{row, "p95_ms == 69", tripped},
		{row, "p95_ms < 70 at function=f", tripped},
		{row, "p95_ms < 70 at sm_pct=24,quota=0.4,batch=1", tripped},
		{row, "efficacy > 499", tripped},
		{row, "efficacy > 501", passed},
		{row, "cold_ms > 0", unknown},
		{row, "errors > 0", passed},
		{row, "p95_ms > slo", passed},
		{row, "p95_ms >= slo", tripped},
		// 65 to 73 ms, 45 to 51 requests a second.
		{known, "p95_ms > 64.9", tripped},
		{known, "p95_ms > 65.1", doubtful},
		{known, "p95_ms > 72.9", doubtful},
		{known, "p95_ms > 73.1", passed},
		{known, "p95_ms > slo", doubtful},
		{known, "p95_ms < 73.1", tripped},
		{known, "p95_ms <= 66", doubtful},
		{known, "p95_ms != 69", passed},
		{known, "throughput_rps < 52", tripped},
		{known, "throughput_rps < 48", doubtful},
		{known, "throughput_rps < 45", passed},
		{known, "efficacy < 500", doubtful},
	} {
		g, err := parseGate(tc.gate, ofRows)
		if err != nil {
			t.Fatal(err)
		}
		if f := g.judge("f", figuresOf(tc.row), 69); f.verdict != tc.want || (f.text == "") != (tc.want == passed) {
			t.Errorf("%s: %+v, want verdict %d", tc.gate, f, tc.want)
		}
	}
	if g, _ := parseGate("p95_ms > slo", ofRows); g.judge("f", figuresOf(row), 0).verdict != unknown {
		t.Error("a function without an slo was judged by it")
	}
}

func TestGateReaches(t *testing.T) {
	fns := []function.Function{{Name: "f"}}
	space := search.Space{SMPct: []float64{12, 24}, Quota: []float64{0.2, 1}, Batch: []int{1}}
	for text, want := range map[string]bool{
		"p95_ms > 1":                        true,
		"p95_ms > 1 at sm_pct=24,quota=0.2": true,
		"p95_ms > 1 at sm_pct=25":           false,
		"p95_ms > 1 at function=g":          false,
		"p95_ms > 1 at batch=2":             false,
	} {
		g, err := parseGate(text, ofRows)
		if err != nil || g.matchesAny(fns, space) != want {
			t.Errorf("%s: reaches is not %v (%v)", text, want, err)
		}
	}
}

func FuzzParseGate(f *testing.F) {
	for _, s := range []string{"p95_ms > 69", "p95_ms>69 at sm_pct=24,quota=0.4", "errors != 0 at function=f", "x", "p95_ms > 1e300"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		g, err := parseGate(text, ofRows)
		if err != nil {
			return
		}
		again, err := parseGate(g.String(), ofRows)
		if err != nil || !reflect.DeepEqual(again, g) {
			t.Fatalf("%q parsed to %+v, printed %q, parsed to %+v, %v", text, g, g, again, err)
		}
	})
}
