package search

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/profile"
)

func TestGridOrder(t *testing.T) {
	g, err := New("grid", Space{SMPct: []float64{24, 12}, Quota: []float64{1, 0.2}, Batch: []int{4, 1}}, Goal{})
	if err != nil {
		t.Fatal(err)
	}
	var got []profile.Config
	for c, ok := g.Next(); ok; c, ok = g.Next() {
		got = append(got, c)
		g.Tell(c, profile.Row{}, len(got)%2 == 0)
	}
	want := []profile.Config{
		{SMPct: 12, Quota: 0.2, Batch: 1}, {SMPct: 12, Quota: 0.2, Batch: 4},
		{SMPct: 12, Quota: 1, Batch: 1}, {SMPct: 12, Quota: 1, Batch: 4},
		{SMPct: 24, Quota: 0.2, Batch: 1}, {SMPct: 24, Quota: 0.2, Batch: 4},
		{SMPct: 24, Quota: 1, Batch: 1}, {SMPct: 24, Quota: 1, Batch: 4},
	}
	if !slices.Equal(got, want) {
		t.Errorf("order\n%v, want\n%v", got, want)
	}
}

func TestNew(t *testing.T) {
	for _, name := range Names() {
		s, err := New(name, Space{}, Goal{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if c, ok := s.Next(); ok || s.Left() != 0 || s.Choice().OK {
			t.Errorf("%s finds %v in an empty space", name, c)
		}
	}
	if _, err := New("guess", Space{}, Goal{}); err == nil || !strings.Contains(err.Error(), "grid") {
		t.Errorf("unknown strategy: %v", err)
	}
}

func TestMeets(t *testing.T) {
	for what, c := range map[string]struct {
		slo  float64
		row  profile.Row
		want bool
	}{
		"at the objective": {10, profile.Row{ThroughputRPS: 1, P95MS: 10}, true},
		"above":            {10, profile.Row{ThroughputRPS: 1, P95MS: 10.001}, false},
		"none":             {0, profile.Row{ThroughputRPS: 1, P95MS: 1e9}, true},
		"nothing answered": {10, profile.Row{}, false},
		"few errors":       {10, profile.Row{ThroughputRPS: 1, P95MS: 1, Errors: 5, Samples: 95}, true},
		"many errors":      {10, profile.Row{ThroughputRPS: 1, P95MS: 1, Errors: 6, Samples: 94}, false},
	} {
		if got := (Goal{SLOMS: c.slo}).Meets(c.row); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}

// trial is one step of a search that was run.
type trial struct {
	config profile.Config
	why    string
	row    profile.Row
	ok     bool
}

// tester is what of a test or a property drive needs.
type tester interface {
	Helper()
	Fatal(args ...any)
}

// drive runs a search on a table; what the table does not have fails.
func drive(t tester, name string, space Space, goal Goal, table map[profile.Config]profile.Row) ([]trial, Choice) {
	t.Helper()
	s, err := New(name, space, goal)
	if err != nil {
		t.Fatal(err)
	}
	var trials []trial
	for c, ok := s.Next(); ok; c, ok = s.Next() {
		row, there := table[c]
		trials = append(trials, trial{c, s.Why(), row, there})
		s.Tell(c, row, there)
	}
	return trials, s.Choice()
}

// sketch draws a space and a table over it: throughput and latency of any
// shape, rows that sustain nothing, and holes.
func sketch(t *rapid.T) (Space, map[profile.Config]profile.Row) {
	share := rapid.SampledFrom([]float64{6, 12, 24, 50, 60, 80, 100})
	quota := rapid.SampledFrom([]float64{0.2, 0.4, 0.6, 0.8, 1})
	space := Space{
		SMPct: rapid.SliceOfNDistinct(share, 1, 5, rapid.ID).Draw(t, "sm"),
		Quota: rapid.SliceOfNDistinct(quota, 1, 3, rapid.ID).Draw(t, "quota"),
		Batch: rapid.SliceOfNDistinct(rapid.IntRange(1, 16), 1, 4, rapid.ID).Draw(t, "batch"),
	}
	table := map[profile.Config]profile.Row{}
	for _, c := range space.Configs() {
		switch rapid.IntRange(0, 9).Draw(t, "kind") {
		case 0: // a hole
		case 1:
			table[c] = profile.Row{Config: c}
		default:
			table[c] = profile.Row{Config: c,
				ThroughputRPS: rapid.Float64Range(0.1, 1000).Draw(t, "rps"), P95MS: rapid.Float64Range(0.1, 1000).Draw(t, "p95")}
		}
	}
	if rapid.Bool().Draw(t, "listed") {
		space.Only = []profile.Config{}
		for c := range table {
			space.Only = append(space.Only, c)
		}
	}
	return space, table
}

func drawGoal(t *rapid.T) Goal {
	return Goal{
		SLOMS:      rapid.SampledFrom([]float64{0, 0.05, 20, 200, 1000}).Draw(t, "slo"),
		Error:      rapid.SampledFrom([]float64{0, 0.001, 0.3}).Draw(t, "error"),
		CheckQuota: rapid.Bool().Draw(t, "check"),
	}
}

// Every strategy ends, asks for no configuration twice and for none outside
// the space, answers the same until told, and never has more left than it said.
func TestStrategyProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		space, table := sketch(t)
		s, err := New(rapid.SampledFrom(Names()).Draw(t, "search"), space, drawGoal(t))
		if err != nil {
			t.Fatal(err)
		}
		all, seen := space.Configs(), map[profile.Config]bool{}
		left := s.Left()
		if left > len(all) {
			t.Fatalf("%d left of %d", left, len(all))
		}
		for c, ok := s.Next(); ok; c, ok = s.Next() {
			if again, _ := s.Next(); again != c || s.Why() == "" {
				t.Fatalf("Next answered %v, then %v, because %q", c, again, s.Why())
			}
			if seen[c] || !slices.Contains(all, c) {
				t.Fatalf("%v: seen before %v", c, seen[c])
			}
			seen[c] = true
			row, there := table[c]
			s.Tell(c, row, there)
			if s.Left() >= left {
				t.Fatalf("%d left after %d", s.Left(), left)
			}
			left = s.Left()
		}
		if left != 0 {
			t.Fatalf("over with %d left", left)
		}
	})
}

