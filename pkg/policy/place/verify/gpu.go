package verify

import (
	"cmp"
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/arrivals"
	"github.com/gfaas/gfaas/pkg/profile"
)

// place checks that the GPU is listed once and is in the inventory.
func (c *checker) place(g plan.GPU) {
	times := c.listed[name(g.Node, g.Index)]
	if times > 1 {
		c.add(onGPU(RuleGPU, g), "the GPU %s is listed %d times", name(g.Node, g.Index), times)
	}
	if c.in.Inventory == nil {
		return
	}
	device, known := c.devices[name(g.Node, g.Index)]
	if !known {
		c.add(onGPU(RuleGPU, g), "the inventory has no GPU %s", name(g.Node, g.Index))
		return
	}
	if g.Model != "" && device.Model != "" && g.Model != device.Model {
		c.add(onGPU(RuleGPU, g), "the plan is for a GPU of the model %s, the inventory has %s", csvfile.Quote(g.Model), csvfile.Quote(device.Model))
	}
	if exceeds(g.MemMiB, device.MemMiB) && device.MemMiB > 0 {
		c.add(onGPU(RuleMemory, g), "the plan gives the GPU %v MiB, the inventory %v", g.MemMiB, device.MemMiB)
	}
}

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
	var s skyline
	for i := range placed {
		b := &placed[i]
		if a := s.add(b); a != nil {
			c.add(onGPU(RuleOverlap, g, *a, *b), "%s and %s overlap", a.ID, b.ID)
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

// requests checks the model "none": the shares of the SMs that the instances request, each
// for its part of the window, are no more than the GPU has.
func (c *checker) requests(g plan.GPU) {
	if len(g.Schedule) > 0 {
		c.add(onGPU(RuleSchedule, g), "the GPU has a schedule although the plan's model is none")
	}
	sum := 0.0
	for _, in := range g.Instances {
		sum += in.SMPct / 100 * in.QuotaRequest
	}
	if sum > 1+shareEps {
		c.add(onGPU(RuleInside, g), "the instances on GPU %s request %.4g%% of its time and SMs, expected at most 100%%", name(g.Node, g.Index), 100*sum)
	}
}

// room is what a GPU has for instances and models, in MiB; not limited when
// neither the plan nor the inventory limits it.
func (c *checker) room(g plan.GPU) (mib float64, limited bool) {
	device, known := c.devices[name(g.Node, g.Index)]
	switch {
	case known && device.MemMiB > 0 && g.MemMiB > 0:
		return min(g.MemMiB, device.MemMiB-device.UsedMemMiB), true
	case known && device.MemMiB > 0:
		return device.MemMiB - device.UsedMemMiB, true
	}
	return g.MemMiB, g.MemMiB > 0
}

// limit is what an instance may use: what the plan gives it, or gpu_mem of its function
// where that is more, less weights that the plan keeps for it.
func (c *checker) limit(g plan.GPU, in plan.Instance) float64 {
	fn := c.functions[in.Function]
	stated := fn.GPUMem.MiB()
	if m, shared := g.Shared(plan.WeightsOf(fn)); shared && fn.Model != nil && fn.Model.File == "" {
		stated -= m.MemMiB
	}
	return max(in.MemMiB, stated)
}

// memory checks that what runs on a GPU, and the models kept for it, fit. Each
// model counts once for each tenant whose instances share it, however many these are,
// in whole granules of the model daemon.
func (c *checker) memory(g plan.GPU) {
	sum, models := 0.0, map[plan.Model]bool{}
	for _, in := range g.Instances {
		sum += wholeBytes(c.limit(g, in))
	}
	for _, m := range g.Models {
		named := plan.Model{Name: m.Name, Tenant: m.Tenant}
		if models[named] || !finite(m.MemMiB) || m.MemMiB < 0 || m.Name == "" {
			c.add(onGPU(RuleMemory, g), "the model %q with %v MiB is kept twice, has no name or no size", m.Name, m.MemMiB)
		}
		models[named] = true
		sum += c.copies(g, m) * granules(m.MemMiB)
	}
	if room, limited := c.room(g); limited && !(sum <= room+eps*max(1, room)) {
		c.add(onGPU(RuleMemory, g, g.Instances...), "instances and models need %v MiB, the GPU has %v", sum, room)
	}
}

// granules is a model's memory as the model daemon takes it: in units of 2 MiB.
func granules(mib float64) float64 { return 2 * math.Ceil(math.Floor(mib*(1<<20)+1e-3)/(2<<20)) }

// copies is how many copies of one of the GPU's models there are: one for each tenant
// of which an instance shares it, and at least one. A model without a tenant is shared
// by every tenant that has none of its own of that name there.
func (c *checker) copies(g plan.GPU, m plan.Model) float64 {
	tenants := map[string]bool{}
	for _, in := range g.Instances {
		if shared, is := c.shared(in.Function, g); is && shared == m {
			tenants[c.tenant(in.Function)] = true
		}
	}
	return float64(max(1, len(tenants)))
}

// shared is the model of the GPU that has a function's weights, if there is one.
func (c *checker) shared(function string, g plan.GPU) (found plan.Model, is bool) {
	for _, m := range g.Models {
		own := m.Tenant == c.tenant(function)
		if m.Name == c.model(function) && (own || m.Tenant == "" && !is) {
			found, is = m, true
		}
	}
	return found, is
}

// needs is the least an instance of a configuration may have on the GPU: all
// that was measured, or its private part where the GPU keeps its weights.
func (c *checker) needs(row profile.Row, g plan.GPU) float64 {
	if m, shared := c.shared(row.Function, g); shared && !exceeds(row.ModelMemMiB, m.MemMiB) {
		return row.GPUMemMiB - row.ModelMemMiB
	}
	return row.GPUMemMiB
}

// wholeBytes drops a part of a byte, which no instance is given: a hundred parts of a
// byte are no reason that a hundred instances do not fit.
func wholeBytes(mib float64) float64 {
	const bytes = 1 << 20
	return math.Floor(mib*bytes+1e-3) / bytes
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// config is what rows of a profile are found by. Shares are rounded to
// billionths: plans may have been through programs that print 0.30000000000000004.
type config struct {
	function  string
	sm, quota float64
	batch     int
}

func configOf(function string, sm, quota float64, batch int) config {
	return config{function, math.Round(sm * 1e9), math.Round(quota * 1e9), batch}
}

// configuration checks an instance against the profile and its objective, by the row
// for its GPU's model, or else by one that names no model. When the profile has its
// configuration for several models of GPU and the GPU's is not known, one of them must
// hold.
func (c *checker) configuration(g plan.GPU, in plan.Instance) {
	if c.in.Profile == nil {
		return
	}
	model := cmp.Or(c.devices[name(g.Node, g.Index)].Model, g.Model)
	rows := c.rows[configOf(in.Function, in.SMPct, in.QuotaRequest, in.Batch)]
	measured := slices.ContainsFunc(rows, func(r profile.Row) bool { return r.GPU == model })
	var faults []Violation
	known := false
	for _, row := range rows {
		if model != "" && row.GPU != model && (measured || row.GPU != "") {
			continue
		}
		wrong := c.against(row, g, in)
		if len(wrong) == 0 {
			return
		}
		if !known {
			faults = wrong
		}
		known = true
	}
	if !known {
		c.add(onGPU(RuleProfile, g, in), "%s runs at sm_pct %v, quota %v, batch %d, which is no row of the profile for its GPU",
			in.ID, in.SMPct, in.QuotaRequest, in.Batch)
	}
	c.found = append(c.found, faults...)
}

// worth is the most requests a second that an instance of a configuration may be
// counted on for, as they arrive by the plan and less its headroom.
func (c *checker) worth(row profile.Row) float64 {
	most := row.ThroughputRPS
	if slo := c.slo(row.Function); slo > 0 && c.plan.Arrivals == plan.ArrivalsPoisson {
		most = arrivals.Worth(arrivals.HandedOver(row, c.plan.HandOverMS(row.Function)), slo)
	}
	return most * (1 - c.plan.Headroom)
}

// meets says whether a configuration is within an objective: its p95, or what was
// measured of it for that objective when requests come at random.
func (c *checker) meets(row profile.Row, slo float64) bool {
	if _, _, measured := row.Goodput(slo); measured && c.plan.Arrivals == plan.ArrivalsPoisson {
		return true
	}
	return slo == 0 || !exceeds(row.P95MS, slo)
}

// against lists what of an instance is not as a row of the profile says.
func (c *checker) against(row profile.Row, g plan.GPU, in plan.Instance) []Violation {
	var one checker
	if most := c.worth(row); exceeds(in.RPS, most) {
		one.add(onGPU(RuleProfile, g, in), "%s is counted on for %v requests a second, its configuration sustains %v", in.ID, in.RPS, most)
	}
	need := c.needs(row, g)
	if _, limited := c.room(g); limited && exceeds(need, in.MemMiB) {
		one.add(onGPU(RuleMemory, g, in), "%s has %v MiB, its configuration needs %v", in.ID, in.MemMiB, need)
	}
	if slo := c.slo(in.Function); !c.meets(row, slo) {
		one.add(onGPU(RuleSLO, g, in), "%s has a p95 latency of %v ms, expected at most %v", in.ID, row.P95MS, slo)
	}
	return one.found
}
