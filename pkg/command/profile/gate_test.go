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
	} {
		g, err := parseGate(text)
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
	} {
		if g, err := parseGate(text); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %+v, %v, want %q", text, g, err, why)
		}
	}
}

func TestGateJudges(t *testing.T) {
	row := profile.Row{
		Function: "f", Config: profile.Config{SMPct: 24, Quota: 0.4, Batch: 1},
		ThroughputRPS: 48, P95MS: 69,
	}
	for _, tc := range []struct {
		gate          string
		trip, unknown bool
	}{
		{"p95_ms > 69", false, false},
		{"p95_ms >= 69", true, false},
		{"p95_ms == 69", true, false},
		{"p95_ms < 70 at function=f", true, false},
		{"p95_ms < 70 at function=g", false, false},
		{"p95_ms < 70 at sm_pct=24,quota=0.4,batch=1", true, false},
		{"p95_ms < 70 at sm_pct=24,quota=0.6", false, false},
		{"efficacy > 499", true, false},
		{"efficacy > 501", false, false},
		{"cold_ms > 0", false, true},
		{"cold_ms > 0 at sm_pct=12", false, false},
		{"errors > 0", false, false},
	} {
		g, err := parseGate(tc.gate)
		if err != nil {
			t.Fatal(err)
		}
		trip, unknown := g.judge(row)
		if (trip != "") != tc.trip || (unknown != "") != tc.unknown {
			t.Errorf("%s: trip %q, unknown %q", tc.gate, trip, unknown)
		}
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
		g, err := parseGate(text)
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
		g, err := parseGate(text)
		if err != nil {
			return
		}
		again, err := parseGate(g.String())
		if err != nil || !reflect.DeepEqual(again, g) {
			t.Fatalf("%q parsed to %+v, printed %q, parsed to %+v, %v", text, g, g, again, err)
		}
	})
}
