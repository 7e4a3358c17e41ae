package search

import (
	"slices"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/profile"
	"pgregory.net/rapid"
)

func TestGridOrder(t *testing.T) {
	g := NewGrid(Space{SMPct: []float64{24, 12}, Quota: []float64{1, 0.2}, Batch: []int{4, 1}})
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
		if _, err := New(name, Space{SMPct: []float64{12}, Quota: []float64{1}, Batch: []int{1}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := New("guess", Space{}); err == nil || !strings.Contains(err.Error(), "grid") {
		t.Errorf("unknown strategy: %v", err)
	}
}

// Every strategy ends, asks for no configuration twice and for none outside
// the space, answers the same until told, and never has more left than it said.
func TestStrategyProperty(t *testing.T) {
	share := rapid.SampledFrom([]float64{6, 12, 24, 50, 60, 80, 100})
	quota := rapid.SampledFrom([]float64{0.2, 0.4, 0.6, 0.8, 1})
	rapid.Check(t, func(t *rapid.T) {
		space := Space{
			SMPct: rapid.SliceOfDistinct(share, rapid.ID).Draw(t, "sm"),
			Quota: rapid.SliceOfDistinct(quota, rapid.ID).Draw(t, "quota"),
			Batch: rapid.SliceOfDistinct(rapid.IntRange(1, 16), rapid.ID).Draw(t, "batch"),
		}
		s, err := New(rapid.SampledFrom(Names()).Draw(t, "search"), space)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[profile.Config]bool{}
		left := s.Left()
		if left > space.Size() {
			t.Fatalf("%d left of %d", left, space.Size())
		}
		for c, ok := s.Next(); ok; c, ok = s.Next() {
			if again, _ := s.Next(); again != c {
				t.Fatalf("Next answered %v, then %v", c, again)
			}
			if seen[c] || !slices.Contains(space.SMPct, c.SMPct) || !slices.Contains(space.Quota, c.Quota) || !slices.Contains(space.Batch, c.Batch) {
				t.Fatalf("%v: seen before %v", c, seen[c])
			}
			seen[c] = true
			s.Tell(c, profile.Row{Config: c}, rapid.Bool().Draw(t, "ok"))
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
