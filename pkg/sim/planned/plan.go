package planned

import (
	"fmt"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/arrivals"
	"github.com/gfaas/gfaas/pkg/profile"
)

// FromPlan returns the instances of a plan, by GPU. The GPU time of a batch is the time that its
// profile row gives for a batch (arrivals.ServiceTime), times the row's quota, because the instance
// could use the GPU for only that fraction of the time while it was measured. The time of an answer
// is the plan's hand-over time, for which an instance is idle between two calls. An instance that
// spans several GPUs is listed on each of them: on the first, it works on requests; on the others,
// it is Endless. With limits, which the policy introspective uses, an instance has the SM share of its
// limit, and its work takes less time (see workAt). Otherwise, it has that of its request. FromPlan fails if the profile has no row for an instance's configuration on its
// GPU's model. It returns a *profile.AmbiguousError if the plan does not name the model and the rows
// differ.
func FromPlan(p plan.Plan, rows []profile.Row, limits bool) ([][]Instance, error) {
	profiled := profile.NewIndex(rows)
	gpus, placed := make([][]Instance, len(p.GPUs)), map[string]bool{}
	for n, g := range p.GPUs {
		turns := g.Turns()
		for _, in := range g.Instances {
			row, _, err := profiled.Find(in.Function, in.Config(), g.Model)
			if err != nil {
				return nil, fmt.Errorf("%s on %s/%d: %w", in.ID, g.Node, g.Index, err)
			}
			workMS := work(row)
			if workMS == 0 {
				on := ""
				if g.Model != "" {
					on = " on " + g.Model
				}
				return nil, fmt.Errorf("%s runs at sm_pct %v, quota %v, batch %d%s, for which the profile has no row with a throughput above 0",
					in.ID, in.SMPct, in.QuotaRequest, in.Batch, on)
			}
			slice := gpu.Slice{SMPct: in.SMPct, QuotaRequest: in.QuotaRequest, QuotaLimit: max(in.QuotaLimit, in.QuotaRequest)}
			if limits && in.SMLimitPct > in.SMPct {
				slice.SMLimitPct = in.SMLimitPct
				workMS = workAt(profile.On(rows, g.Model), row, in.SMLimitPct)
			}
			gpus[n] = append(gpus[n], Instance{
				Function: in.Function, Turns: turns[in.ID], Slice: slice,
				WorkMS: workMS, AnswerMS: p.HandOverMS(in.Function), Batch: in.Batch, RPS: in.RPS, Endless: placed[in.ID],
			})
			placed[in.ID] = true
		}
	}
	return gpus, nil
}

// work returns the GPU time of a batch in ms.
func work(r profile.Row) float64 { return arrivals.ServiceTime(r) * r.Quota }

// workAt returns the GPU time of a batch in ms on a larger SM share than that of the row. Its inverse, the
// speed, is interpolated between the measured SM shares of the function with the same batch. Beyond the
// largest measured SM share, the speed does not grow. At each share, the row with the largest quota counts,
// because its GPU time is the most precise.
func workAt(rows []profile.Row, row profile.Row, smPct float64) float64 {
	below, above := row, profile.Row{}
	for _, r := range rows {
		switch {
		case r.Function != row.Function || r.Batch != row.Batch || work(r) == 0:
		case r.SMPct <= smPct && (r.SMPct > below.SMPct || r.SMPct == below.SMPct && r.Quota > below.Quota):
			below = r
		case r.SMPct > smPct && (above.SMPct == 0 || r.SMPct < above.SMPct || r.SMPct == above.SMPct && r.Quota > above.Quota):
			above = r
		}
	}
	speed := max(1/work(below), 1/work(row))
	if above.SMPct > 0 {
		faster := max(1/work(above), speed)
		speed += (faster - speed) * (smPct - below.SMPct) / (above.SMPct - below.SMPct)
	}
	return 1 / speed
}

// Groups partitions GPUs so that functions of different groups share no GPU, not even indirectly.
// Requests to one group therefore do not affect another. Groups, and the GPUs of each, are in the
// given order.
func Groups(gpus [][]Instance) [][][]Instance {
	group := make([]int, len(gpus)) // by GPU: an earlier GPU of the same group, or itself
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
	var groups [][][]Instance
	place := map[int]int{}
	for n, g := range gpus {
		at, known := place[root(n)]
		if !known {
			at, groups = len(groups), append(groups, nil)
			place[root(n)] = at
		}
		groups[at] = append(groups[at], g)
	}
	return groups
}
