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

// checkGPU checks that the GPU is listed only once and is in the inventory.
func (c *checker) checkGPU(g plan.GPU) {
	times := c.listed[g.Name()]
	if times > 1 {
		c.add(onGPU(RuleGPU, g), "the GPU %s is listed %d times", g.Name(), times)
	}
	if c.in.Inventory == nil {
		return
	}
	device, known := c.devices[g.Name()]
	if !known {
		c.add(onGPU(RuleGPU, g), "the inventory has no GPU %s", g.Name())
		return
	}
	if g.Model != "" && device.Model != "" && g.Model != device.Model {
		c.add(onGPU(RuleGPU, g), "the model of the GPU is %s in the plan and %s in the inventory", csvfile.Quote(g.Model), csvfile.Quote(device.Model))
	}
	if exceeds(g.MemMiB, device.MemMiB) && device.MemMiB > 0 {
		c.add(onGPU(RuleMemory, g), "the memory of the GPU is %v MiB in the plan and %v MiB in the inventory", g.MemMiB, device.MemMiB)
	}
}

// shareEps is the tolerance for shares. It is much smaller than that for rates, because planners
// compute with exact numbers and only the last digit of a decimal fraction may differ.
const shareEps = 1e-8

// checkShares checks the range of the numbers of each instance.
func (c *checker) checkShares(g plan.GPU) {
	for _, in := range g.Instances {
		v := onGPU(RuleInside, g, in)
		if !(in.SMPct > 0 && in.SMPct <= 100) {
			c.add(v, "%s has sm_pct %v, expected more than 0 and at most 100", in.ID, in.SMPct)
		}
		if in.SMLimitPct != 0 && !(in.SMLimitPct >= in.SMPct && in.SMLimitPct <= 100) {
			c.add(v, "%s has sm_limit_pct %v, expected at least its sm_pct %v and at most 100", in.ID, in.SMLimitPct, in.SMPct)
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

// checkRectangles checks the model "rect": each instance's rectangle must lie inside the GPU, and no two
// may overlap.
func (c *checker) checkRectangles(g plan.GPU) {
	if len(g.Schedule) > 0 {
		c.add(onGPU(RuleSchedule, g), "the GPU has a schedule, although the model of the plan is rect")
	}
	var placed []plan.Instance
	for _, in := range g.Instances {
		if in.X == nil || in.Y == nil {
			c.add(onGPU(RuleInside, g, in), "%s has no x and y", in.ID)
			continue
		}
		if !(*in.X >= -shareEps && *in.X+in.QuotaRequest <= 1+shareEps) {
			c.add(onGPU(RuleInside, g, in), "%s uses the window from %v to %v, expected a part of 0 to 1", in.ID, *in.X, *in.X+in.QuotaRequest)
		}
		if !(*in.Y >= -100*shareEps && *in.Y+in.SMPct <= 100+100*shareEps) {
			c.add(onGPU(RuleInside, g, in), "%s uses SMs from %v%% to %v%%, expected a part of 0 to 100", in.ID, *in.Y, *in.Y+in.SMPct)
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

// checkSchedule checks the model "tokens": the timetable must fit a window, give each instance its
// request, and never run more than all SMs.
func (c *checker) checkSchedule(g plan.GPU) {
	byID := map[string]plan.Instance{}
	for _, in := range g.Instances {
		byID[in.ID] = in
		if in.X != nil || in.Y != nil {
			c.add(onGPU(RuleSchedule, g, in), "%s has x or y, although the model of the plan is tokens", in.ID)
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
				c.add(v, "entry %d lists %s, which is not on this GPU or already listed", i, id)
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
			c.add(onGPU(RuleSchedule, g, in), "%s has %v of the window in the schedule, expected its quota_request %v", in.ID, given[in.ID], in.QuotaRequest)
		}
	}
}

// checkRequests checks the model "none": the requests of the instances, each SM share times quota, must
// not exceed the GPU.
func (c *checker) checkRequests(g plan.GPU) {
	if len(g.Schedule) > 0 {
		c.add(onGPU(RuleSchedule, g), "the GPU has a schedule, although the model of the plan is none")
	}
	sum := 0.0
	for _, in := range g.Instances {
		sum += in.SMPct / 100 * in.QuotaRequest
	}
	if sum > 1+shareEps {
		c.add(onGPU(RuleInside, g), "the instances on GPU %s request %.4g%% of its time and SMs, expected at most 100%%", g.Name(), 100*sum)
	}
}

// room returns the memory of a GPU for instances and models, in MiB. It is not limited if neither the
// plan nor the inventory limits it.
func (f *facts) room(g plan.GPU) (mib float64, limited bool) {
	device, known := f.devices[g.Name()]
	switch {
	case known && device.MemMiB > 0 && g.MemMiB > 0:
		return min(g.MemMiB, device.MemMiB-device.UsedMemMiB), true
	case known && device.MemMiB > 0:
		return device.MemMiB - device.UsedMemMiB, true
	}
	return g.MemMiB, g.MemMiB > 0
}

// memoryLimit returns the memory in MiB that an instance may use: the memory in the plan or, if larger,
// the gpu_mem of its function without weights that the plan keeps for it.
func (f *facts) memoryLimit(g plan.GPU, in plan.Instance) float64 {
	fn := f.functions[in.Function]
	stated := fn.GPUMem.MiB()
	if m, shared := g.Shared(plan.WeightsOf(fn)); shared && fn.Model != nil && fn.Model.File == "" {
		stated -= m.MemMiB
	}
	return max(in.MemMiB, stated)
}

// checkMemory checks that the instances on a GPU, and the models kept for them, fit its memory. Each
// model counts once per tenant with instances that share it, rounded up to granules of the model daemon.
func (c *checker) checkMemory(g plan.GPU) {
	sum, models := 0.0, map[plan.Model]bool{}
	for _, in := range g.Instances {
		sum += wholeBytes(c.memoryLimit(g, in))
	}
	for _, m := range g.Models {
		named := plan.Model{Name: m.Name, Tenant: m.Tenant}
		if models[named] || !finite(m.MemMiB) || m.MemMiB < 0 || m.Name == "" {
			c.add(onGPU(RuleMemory, g), "the model %q with %v MiB is listed twice, or has no name or no size", m.Name, m.MemMiB)
		}
		models[named] = true
		sum += c.copies(g, m) * granules(m.MemMiB)
	}
	if room, limited := c.room(g); limited && !(sum <= room+eps*max(1, room)) {
		c.add(onGPU(RuleMemory, g, g.Instances...), "instances and models need %v MiB, and the GPU has %v MiB", sum, room)
	}
}

// granules returns the memory of a model rounded up to the model daemon's units of 2 MiB.
func granules(mib float64) float64 { return 2 * math.Ceil(math.Floor(mib*(1<<20)+1e-3)/(2<<20)) }

// copies returns the number of copies of a model on a GPU: one for each tenant with an instance that
// shares it, and at least one. A model without a tenant is shared by every tenant that has no model of
// its own with that name on the GPU.
func (f *facts) copies(g plan.GPU, m plan.Model) float64 {
	tenants := map[string]bool{}
	for _, in := range g.Instances {
		if shared, is := f.sharedModel(in.Function, g); is && shared == m {
			tenants[f.tenant(in.Function)] = true
		}
	}
	return float64(max(1, len(tenants)))
}

// sharedModel returns the model on the GPU that holds a function's weights, and whether there is one.
func (f *facts) sharedModel(function string, g plan.GPU) (found plan.Model, is bool) {
	for _, m := range g.Models {
		own := m.Tenant == f.tenant(function)
		if m.Name == f.model(function) && (own || m.Tenant == "" && !is) {
			found, is = m, true
		}
	}
	return found, is
}

// minMemory returns the least memory in MiB of an instance of a configuration on the GPU: the measured
// memory, without the weights if the GPU keeps them.
func (f *facts) minMemory(row profile.Row, g plan.GPU) float64 {
	if m, shared := f.sharedModel(row.Function, g); shared && !exceeds(row.ModelMemMiB, m.MemMiB) {
		return row.GPUMemMiB - row.ModelMemMiB
	}
	return row.GPUMemMiB
}

// wholeBytes drops fractions of a byte, which instances are not given. Otherwise, the fractions of a
// hundred instances could exceed the GPU.
func wholeBytes(mib float64) float64 {
	const bytes = 1 << 20
	return math.Floor(mib*bytes+1e-3) / bytes
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// config is the key of rows of a profile. Shares are rounded to billionths, because programs may have
// written them to a plan as 0.30000000000000004.
type config struct {
	function  string
	sm, quota float64
	batch     int
}

func configOf(function string, sm, quota float64, batch int) config {
	return config{function, math.Round(sm * 1e9), math.Round(quota * 1e9), batch}
}

// checkConfiguration checks an instance against the profile and its objective. It uses the row for its
// GPU's model or, if there is none, a row without a model. If the GPU's model is unknown and the profile
// has the configuration for several models, the instance must match at least one row.
//
// A batch above 1 must reach the instance, if the function is known.
func (c *checker) checkConfiguration(g plan.GPU, in plan.Instance) {
	if !c.reaches(in.Function, in.Batch) {
		c.add(onGPU(RuleProfile, g, in), "%s runs with batch %d, but function %s has neither batcher nor inflight above 1, so its instances get one request at a time",
			in.ID, in.Batch, in.Function)
	}
	if c.in.Profile == nil {
		return
	}
	model := cmp.Or(c.devices[g.Name()].Model, g.Model)
	rows := c.rows[configOf(in.Function, in.SMPct, in.QuotaRequest, in.Batch)]
	measured := slices.ContainsFunc(rows, func(r profile.Row) bool { return r.GPU == model })
	var faults []Violation
	known := false
	for _, row := range rows {
		if model != "" && row.GPU != model && (measured || row.GPU != "") {
			continue
		}
		mismatches := c.mismatches(row, g, in)
		if len(mismatches) == 0 {
			return
		}
		if !known {
			faults = mismatches
		}
		known = true
	}
	if !known {
		c.add(onGPU(RuleProfile, g, in), "%s runs at sm_pct %v, quota %v, batch %d, for which the profile has no row on the model of its GPU",
			in.ID, in.SMPct, in.QuotaRequest, in.Batch)
	}
	c.found = append(c.found, faults...)
}

// reaches reports whether a batch reaches the instances of a function, or the function is unknown.
func (f *facts) reaches(function string, batch int) bool {
	fn, known := f.functions[function]
	return !known || batch <= 1 || fn.Batches()
}

// maxRPS returns the most requests per second that a plan may count on for an instance of a
// configuration, for the plan's arrivals and minus its headroom.
func (f *facts) maxRPS(row profile.Row) float64 {
	limit := row.ThroughputRPS
	if slo := f.slo(row.Function); slo > 0 && f.plan.Arrivals == plan.ArrivalsPoisson {
		limit = arrivals.Worth(arrivals.HandedOver(row, f.plan.HandOverMS(row.Function)), slo)
	}
	return limit * (1 - f.plan.Headroom)
}

// meets reports whether a configuration meets an objective: by its p95 latency or, if requests arrive at
// random, by a goodput measured for that objective.
func (f *facts) meets(row profile.Row, slo float64) bool {
	if _, _, measured := row.Goodput(slo); measured && f.plan.Arrivals == plan.ArrivalsPoisson {
		return true
	}
	return slo == 0 || !exceeds(row.P95MS, slo)
}

// mismatches returns the differences between an instance and a row of the profile.
func (c *checker) mismatches(row profile.Row, g plan.GPU, in plan.Instance) []Violation {
	var result checker
	if limit := c.maxRPS(row); exceeds(in.RPS, limit) {
		result.add(onGPU(RuleProfile, g, in), "%s counts for %v requests/s, but its configuration sustains %v requests/s", in.ID, in.RPS, limit)
	}
	needed := c.minMemory(row, g)
	if _, limited := c.room(g); limited && exceeds(needed, in.MemMiB) {
		result.add(onGPU(RuleMemory, g, in), "%s has %v MiB, but its configuration needs %v MiB", in.ID, in.MemMiB, needed)
	}
	if slo := c.slo(in.Function); !c.meets(row, slo) {
		result.add(onGPU(RuleSLO, g, in), "%s has a p95 latency of %v ms, expected at most %v", in.ID, row.P95MS, slo)
	}
	return result.found
}
