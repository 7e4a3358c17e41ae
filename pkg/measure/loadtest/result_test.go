package loadtest

import (
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/load"
)

func TestFigures(t *testing.T) {
	res := load.Result{Duration: time.Second, Completed: 99, Samples: 99, Errors: 1, Due: 100, Misses: 10,
		P95: 20 * time.Millisecond, P95CI: time.Millisecond, Latencies: []time.Duration{10 * time.Millisecond, 30 * time.Millisecond}}
	o := load.Options{Spec: load.Spec{Kind: load.Poisson, RPS: 100}, Objective: 15 * time.Millisecond}
	l := New("f", o, res)
	for metric, want := range map[string]float64{
		"throughput_rps": 99, "mean_ms": 20, "max_ms": 30, "p95_ms": 20, "errors": 1, "error_pct": 1, "within_pct": 90, "samples": 99,
	} {
		if got, _, ok := l.Figures(metric); !ok || got != want {
			t.Errorf("%s is %v, %v, want %v", metric, got, ok, want)
		}
	}
	o.Objective = 0
	l = New("f", o, load.Result{Duration: time.Second})
	for metric, want := range map[string]bool{"within_pct": false, "error_pct": false, "throughput_ci_rps": false, "p95_ci_ms": false, "errors": true} {
		if _, _, ok := l.Figures(metric); ok != want {
			t.Errorf("of nothing %s is measured: %v, want %v", metric, ok, want)
		}
	}
	for _, metric := range Metrics() {
		l.Figures(metric) // accepts it
	}
}
