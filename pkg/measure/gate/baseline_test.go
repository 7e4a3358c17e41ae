package gate

import (
	"strings"
	"testing"

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
		want     string // the reason to fail; empty for none
		doubt    string // the reason for doubt; empty for none
	}{
		"the same":                    {row(100, 0, 10, 0, 0), row(100, 0, 10, 0, 0), "", ""},
		"better":                      {row(100, 1, 10, 1, 0), row(150, 1, 5, 1, 0), "", ""},
		"as much worse as allowed":    {row(100, 1, 10, 0.1, 0), row(95, 1, 10.5, 0.1, 0), "", ""},
		"slower":                      {row(100, 1, 10, 1, 0), row(90, 1, 10, 1, 0), "throughput_rps is 10% worse for f at sm_pct 24, quota 0.4, batch 1: 90, was 100: more than 5%; the noise is ±1.41%", ""},
		"slower, but noisy":           {row(100, 9, 10, 1, 0), row(90, 9, 10, 1, 0), "", "90, was 100: more than 5%; the noise is ±12.7%: measure for longer with --duration"},
		"slower, about as noisy":      {row(100, 5, 10, 1, 0), row(90, 5, 10, 1, 0), "", "the noise is ±7.07%: measure"},
		"slower, noise unknown":       {row(100, 9, 10, 1, 0), row(90, 0, 10, 1, 0), "more than 5%; the noise is unknown", ""},
		"slower, unstable":            {row(100, 1, 10, 1, 0), unstable(row(50, 1, 10, 1, 0)), "", "50, was 100: more than 5%; this run is unstable: measure for longer with --duration"},
		"slower than unstable":        {unstable(row(100, 0, 10, 0, 0)), row(50, 0, 10, 0, 0), "", "; the baseline is unstable: measure it for longer with --duration"},
		"later, unstable":             {row(100, 1, 10, 1, 0), unstable(row(100, 1, 90, 1, 0)), "", "p95_ms is 800% worse"},
		"failing, unstable":           {row(100, 1, 10, 0.1, 1), unstable(row(100, 1, 10, 0.1, 9)), "errors are 9%", ""},
		"unstable, no worse":          {unstable(row(100, 1, 10, 1, 0)), unstable(row(100, 1, 10, 1, 0)), "", ""},
		"later":                       {row(100, 1, 10, 0.1, 0), row(100, 1, 12, 0.1, 0), "p95_ms is 20% worse", ""},
		"failing":                     {row(100, 1, 10, 0.1, 1), row(100, 1, 10, 0.1, 9), "errors are 9% of the requests for f at sm_pct 24, quota 0.4, batch 1, were 1%: 8 percentage points more, allowed are 5", ""},
		"what sustained nothing once": {row(0, 0, 0, 0, 100), row(1, 0, 10, 0, 0), "", ""},
	} {
		b := &Baseline{allowed: 0.05, rows: map[measure.Point]profile.Row{{Function: "f", Config: at}: c.old}}
		got := strings.Join(Texts(b.judge(c.now), BaselineSubject, Tripped), "; ")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
		got = strings.Join(Texts(b.judge(c.now), BaselineSubject, Doubtful), "; ")
		if c.doubt == "" && got != "" || !strings.Contains(got, c.doubt) {
			t.Errorf("%s: in doubt %q, want %q", what, got, c.doubt)
		}
	}
}

// TestBaselineModel: if a baseline covers several GPU models, only the rows for the run's
// model count.
func TestBaselineModel(t *testing.T) {
	at := profile.Config{SMPct: 50, Quota: 1, Batch: 1}
	rows := []profile.Row{
		{Function: "f", GPU: "V100", Config: at, ThroughputRPS: 10, P95MS: 100},
		{Function: "f", GPU: "A100", Config: at, ThroughputRPS: 100, P95MS: 10},
		{Function: "f", Config: at, ThroughputRPS: 20, P95MS: 50},
	}
	for range rows {
		rows = append(rows[1:], rows[0]) // in any order
		for model, want := range map[string]float64{"V100": 10, "A100": 100, "T4": 20} {
			job := measure.Job{Functions: []function.Function{{Name: "f"}}, GPU: model,
				Space: search.Space{SMPct: []float64{50}, Quota: []float64{1}, Batch: []int{1}}}
			b, err := NewBaseline("old.csv", rows, job, 0.05)
			if err != nil {
				t.Fatal(err)
			}
			if got := b.rows[measure.Point{Function: "f", Config: at}].ThroughputRPS; got != want {
				t.Errorf("%s, %+v: %v requests per second, want %v", model, rows, got, want)
			}
		}
	}
}

// TestBaselineNothingInCommon checks the error if the baseline has no configuration of the job.
func TestBaselineNothingInCommon(t *testing.T) {
	job := measure.Job{Functions: []function.Function{{Name: "f"}}, GPU: "sim",
		Space: search.Space{SMPct: []float64{50}, Quota: []float64{1}, Batch: []int{1, 2, 3, 4}}}
	row := func(batch int) profile.Row {
		return profile.Row{Function: "g", Config: profile.Config{SMPct: 50, Quota: 1, Batch: batch}}
	}
	for want, rows := range map[string][]profile.Row{
		"old.csv has no rows": nil,
		"old.csv has none of the configurations of this run\n" +
			"  the run measures f at sm_pct 50, quota 1, batch 1; f at sm_pct 50, quota 1, batch 2; f at sm_pct 50, quota 1, batch 3; f at sm_pct 50, quota 1, batch 4\n" +
			"  the file has g at sm_pct 50, quota 1, batch 1; g at sm_pct 50, quota 1, batch 2; g at sm_pct 50, quota 1, batch 3; and 2 more": {
			row(1), row(1), row(2), row(3), row(4), row(5)},
	} {
		if _, err := NewBaseline("old.csv", rows, job, 0.05); err == nil || err.Error() != want {
			t.Errorf("got error %v, want %s", err, want)
		}
	}
}
