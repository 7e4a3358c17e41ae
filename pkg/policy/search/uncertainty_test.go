package search

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/profile"
)

// TestFastKeepsAMargin checks that fast chooses a configuration that may miss the
// objective only if no configuration surely meets it.
func TestFastKeepsAMargin(t *testing.T) {
	row := func(sm, rps, p95, ci float64) profile.Row {
		return profile.Row{Config: profile.Config{SMPct: sm, Quota: 1, Batch: 1}, ThroughputRPS: rps, P95MS: p95, P95CIMS: ci}
	}
	for what, c := range map[string]struct {
		rows []profile.Row
		want float64 // SM share
		why  string
	}{
		"known well":   {[]profile.Row{row(25, 100, 19, 0.5), row(50, 150, 14, 0.5)}, 25, "best efficacy"},
		"not known":    {[]profile.Row{row(25, 100, 19, 0), row(50, 150, 14, 0)}, 25, "best efficacy"},
		"known badly":  {[]profile.Row{row(25, 100, 19, 2), row(50, 150, 14, 2)}, 50, "best efficacy"},
		"none is sure": {[]profile.Row{row(25, 100, 19, 2), row(50, 150, 18.5, 2)}, 25, "precision of its p95 of 19 ms is only 2 ms"},
	} {
		space, table := Space{SMPct: []float64{25, 50}, Quota: []float64{1}, Batch: []int{1}}, map[profile.Config]profile.Row{}
		for _, r := range c.rows {
			table[r.Config] = r
		}
		_, choice := drive(t, "fast", space, Goal{SLOMS: 20}, table)
		if !choice.OK || choice.Row.SMPct != c.want || !strings.Contains(choice.Reason, c.why) {
			t.Errorf("%s: got %+v, want %v%% of the SMs because of %q", what, choice, c.want, c.why)
		}
	}
}

// TestRunsProperty checks that more requests, or a smaller part of the GPU, never
// increase the probability that a configuration runs. A configuration that has run has
// probability 1.
func TestRunsProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := func(name string) profile.Config {
			return profile.Config{SMPct: rapid.Float64Range(1, 100).Draw(t, name+" sm"), Quota: 1, Batch: rapid.IntRange(1, 256).Draw(t, name+" batch")}
		}
		b := &book{}
		if rapid.Bool().Draw(t, "some ran") {
			b.rows = []profile.Row{{Config: config("ran"), ThroughputRPS: 1}}
		}
		config1, config2 := config("some"), config("more")
		if b.runProbability(config1) != 1 {
			t.Fatalf("probability that %v runs, before any failure: got %v, want 1", config1, b.runProbability(config1))
		}
		b.failed = []profile.Config{config("failed")}
		config2.SMPct, config2.Batch = min(config2.SMPct, config1.SMPct), max(config2.Batch, config1.Batch)
		if p, q := b.runProbability(config1), b.runProbability(config2); !(q > 0 && q <= p && p <= 1) {
			t.Fatalf("probability that %v runs is %v, and that the larger %v runs is %v; want 1 ≥ first ≥ second > 0", config1, p, config2, q)
		}
		for _, r := range b.rows {
			if b.runProbability(r.Config) != 1 {
				t.Fatalf("probability that %v runs, which has run: got %v, want 1", r.Config, b.runProbability(r.Config))
			}
		}
	})
}

// TestFastFindsTheLimitOfMemory checks that if memory is short, fast finds the largest
// batch that runs by halving, instead of trying each larger one.
func TestFastFindsTheLimitOfMemory(t *testing.T) {
	var rows []profile.Row
	for _, sm := range []float64{14, 28, 42, 57, 100} {
		for batch := 1; batch <= 1024; batch *= 2 {
			r := profile.Row{Config: profile.Config{SMPct: sm, Quota: 1, Batch: batch}}
			if float64(batch) <= sm/100*80 {
				ms := 20 + float64(batch)*50/sm
				r.ThroughputRPS, r.P95MS = 1000*float64(batch)/ms, ms
			}
			rows = append(rows, r)
		}
	}
	for _, times := range []float64{2, 5, 30} {
		var s score
		s.add(t, "fast", rows, times)
		if s.trials[0] > float64(assumed.maxTrials) || s.regret[0] > 0.05 || math.IsNaN(s.regret[0]) {
			t.Errorf("objective of %v times the least latency: got a regret of %.3f after %v trials, want at most 0.05 after at most %v", times, s.regret[0], s.trials[0], assumed.maxTrials)
		}
	}
}
