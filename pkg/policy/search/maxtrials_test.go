package search

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/profile"
)

var (
	eighths = []float64{12.5, 25, 37.5, 50, 62.5, 75, 87.5, 100}
	fifths  = []float64{0.2, 0.4, 0.6, 0.8, 1}
)

func TestMaxTrials(t *testing.T) {
	wide := Space{SMPct: eighths, Quota: fifths, Batch: []int{1, 2, 4, 8}}
	for _, c := range []struct {
		search         string
		space          Space
		goal           Goal
		likely, surely int
	}{
		{"grid", wide, Goal{}, 160, 160},
		{"binary", wide, Goal{}, 6, 6},   // all SMs, then 50%, then two trials each for the limit and the request
		{"hybrid", wide, Goal{}, 11, 11}, // 8 SM shares and 3 other batch sizes
		{"gpulet", wide, Goal{}, 16, 16},
		{"fast", wide, Goal{SLOMS: 100}, 10, 160},
		{"fast", wide, Goal{SLOMS: 100, CheckQuota: true}, 12, 160}, // two more trials, of the quotas 0.4 and 0.2
		{"fast", Space{SMPct: eighths, Quota: []float64{1}, Batch: []int{1}}, Goal{CheckQuota: true}, 8, 8},
		{"binary", Space{SMPct: []float64{50, 100}, Quota: []float64{1}, Batch: []int{1}}, Goal{}, 2, 2},
		{"binary", Space{SMPct: []float64{100}, Quota: fifths, Batch: []int{1}}, Goal{}, 1, 1},
		{"binary", Space{}, Goal{}, 0, 0}, {"hybrid", Space{}, Goal{}, 0, 0}, {"fast", Space{}, Goal{}, 0, 0}, {"grid", Space{}, Goal{}, 0, 0},
	} {
		if likely, surely := MaxTrials(c.search, c.space, c.goal); likely != c.likely || surely != c.surely {
			t.Errorf("MaxTrials of %s over %d configurations: got %d and %d, want %d and %d", c.search, c.space.Size(), likely, surely, c.likely, c.surely)
		}
	}
}

// TestMaxTrialsHolds checks that whatever is measured, no search takes more
// trials than MaxTrials returns.
func TestMaxTrialsHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		space := Space{
			SMPct: rapid.SliceOfNDistinct(rapid.SampledFrom(append(eighths, 1, 2, 3, 5, 10, 99)), 1, 10, rapid.ID[float64]).Draw(t, "sm"),
			Quota: rapid.SliceOfNDistinct(rapid.SampledFrom(fifths), 1, 5, rapid.ID[float64]).Draw(t, "quota"),
			Batch: rapid.SliceOfNDistinct(rapid.SampledFrom([]int{1, 2, 3, 4, 8, 32}), 1, 4, rapid.ID[int]).Draw(t, "batch"),
		}
		goal := Goal{SLOMS: rapid.SampledFrom([]float64{0, 10, 100}).Draw(t, "objective"), CheckQuota: rapid.Bool().Draw(t, "check")}
		name := rapid.SampledFrom(Names()).Draw(t, "search")
		likely, surely := MaxTrials(name, space, goal)
		s, err := New(name, space, goal)
		if err != nil {
			t.Fatal(err)
		}
		trials, met := 0, false // met: one of the first ten trials meets the goal
		for c, ok := s.Next(); ok; c, ok = s.Next() {
			row := profile.Row{Config: c, ThroughputRPS: rapid.Float64Range(0.1, 1000).Draw(t, "rps"), P95MS: rapid.Float64Range(1, 1000).Draw(t, "p95"), Samples: 100}
			trials++
			met = met || trials <= assumed.maxTrials && goal.Meets(row)
			s.Record(c, row, true)
		}
		if trials > surely || met && trials > likely {
			t.Fatalf("%s: got %d trials, one of the first ten meets the objective: %v; want at most %d, and %d if so", name, trials, met, surely, likely)
		}
	})
}
