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
		g.Record(c, profile.Row{}, len(got)%2 == 0)
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
		if c, ok := s.Next(); ok || s.Remaining() != 0 || s.Choice().OK {
			t.Errorf("%s: next configuration of an empty space: got %v, %v; want none, no trials remaining and no choice", name, c, ok)
		}
	}
	if _, err := New("guess", Space{}, Goal{}); err == nil || !strings.Contains(err.Error(), "grid") {
		t.Errorf("unknown strategy: got %v, want an error with the names", err)
	}
}

func TestMeets(t *testing.T) {
	for what, c := range map[string]struct {
		slo  float64
		row  profile.Row
		want bool
	}{
		"at the objective":    {10, profile.Row{ThroughputRPS: 1, P95MS: 10}, true},
		"above the objective": {10, profile.Row{ThroughputRPS: 1, P95MS: 10.001}, false},
		"no objective":        {0, profile.Row{ThroughputRPS: 1, P95MS: 1e9}, true},
		"nothing answered":    {10, profile.Row{}, false},
		"few errors":          {10, profile.Row{ThroughputRPS: 1, P95MS: 1, Errors: 5, Samples: 95}, true},
		"many errors":         {10, profile.Row{ThroughputRPS: 1, P95MS: 1, Errors: 6, Samples: 94}, false},
	} {
		if got := (Goal{SLOMS: c.slo}).Meets(c.row); got != c.want {
			t.Errorf("Meets, %s: got %v, want %v", what, got, c.want)
		}
	}
}

// trial is one step of a completed search.
type trial struct {
	config profile.Config
	reason string
	row    profile.Row
	ok     bool
}

// tester is the part of testing.T and rapid.T that drive needs.
type tester interface {
	Helper()
	Fatal(args ...any)
}

// drive runs a search on a table. Trials of configurations without a row fail.
func drive(t tester, name string, space Space, goal Goal, table map[profile.Config]profile.Row) ([]trial, Choice) {
	t.Helper()
	s, err := New(name, space, goal)
	if err != nil {
		t.Fatal(err)
	}
	var trials []trial
	for c, ok := s.Next(); ok; c, ok = s.Next() {
		row, measured := table[c]
		trials = append(trials, trial{c, s.Reason(), row, measured})
		s.Record(c, row, measured)
	}
	return trials, s.Choice()
}

// drawTable draws a space and a table over it: throughput and latency of any
// shape, rows that sustain nothing, and holes.
func drawTable(t *rapid.T) (Space, map[profile.Config]profile.Row) {
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
		case 0: // no row
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

// TestStrategyProperty checks that every strategy ends, and requests only configurations
// of the space, each at most once. Next returns the same configuration until Record
// is called. Remaining is at most the size of the space, decreases with each trial and ends
// at 0.
func TestStrategyProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		space, table := drawTable(t)
		s, err := New(rapid.SampledFrom(Names()).Draw(t, "search"), space, drawGoal(t))
		if err != nil {
			t.Fatal(err)
		}
		all, seen := space.Configs(), map[profile.Config]bool{}
		remaining := s.Remaining()
		if remaining > len(all) {
			t.Fatalf("remaining trials: got %d, want at most %d, the size of the space", remaining, len(all))
		}
		for c, ok := s.Next(); ok; c, ok = s.Next() {
			if repeated, _ := s.Next(); repeated != c || s.Reason() == "" {
				t.Fatalf("Next: got %v, then %v, reason %q; want the same configuration twice, with a reason", c, repeated, s.Reason())
			}
			if seen[c] || !slices.Contains(all, c) {
				t.Fatalf("Next returned %v (seen before: %v), want a new configuration of the space", c, seen[c])
			}
			seen[c] = true
			row, measured := table[c]
			s.Record(c, row, measured)
			if s.Remaining() >= remaining {
				t.Fatalf("remaining trials after another one: got %d, want less than %d", s.Remaining(), remaining)
			}
			remaining = s.Remaining()
		}
		if remaining != 0 {
			t.Fatalf("remaining trials at the end: got %d, want 0", remaining)
		}
	})
}

