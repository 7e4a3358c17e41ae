package recorded

import (
	"fmt"
	"testing"

	"github.com/gfaas/gfaas/pkg/policy/search"
	"github.com/gfaas/gfaas/pkg/profile"
)

// measured holds the figures of a row: the SM share in percent, requests per second, and the p95 latency in ms.
type measured struct {
	sm  float64
	rps float64
	p95 float64
}

func row(function string, gpu string, m measured) profile.Row {
	return profile.Row{Function: function, GPU: gpu, Config: profile.Config{SMPct: m.sm, Quota: 1, Batch: 1}, ThroughputRPS: m.rps, P95MS: m.p95}
}

func TestBest(t *testing.T) {
	rows := []profile.Row{row("f", "", measured{sm: 10, rps: 20, p95: 90}), row("f", "", measured{sm: 20, rps: 30, p95: 50}), row("f", "", measured{sm: 50, rps: 60, p95: 20})}
	for slo, want := range map[float64]float64{0: 10, 60: 20, 20: 50} {
		choice, err := Best(rows, search.Goal{SLOMS: slo})
		if err != nil || !choice.OK || choice.Row.SMPct != want {
			t.Errorf("objective %v ms: got %+v, %v, want sm_pct %v", slo, choice, err, want)
		}
	}
	if choice, err := Best(rows, search.Goal{SLOMS: 1}); err != nil || choice.OK {
		t.Errorf("objective 1 ms: got %+v, %v, want none", choice, err)
	}
}

// A configuration that the profile lacks is no trial.
func TestReplayCountsKnownRows(t *testing.T) {
	rows := []profile.Row{row("f", "", measured{sm: 10, rps: 20, p95: 90}), row("f", "", measured{sm: 20, rps: 30, p95: 50})}
	space := Space(rows)
	space.Only = nil
	space.SMPct = append(space.SMPct, 50)
	s, err := search.New("grid", space, search.Goal{})
	if err != nil {
		t.Fatal(err)
	}
	var seen []float64
	if n := Replay(s, rows, func(trial int, r profile.Row) { seen = append(seen, float64(trial), r.SMPct) }); n != 2 || fmt.Sprint(seen) != "[1 10 2 20]" {
		t.Errorf("%d trials: %v, want [1 10 2 20]", n, seen)
	}
}

func TestGroups(t *testing.T) {
	groups := Groups([]profile.Row{row("b", "x", measured{sm: 10, rps: 1, p95: 1}), row("a", "x", measured{sm: 20, rps: 1, p95: 1}), row("b", "y", measured{sm: 30, rps: 1, p95: 1}), row("b", "x", measured{sm: 40, rps: 1, p95: 1})})
	got := ""
	for _, g := range groups {
		got += fmt.Sprint(g.Function, g.GPU)
		for _, r := range g.Rows {
			got += fmt.Sprint(" ", r.SMPct)
		}
		got += ";"
	}
	if want := "bx 10 40;ax 20;by 30;"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestHighest(t *testing.T) {
	list := []profile.Measurement{{ThroughputRPS: 10, P95MS: 5}, {ThroughputRPS: 30, P95MS: 50}, {ThroughputRPS: 20, P95MS: 9}}
	for slo, want := range map[float64]struct {
		rps float64
		ok  bool
	}{0: {30, true}, 50: {30, true}, 10: {20, true}, 1: {10, false}} {
		if got, ok := Highest(list, slo); got.ThroughputRPS != want.rps || ok != want.ok {
			t.Errorf("objective %v ms: got %v, %v, want %v", slo, got.ThroughputRPS, ok, want)
		}
	}
}
