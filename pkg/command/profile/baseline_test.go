package profile

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/measure"
	"github.com/gfaas/gfaas/pkg/policy/search"
	"github.com/gfaas/gfaas/pkg/profile"
)

func TestBaselineJudge(t *testing.T) {
	at := profile.Config{SMPct: 24, Quota: 0.4, Batch: 1}
	row := func(rps, rpsCI, p95, p95CI float64, errors int64) profile.Row {
		return profile.Row{Function: "f", Config: at, ThroughputRPS: rps, ThroughputCIRPS: rpsCI, P95MS: p95, P95CIMS: p95CI, Errors: errors, Samples: 100 - errors}
	}
	unstable := func(r profile.Row) profile.Row {
		r.Unstable = 1
		return r
	}
	for what, c := range map[string]struct {
		old, now profile.Row
		want     string // what trips; empty for nothing
		doubt    string // what may be worse; empty for nothing
	}{
		"the same":                    {row(100, 0, 10, 0, 0), row(100, 0, 10, 0, 0), "", ""},
		"better":                      {row(100, 1, 10, 1, 0), row(150, 1, 5, 1, 0), "", ""},
		"as much worse as allowed":    {row(100, 1, 10, 0.1, 0), row(95, 1, 10.5, 0.1, 0), "", ""},
		"slower":                      {row(100, 1, 10, 1, 0), row(90, 1, 10, 1, 0), "throughput_rps is 10% worse for f at sm_pct 24, quota 0.4, batch 1: 90, was 100: more than 5%, its noise is ±1.41%", ""},
		"slower, but noisy":           {row(100, 9, 10, 1, 0), row(90, 9, 10, 1, 0), "", "90, was 100: more than 5%, its noise is ±12.7%: measure for longer"},
		"slower, about as noisy":      {row(100, 5, 10, 1, 0), row(90, 5, 10, 1, 0), "", "its noise is ±7.07%: measure"},
		"slower, noise unknown":       {row(100, 9, 10, 1, 0), row(90, 0, 10, 1, 0), "more than 5%; its noise is not known", ""},
		"slower, unstable":            {row(100, 1, 10, 1, 0), unstable(row(50, 1, 10, 1, 0)), "", "50, was 100: more than 5%; this run is unstable: measure for longer"},
		"slower than unstable":        {unstable(row(100, 0, 10, 0, 0)), row(50, 0, 10, 0, 0), "", "; the baseline is unstable: measure it for longer"},
		"later, unstable":             {row(100, 1, 10, 1, 0), unstable(row(100, 1, 90, 1, 0)), "", "p95_ms is 800% worse"},
		"failing, unstable":           {row(100, 1, 10, 0.1, 1), unstable(row(100, 1, 10, 0.1, 9)), "errors are 9%", ""},
		"unstable, no worse":          {unstable(row(100, 1, 10, 1, 0)), unstable(row(100, 1, 10, 1, 0)), "", ""},
		"later":                       {row(100, 1, 10, 0.1, 0), row(100, 1, 12, 0.1, 0), "p95_ms is 20% worse", ""},
		"failing":                     {row(100, 1, 10, 0.1, 1), row(100, 1, 10, 0.1, 9), "errors are 9% of the requests for f at sm_pct 24, quota 0.4, batch 1, were 1%: 8 points more than 5", ""},
		"what sustained nothing once": {row(0, 0, 0, 0, 100), row(1, 0, 10, 0, 0), "", ""},
	} {
		b := &baseline{most: 0.05, rows: map[measure.Point]profile.Row{{Function: "f", Config: at}: c.old}}
		got := strings.Join(texts(b.judge(c.now), aboutBaseline, tripped), "; ")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
		got = strings.Join(texts(b.judge(c.now), aboutBaseline, doubtful), "; ")
		if c.doubt == "" && got != "" || !strings.Contains(got, c.doubt) {
			t.Errorf("%s: in doubt %q, want %q", what, got, c.doubt)
		}
	}
}

func TestPercentage(t *testing.T) {
	for text, want := range map[string]float64{"5%": 0.05, "5": 0.05, "0": 0, "12.5%": 0.125} {
		var v float64
		var set bool
		if err := (percentage{&v, &set}).Set(text); err != nil || v != want || !set {
			t.Errorf("%s: %v, %v", text, v, err)
		}
	}
	for _, text := range []string{"", "%", "-1%", "five", "NaN", "1001"} {
		var v float64
		var set bool
		if err := (percentage{&v, &set}).Set(text); err == nil || set {
			t.Errorf("%q is taken as %v", text, v)
		}
	}
}

// TestBaselineModel: of a baseline of several GPU models the rows of the run's count.
func TestBaselineModel(t *testing.T) {
	lines := []string{"f,V100,50,1,10,100", "f,A100,50,1,100,10", "f,,50,1,20,50"}
	for range lines {
		lines = append(lines[1:], lines[0]) // whatever the order
		path := filepath.Join(t.TempDir(), "old.csv")
		text := "function,gpu,sm_pct,quota,throughput_rps,p95_ms\n" + strings.Join(lines, "\n") + "\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for model, want := range map[string]float64{"V100": 10, "A100": 100, "T4": 20} {
			o := runOptions{}
			o.env, o.baselinePath, o.GPU = &cli.Env{Err: io.Discard}, path, model
			o.Functions = []function.Function{{Name: "f"}}
			o.Space = search.Space{SMPct: []float64{50}, Quota: []float64{1}, Batch: []int{1}}
			if err := o.loadBaseline(); err != nil {
				t.Fatal(err)
			}
			if got := o.baseline.rows[measure.Point{Function: "f", Config: profile.Config{SMPct: 50, Quota: 1, Batch: 1}}]; got.ThroughputRPS != want {
				t.Errorf("%s, %v: %v requests a second, want %v", model, lines, got.ThroughputRPS, want)
			}
		}
	}
}
