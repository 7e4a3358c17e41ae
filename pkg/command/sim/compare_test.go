package sim

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/sim"
)

// TestTableFits checks that the table of all policies fits into 120 columns, even for the results of a long
// simulation, and that the output wide has the other columns as well.
func TestTableFits(t *testing.T) {
	const day, many = 86_399_900, 2_000_000_000
	var results []*sim.Result
	for _, name := range queue.Names() {
		results = append(results, &sim.Result{
			Policy: name, LatencyMS: sim.Latency{Mean: day, P50: day, P95: day, P99: day, Max: day}, MakespanMS: day,
			ColdStarts: many, HostWarmStarts: many, GPUWarmStarts: many, MissRatio: 1, FalseMissRatio: 1, GPUUtilization: 1,
			Rejected: many, Fairness: sim.Fairness{MaxGapMS: day, BoundMS: day},
		})
	}
	wide := compareRows(results, human, func(v float64) string { return number.Percent(v, 1) })
	wide[0] = columns
	var text strings.Builder
	if err := cli.Table(&text, narrow(wide)); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text.String()) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 120 {
			t.Errorf("a line has %d columns, want at most 120: %s", n, line)
		}
	}
	for _, row := range narrow(wide) {
		if got, want := len(row), len(columns)-len(onlyWide); got != want {
			t.Errorf("%d columns, want %d: %v", got, want, row)
		}
	}
}
