package planned

import (
	"fmt"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/arrivals"
	"github.com/gfaas/gfaas/pkg/profile"
)

// FromPlan are the instances of a plan by GPU, as a profile knows them: what
// a batch takes is what package arrivals says of its row. An instance that spans
// GPUs works on the first, and takes its part of the others whatever it has to do. It
// fails if the profile has no row of an instance's configuration on its GPU's model, and
// with a *profile.AmbiguousError if the plan does not name the model and rows differ.
func FromPlan(p plan.Plan, rows []profile.Row) ([][]Instance, error) {
	profiled := profile.NewIndex(rows)
	out, seen := make([][]Instance, len(p.GPUs)), map[string]bool{}
	for n, g := range p.GPUs {
		turns := g.Turns()
		for _, in := range g.Instances {
			row, _, err := profiled.Find(in.Function, in.Config(), g.Model)
			if err != nil {
				return nil, fmt.Errorf("%s on %s/%d: %w", in.ID, g.Node, g.Index, err)
			}
			took := arrivals.Service(row) * row.Quota
			if took == 0 {
				on := ""
				if g.Model != "" {
					on = " on " + g.Model
				}
				return nil, fmt.Errorf("%s runs at sm_pct %v, quota %v, batch %d%s, of which the profile has no row that sustains anything",
					in.ID, in.SMPct, in.QuotaRequest, in.Batch, on)
			}
			out[n] = append(out[n], Instance{
				Function: in.Function, Turns: turns[in.ID],
				Slice: gpu.Slice{SMPct: in.SMPct, QuotaRequest: in.QuotaRequest, QuotaLimit: max(in.QuotaLimit, in.QuotaRequest)},
				Work:  took, HandOver: p.HandOverMS(in.Function), Batch: in.Batch, RPS: in.RPS, Endless: seen[in.ID],
			})
			seen[in.ID] = true
		}
	}
	return out, nil
}

// Groups parts GPUs into those that have functions in common, if only by way of others:
// what comes to one group changes nothing in another. They are in the order given, as
// are the GPUs of each.
func Groups(gpus [][]Instance) [][][]Instance {
	group := make([]int, len(gpus)) // a GPU of it that comes before, or itself
	root := func(n int) int {
		for group[n] != n {
			group[n] = group[group[n]]
			n = group[n]
		}
		return n
	}
	first := map[string]int{}
	for n, g := range gpus {
		group[n] = n
		for _, in := range g {
			at, seen := first[in.Function]
			if !seen {
				first[in.Function] = n
				continue
			}
			a, b := root(at), root(n)
			group[max(a, b)] = min(a, b)
		}
	}
	var out [][][]Instance
	place := map[int]int{}
	for n, g := range gpus {
		at, begun := place[root(n)]
		if !begun {
			at, out = len(out), append(out, nil)
			place[root(n)] = at
		}
		out[at] = append(out[at], g)
	}
	return out
}
