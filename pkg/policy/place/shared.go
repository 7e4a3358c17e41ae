package place

import (
	"slices"

	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
)

// shared is Fast where a model's weights are kept once on a GPU (FaST-GShare,
// section 3.5): a plan of nothing that grows.
func shared(in Input, o FastOptions, wanted []want) plan.Plan {
	none := plan.Plan{Model: plan.ModelRect}
	s := newSite(none, in, IncrementalOptions{TieBreak: o.TieBreak, Threshold: maxrect.DefaultThreshold, ShareModels: true, order: o.Order})
	s.grow()
	fresh := plan.Plan{Algorithm: "fast"}
	for i := range wanted { // the weights aside, which some GPU keeps
		rows := slices.Clone(wanted[i].rows)
		for k := range rows {
			rows[k].GPUMemMiB = s.private(rows[k]).MiB()
		}
		wanted[i].rows = rows
	}
	fresh.Bound, fresh.BoundMethod = in.bound(wanted)
	return s.plan(none, fresh)
}

// Timetabled is a plan of rectangles as one of the model tokens: every instance
// has its turns where its rectangle is, and the bound, of area or memory, holds
// for both models.
func Timetabled(p plan.Plan) plan.Plan {
	p.Model = plan.ModelTokens
	for i := range p.GPUs {
		g := &p.GPUs[i]
		g.Schedule = turnsOf(g.Instances)
		for k := range g.Instances {
			g.Instances[k].X, g.Instances[k].Y = nil, nil
		}
	}
	return p
}

// turnsOf is the timetable of rectangles.
func turnsOf(instances []plan.Instance) []plan.Interval {
	edges := []int64{0}
	for _, in := range instances {
		from := share(*in.X)
		edges = append(edges, from, from+share(in.QuotaRequest))
	}
	slices.Sort(edges)
	edges = slices.Compact(edges)
	var out []plan.Interval
	for i, to := range edges[1:] {
		entry := plan.Interval{Duration: float64(to-edges[i]) / one, Instances: []string{}}
		for _, in := range instances {
			if from := share(*in.X); from <= edges[i] && to <= from+share(in.QuotaRequest) {
				entry.Instances = append(entry.Instances, in.ID)
			}
		}
		out = append(out, entry)
	}
	return out
}
