package verify

import (
	"cmp"
	"slices"

	"github.com/gfaas/gfaas/pkg/plan"
)

// Shares are compared much more closely than rates: planners compute with
// exact numbers, and what is left is the last digit of a decimal fraction.
const shareEps = 1e-8

// shares checks what each instance may have at all.
func (c *checker) shares(g plan.GPU) {
	for _, in := range g.Instances {
		v := onGPU(RuleInside, g, in)
		if !(in.SMPct > 0 && in.SMPct <= 100) {
			c.add(v, "%s has sm_pct %v, expected more than 0 and at most 100", in.ID, in.SMPct)
		}
		if !(in.QuotaRequest > 0 && in.QuotaRequest <= 1) {
			c.add(v, "%s has quota_request %v, expected more than 0 and at most 1", in.ID, in.QuotaRequest)
		}
		if !(in.QuotaLimit >= in.QuotaRequest && in.QuotaLimit <= 1) {
			c.add(v, "%s has quota_limit %v, expected at least its quota_request %v and at most 1", in.ID, in.QuotaLimit, in.QuotaRequest)
		}
		if !finite(in.RPS) || in.RPS < 0 || !finite(in.MemMiB) || in.MemMiB < 0 {
			c.add(v, "%s has rps %v and mem_mib %v, expected 0 or more", in.ID, in.RPS, in.MemMiB)
		}
	}
}

// rectangles checks the model "rect": each instance's rectangle lies inside
// the GPU and no two have a point in common.
func (c *checker) rectangles(g plan.GPU) {
	if len(g.Schedule) > 0 {
		c.add(onGPU(RuleSchedule, g), "the GPU has a schedule although the plan's model is rect")
	}
	var placed []plan.Instance
	for _, in := range g.Instances {
		if in.X == nil || in.Y == nil {
			c.add(onGPU(RuleInside, g, in), "%s has no x and y", in.ID)
			continue
		}
		if !(*in.X >= -shareEps && *in.X+in.QuotaRequest <= 1+shareEps) {
			c.add(onGPU(RuleInside, g, in), "%s takes the window from %v to %v, expected within 0 to 1", in.ID, *in.X, *in.X+in.QuotaRequest)
		}
		if !(*in.Y >= -100*shareEps && *in.Y+in.SMPct <= 100+100*shareEps) {
			c.add(onGPU(RuleInside, g, in), "%s takes SMs from %v%% to %v%%, expected within 0 to 100", in.ID, *in.Y, *in.Y+in.SMPct)
		}
		placed = append(placed, in)
	}
	slices.SortStableFunc(placed, func(a, b plan.Instance) int { return cmp.Compare(*a.X, *b.X) })
	for i, a := range placed {
		for _, b := range placed[i+1:] {
			if *b.X >= *a.X+a.QuotaRequest-shareEps {
				break
			}
			if *b.Y < *a.Y+a.SMPct-100*shareEps && *a.Y < *b.Y+b.SMPct-100*shareEps {
				c.add(onGPU(RuleOverlap, g, a, b), "%s and %s overlap", a.ID, b.ID)
			}
		}
	}
}

// schedule checks the model "tokens": the timetable fits a window, gives each
// instance its request, and never lets more than all SMs run.
func (c *checker) schedule(g plan.GPU) {
	byID := map[string]plan.Instance{}
	for _, in := range g.Instances {
		byID[in.ID] = in
		if in.X != nil || in.Y != nil {
			c.add(onGPU(RuleSchedule, g, in), "%s has x or y although the plan's model is tokens", in.ID)
		}
	}
	total, given := 0.0, map[string]float64{}
	for i, entry := range g.Schedule {
		v := onGPU(RuleSchedule, g)
		v.Instances = slices.Clone(entry.Instances)
		if !(entry.Duration > 0) || !finite(entry.Duration) {
			c.add(v, "entry %d has duration %v, expected more than 0", i, entry.Duration)
		}
		total += entry.Duration
		sm, seen := 0.0, map[string]bool{}
		for _, id := range entry.Instances {
			in, known := byID[id]
			if !known || seen[id] {
				c.add(v, "entry %d names %s, which is not on this GPU or named before", i, id)
				continue
			}
			seen[id] = true
			sm += in.SMPct
			given[id] += entry.Duration
		}
		if !(sm <= 100+100*shareEps) {
			c.add(v, "entry %d runs %v%% of the SMs at once, expected at most 100", i, sm)
		}
	}
	if !(total <= 1+shareEps) {
		c.add(onGPU(RuleSchedule, g), "durations sum to %v, expected at most 1", total)
	}
	for _, in := range g.Instances {
		if given[in.ID] < in.QuotaRequest-shareEps {
			c.add(onGPU(RuleSchedule, g, in), "%s is given %v of the window, expected its quota_request %v", in.ID, given[in.ID], in.QuotaRequest)
		}
	}
}
