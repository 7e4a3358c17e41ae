package verify

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/plan"
)

// TestOverlapsAsPairs compares the skyline with a comparison of all pairs: it must find an overlap exactly
// if there is one, and return an instance that does overlap.
func TestOverlapsAsPairs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var list []plan.Instance
		for i := range rapid.IntRange(1, 24).Draw(t, "instances") {
			draw := func(what string, least, most int) float64 { return float64(rapid.IntRange(least, most).Draw(t, what)) }
			x, y := draw("x", 0, 9)/10, 10*draw("y", 0, 9)
			list = append(list, plan.Instance{ID: fmt.Sprint(i), X: &x, Y: &y, QuotaRequest: draw("quota", 0, 5) / 10, SMPct: 10 * draw("sm", 0, 5)})
		}
		slices.SortStableFunc(list, func(a, b plan.Instance) int { return cmp.Compare(*a.X, *b.X) })
		var s skyline
		for i := range list {
			b := &list[i]
			var with []string
			for _, a := range list[:i] {
				if *b.X < end(&a)-shareEps && *b.Y < *a.Y+a.SMPct && *a.Y < *b.Y+b.SMPct && b.QuotaRequest > 0 && b.SMPct > 0 && a.SMPct > 0 {
					with = append(with, a.ID)
				}
			}
			got := s.add(b)
			if (got != nil) != (len(with) > 0) || got != nil && !slices.Contains(with, got.ID) {
				t.Fatalf("overlap of %s: got %v, want one of %v", b.ID, got, with)
			}
			for j := 1; j < len(s); j++ {
				if s[j-1].to > s[j].from {
					t.Fatalf("spans of the skyline: got %v, which overlap, want no overlap", s)
				}
			}
		}
	})
}

// BenchmarkPlan shows that the time grows about linearly with the number of instances on one GPU, whether
// they are apart or overlap.
func BenchmarkPlan(b *testing.B) {
	for _, n := range []int{1000, 16000} {
		for what, height := range map[string]float64{"apart": 100 / float64(n), "overlapping": 0} {
			b.Run(fmt.Sprintf("%d %s", n, what), func(b *testing.B) {
				p := overlapping(n, height)
				for b.Loop() {
					Plan(p, Inputs{})
				}
			})
		}
	}
}

// overlapping returns a plan of n instances on one GPU, each starting height percent of the SMs above the
// one before.
func overlapping(n int, height float64) plan.Plan {
	p := plan.Plan{Version: plan.Version, Model: plan.ModelRect, GPUs: []plan.GPU{{Node: "n"}}}
	for i := range n {
		x, y := 0.0, height*float64(i)
		p.GPUs[0].Instances = append(p.GPUs[0].Instances, plan.Instance{ID: fmt.Sprintf("a-%d", i), Function: "a", SMPct: 100 / float64(n), QuotaRequest: 0.5, QuotaLimit: 0.5, Batch: 1, RPS: 1, X: &x, Y: &y})
	}
	return p
}

// TestManyOverlaps checks that among instances that all overlap, each is named once.
func TestManyOverlaps(t *testing.T) {
	const n = 3000
	count := 0
	for _, v := range Plan(overlapping(n, 0), Inputs{}) {
		if v.Rule == RuleOverlap {
			count++
		}
	}
	if count != n-1 {
		t.Errorf("overlaps of %d instances in one place: got %d, want %d", n, count, n-1)
	}
}
