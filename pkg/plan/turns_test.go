package plan

import (
	"math"
	"testing"

	"github.com/gfaas/gfaas/pkg/gpu"
)

func TestTurns(t *testing.T) {
	at := func(x float64) *float64 { return &x }
	rect := GPU{Instances: []Instance{
		{ID: "a", QuotaRequest: 0.6, X: at(0)}, {ID: "b", QuotaRequest: 0.4, X: at(0.6)}, {ID: "c", QuotaRequest: 0.1, X: at(1 - 0.1 + 1e-9)},
	}}
	tokens := GPU{
		Instances: []Instance{{ID: "a"}, {ID: "b"}, {ID: "c"}, {ID: "d"}},
		Schedule: []Interval{
			{Duration: 0.1, Instances: []string{"a", "b"}}, {Duration: 0.2, Instances: []string{"a"}},
			{Duration: 0.3, Instances: []string{"b", "c"}}, {Duration: 0.4, Instances: []string{"c", "a"}},
		},
	}
	for name, c := range map[string]struct {
		gpu  GPU
		want map[string][]gpu.Turn
	}{
		"rect":   {rect, map[string][]gpu.Turn{"a": {{From: 0, To: 0.6}}, "b": {{From: 0.6, To: 1}}, "c": {{From: 0.9, To: 1}}}},
		"tokens": {tokens, map[string][]gpu.Turn{"a": {{From: 0, To: 0.3}, {From: 0.6, To: 1}}, "b": {{From: 0, To: 0.1}, {From: 0.3, To: 0.6}}, "c": {{From: 0.3, To: 1}}}},
		"none":   {GPU{Instances: []Instance{{ID: "a", QuotaRequest: 1}}}, nil},
	} {
		got := c.gpu.Turns()
		if len(got) != len(c.want) {
			t.Errorf("%s: %v", name, got)
		}
		for id, want := range c.want {
			if !near(got[id], want) || gpu.ValidateTurns(got[id]) != nil {
				t.Errorf("%s: %s has %v, want %v", name, id, got[id], want)
			}
		}
	}
}

func near(a, b []gpu.Turn) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if math.Abs(a[i].From-b[i].From) > 1e-8 || math.Abs(a[i].To-b[i].To) > 1e-8 {
			return false
		}
	}
	return true
}
