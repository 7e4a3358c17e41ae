package picture

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/plan"
)

// timetable returns a GPU whose instances have several turns and share weights.
func timetable() plan.GPU {
	instance := func(id, function string, sm, quota float64) plan.Instance {
		return plan.Instance{ID: id, Function: function, SMPct: sm, QuotaRequest: quota, QuotaLimit: quota, Batch: 1, RPS: 10, MemMiB: 500}
	}
	return plan.GPU{
		Node: "node0", MemMiB: 8192,
		Instances: []plan.Instance{instance("a-0", "a", 60, 0.4), instance("a-1", "a", 60, 0.4), instance("c-0", "c", 40, 0.9), instance("d-0", "d", 20, 0.3), instance("d-1", "d", 20, 0.3)},
		Models:    []plan.Model{{Name: "a", MemMiB: 1000}, {Name: "c", MemMiB: 400}},
		Schedule: []plan.Interval{
			{Duration: 0.4, Instances: []string{"a-0", "c-0"}}, {Duration: 0.3, Instances: []string{"a-1", "c-0"}},
			{Duration: 0.1, Instances: []string{"a-1", "d-0", "d-1"}}, {Duration: 0.2, Instances: []string{"c-0", "d-0", "d-1"}},
		},
	}
}

// tokens returns a plan with one timetable.
func tokens() plan.Plan {
	return plan.Plan{
		Version: 1, Algorithm: "joint", Model: plan.ModelTokens, GPUsUsed: 1, Bound: 1, BoundMethod: "joint-lp", GPUs: []plan.GPU{timetable()},
		Demand: []plan.Served{{Function: "a", RPS: 20, ServedRPS: 20}, {Function: "c", RPS: 10, ServedRPS: 10}, {Function: "d", RPS: 15, ServedRPS: 20}},
	}
}

// TestTurnsAreDrawnCompletely checks that every turn is drawn completely, within the square and without overlap.
func TestTurnsAreDrawnCompletely(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var g plan.GPU
		for i := range rapid.IntRange(1, 8).Draw(t, "instances") {
			g.Instances = append(g.Instances, plan.Instance{ID: fmt.Sprint(i), SMPct: float64(rapid.IntRange(1, 60).Draw(t, "sm"))})
		}
		want, remaining := map[string]float64{}, 1.0
		for range rapid.IntRange(1, 8).Draw(t, "entries") {
			e := plan.Interval{Duration: min(remaining, rapid.Float64Range(0.01, 0.5).Draw(t, "duration"))}
			remaining -= e.Duration
			free := 100.0
			for _, in := range g.Instances {
				if in.SMPct <= free && rapid.Bool().Draw(t, "runs") {
					e.Instances = append(e.Instances, in.ID)
					free -= in.SMPct
					want[in.ID] += in.SMPct * e.Duration
				}
			}
			if e.Duration > 0 {
				g.Schedule = append(g.Schedule, e)
			}
		}
		var all []tile
		for id, parts := range tiles(g) {
			got := 0.0
			for _, p := range parts {
				got += p.w * p.h
			}
			if math.Abs(got-want[id]) > 1e-6 {
				t.Fatalf("%s has %v, want %v: %v", id, got, want[id], parts)
			}
			all = append(all, parts...)
		}
		for i, a := range all {
			if a.x < -1e-9 || a.y < 0 || a.x+a.w > 1+1e-9 || a.y+a.h > 100+1e-9 {
				t.Fatalf("turn at %v: want it within the square", a)
			}
			for _, b := range all[i+1:] {
				if a.x < b.x+b.w-1e-9 && b.x < a.x+a.w-1e-9 && a.y < b.y+b.h-1e-9 && b.y < a.y+a.h-1e-9 {
					t.Fatalf("turns at %v and %v overlap, want them apart, in %+v", a, b, g)
				}
			}
		}
	})
}
