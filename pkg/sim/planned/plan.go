package planned

import (
	"fmt"

	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/arrivals"
	"github.com/gfaas/gfaas/pkg/profile"
)

// FromPlan are the instances of a plan by function, as a profile knows them: what
// a batch takes is what package arrivals says of its row. An instance that spans
// GPUs works in its turns of the first. An instance whose configuration is no row
// of the profile is an error; of several models of GPU the slowest counts.
func FromPlan(p plan.Plan, rows []profile.Row) (map[string][]Instance, error) {
	type config struct {
		function string
		profile.Config
	}
	work := map[config]float64{}
	for _, r := range rows {
		at := config{r.Function, r.Config}
		work[at] = max(work[at], arrivals.Service(r)*r.Quota)
	}
	out, seen := map[string][]Instance{}, map[string]bool{}
	for _, g := range p.GPUs {
		turns := g.Turns()
		for _, in := range g.Instances {
			if seen[in.ID] {
				continue
			}
			seen[in.ID] = true
			took := work[config{in.Function, profile.Config{SMPct: in.SMPct, Quota: in.QuotaRequest, Batch: in.Batch}}]
			if took == 0 {
				return nil, fmt.Errorf("%s runs at sm_pct %v, quota %v, batch %d, of which the profile has no row that sustains anything",
					in.ID, in.SMPct, in.QuotaRequest, in.Batch)
			}
			took += p.HandOverMS(in.Function)
			one := Instance{Work: took, Batch: in.Batch, RPS: in.RPS}
			if in.QuotaRequest < 1 {
				one.Turns = turns[in.ID]
			}
			out[in.Function] = append(out[in.Function], one)
		}
	}
	return out, nil
}
