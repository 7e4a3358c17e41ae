package twin

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/sim"
	"github.com/gfaas/gfaas/pkg/trace"
)

// TestExclusive holds what KaaS says of its exclusive policy (section 4.1.4)
// however pools are balanced: no two functions share a GPU at a time, a
// function new on a GPU starts cold there, and everything that fits is served.
func TestExclusive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		functions := drawFunctions(t, time.Millisecond)
		rows := drawRows(t, len(functions), time.Millisecond)
		s := drawSettings(t, "batch")
		s.policy, s.pool = "exclusive", rapid.SampledFrom([]int{-1, s.d, s.d + 1}).Draw(t, "containers")
		type use struct {
			function int32
			until    time.Duration
		}
		last := make([]use, s.gpus)
		for g := range last {
			last[g].function = -1
		}
		started, rejected := 0, 0
		c := s.config(functions)
		c.Decide = func(now time.Duration, a *queue.Action) error {
			if a.Kind == queue.Reject {
				rejected++
			}
			if a.Kind != queue.Run {
				return nil
			}
			started++
			g := &last[a.GPU]
			if g.function != a.Function {
				if now < g.until {
					t.Fatalf("at %v function %d starts on GPU %d, where %d runs until %v", now, a.Function, a.GPU, g.function, g.until)
				}
				if a.Start != residency.Cold {
					t.Fatalf("at %v function %d takes GPU %d and starts %v", now, a.Function, a.GPU, a.Start)
				}
			}
			g.function, g.until = a.Function, max(g.until, now+a.Expected)
			return nil
		}
		result, err := sim.Run(c, trace.NewList(rows))
		if err != nil {
			t.Fatal(err)
		}
		if started+rejected != len(rows) || result.Completed != int64(started) {
			t.Fatalf("%d rows: %d started, %d completed, %d rejected", len(rows), started, result.Completed, rejected)
		}
	})
}