// What is chosen was measured and meets the objective; it is the best of what
// was measured, for the grid the best there is; and the same measurements lead
// to the same trials.
func TestChoiceProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		space, table := sketch(t)
		goal := drawGoal(t)
		name := rapid.SampledFrom(Names()).Draw(t, "search")
		trials, choice := drive(t, name, space, goal, table)
		again, same := drive(t, name, space, goal, table)
		if !slices.Equal(trials, again) || choice != same {
			t.Fatalf("%v, then %v", trials, again)
		}
		if choice.Reason == "" {
			t.Fatal("no reason")
		}
		best, tolerance := 0.0, rounding*1.01
		if name == "fast" {
			tolerance = assumed.idle + rounding
		}
		for _, one := range trials {
			if one.ok && goal.Meets(one.row) {
				best = max(best, one.row.Efficacy())
			}
		}
		if choice.OK && (table[choice.Row.Config] != choice.Row || !goal.Meets(choice.Row) || choice.LimitSMPct < choice.Row.SMPct) {
			t.Fatalf("%+v is not good", choice)
		}
		if name != "binary" && (choice.OK != (best > 0) || choice.OK && choice.Row.Efficacy() < best*(1-tolerance)) {
			t.Fatalf("%+v, the best is %v", choice, best)
		}
		if name == "grid" && len(trials) != space.Size() {
			t.Fatalf("%d trials of %d", len(trials), space.Size())
		}
	})
}

// On a table where more SMs never hurt, the binary search finds what a scan
// from below finds: the least SM share with 98% for the limit, and for the
// request the least with 78.4%, or any within 2% of 80%.
func TestBinaryFindsWhatAScanFinds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sms := slices.Sorted(slices.Values(rapid.SliceOfNDistinct(rapid.IntRange(1, 100), 1, 30, rapid.ID).Draw(t, "sm")))
		space := Space{Quota: []float64{1}, Batch: []int{4}}
		table := map[profile.Config]profile.Row{}
		rps := 0.0
		for _, sm := range sms {
			rps += rapid.Float64Range(0.01, 50).Draw(t, "more")
			c := profile.Config{SMPct: float64(sm), Quota: 1, Batch: 4}
			space.SMPct = append(space.SMPct, c.SMPct)
			table[c] = profile.Row{Config: c, ThroughputRPS: rps, P95MS: 1}
		}
		least := func(part float64) float64 {
			for _, sm := range space.SMPct {
				if table[profile.Config{SMPct: sm, Quota: 1, Batch: 4}].ThroughputRPS >= part*rps {
					return sm
				}
			}
			return 0
		}
		trials, choice := drive(t, "binary", space, Goal{}, table)
		part := choice.Row.ThroughputRPS / rps
		if !choice.OK || choice.LimitSMPct != least(0.98) || choice.Row.SMPct != least(0.98*0.8) && (part < 0.98*0.8 || part > 1.02*0.8) {
			t.Fatalf("%+v; least %v and %v", choice, least(0.98*0.8), least(0.98))
		}
		if len(trials) > 13 { // 1 + 2 × (log2(30) + 1)
			t.Fatalf("%d trials", len(trials))
		}
	})
}