// TestChoiceProperty checks that the chosen row was measured and meets the objective. It
// is the best measured row, and for the grid the best of the space. Equal measurements
// lead to equal trials.
func TestChoiceProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		space, table := drawTable(t)
		goal := drawGoal(t)
		name := rapid.SampledFrom(Names()).Draw(t, "search")
		trials, choice := drive(t, name, space, goal, table)
		repeated, same := drive(t, name, space, goal, table)
		if !slices.Equal(trials, repeated) || choice != same {
			t.Fatalf("repeated with the same measurements: got %v and choice %+v, want %v and %+v", repeated, same, trials, choice)
		}
		if choice.Reason == "" {
			t.Fatalf("reason of the choice %+v: got none, want one", choice)
		}
		best, tolerance := 0.0, rounding*1.01
		if name == "fast" {
			tolerance = assumed.minQuotaGain + rounding
		}
		for _, one := range trials {
			if one.ok && goal.Meets(one.row) {
				best = max(best, one.row.Efficacy())
			}
		}
		if choice.OK && (table[choice.Row.Config] != choice.Row || !goal.Meets(choice.Row) || choice.LimitSMPct < choice.Row.SMPct) {
			t.Fatalf("got %+v, want a measured row that meets the objective, with a limit of at least its request", choice)
		}
		if name != "binary" && (choice.OK != (best > 0) || choice.OK && choice.Row.Efficacy() < best*(1-tolerance)) {
			t.Fatalf("got %+v, want an efficacy within %v of the best, %v", choice, tolerance, best)
		}
		if name == "grid" && len(trials) != space.Size() {
			t.Fatalf("got %d trials, want %d", len(trials), space.Size())
		}
	})
}

// TestBinaryFindsWhatAScanFinds checks that on a table where more SMs never reduce
// throughput, the binary search finds the same result as a scan from the least SM share.
// The limit is the least SM share with 98% of the throughput. The request is the least
// share with 78.4%, or any share within 2% of 80%.
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
		leastSM := func(fraction float64) float64 {
			for _, sm := range space.SMPct {
				if table[profile.Config{SMPct: sm, Quota: 1, Batch: 4}].ThroughputRPS >= fraction*rps {
					return sm
				}
			}
			return 0
		}
		trials, choice := drive(t, "binary", space, Goal{}, table)
		fraction := choice.Row.ThroughputRPS / rps
		if !choice.OK || choice.LimitSMPct != leastSM(0.98) || choice.Row.SMPct != leastSM(0.98*0.8) && (fraction < 0.98*0.8 || fraction > 1.02*0.8) {
			t.Fatalf("got %+v, want a limit of %v%% SMs, and a request of %v%% or with a throughput within 2%% of 80%%", choice, leastSM(0.98), leastSM(0.98*0.8))
		}
		if len(trials) > 13 { // 1 + 2 × (log2(30) + 1)
			t.Fatalf("trials of the binary search: got %d, want at most 13", len(trials))
		}
	})
}

// slowHybrid is a simple twin of hybrid: it walks over the table as section 3.2 of the paper describes it, and
// returns the configurations on its way.
func slowHybrid(space Space, goal Goal, table map[profile.Config]profile.Row) (trials []profile.Config) {
	var shares []float64
	var batches []int
	quota := 0.0
	for _, c := range space.Configs() {
		shares, batches, quota = append(shares, c.SMPct), append(batches, c.Batch), max(quota, c.Quota)
	}
	slices.Sort(batches)
	best := 0.0
	sm, batch := 0.0, 0
	grow := func() bool { // to the least share that is at least 10% larger, or to the largest
		if sm == slices.Max(shares) {
			return false
		}
		larger := slices.IndexFunc(shares, func(s float64) bool { return s >= sm+10 })
		if larger < 0 {
			larger = len(shares) - 1
		}
		sm = shares[larger]
		return true
	}
	double := func() bool {
		larger := slices.IndexFunc(batches, func(b int) bool { return b >= max(1, 2*batch) })
		if larger < 0 {
			return false
		}
		batch = batches[larger]
		return true
	}
	for ok := len(shares) > 0 && grow() && double(); ok; {
		c := profile.Config{SMPct: sm, Quota: quota, Batch: batch}
		if slices.Contains(space.Configs(), c) {
			trials = append(trials, c)
		}
		row, measured := table[c]
		switch {
		case !measured || !goal.Meets(row):
			ok = grow()
		case row.Efficacy() < 0.9*best:
			ok = false
		default:
			best, ok = max(best, row.Efficacy()), double()
		}
	}
	return trials
}

// TestHybridMatchesTwin compares the trials of hybrid with slowHybrid's.
func TestHybridMatchesTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		space, table := drawTable(t)
		goal := drawGoal(t)
		trials, _ := drive(t, "hybrid", space, goal, table)
		var got []profile.Config
		for _, one := range trials {
			got = append(got, one.config)
		}
		if want := slowHybrid(space, goal, table); !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}
