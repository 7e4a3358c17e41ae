package prepare

import (
	"cmp"
	"slices"

	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place"
	"github.com/gfaas/gfaas/pkg/profile"
)

// Models sets the model of GPUs for which the inventory gives none: to that of the GPU in the running plan,
// to model, or to the only model of the profile, in this order. If rows of several models would apply to a
// GPU, it returns these models and leaves the GPU without a model.
func Models(in *place.Input, running []plan.GPU, model string) (ambiguous []string) {
	known := map[plan.GPUName]string{}
	for _, g := range running {
		known[g.Name()] = g.Model
	}
	for i, d := range in.Devices {
		in.Devices[i].Model = cmp.Or(d.Model, known[d.Name()])
	}
	demanded := map[string]bool{}
	for _, d := range in.Demand {
		demanded[d.Function] = true
	}
	rows := slices.DeleteFunc(slices.Clone(in.Profile), func(r profile.Row) bool { return !demanded[r.Function] })
	models := profile.Models(rows)
	in.Model = model
	if in.Model == "" && len(models) == 1 {
		in.Model = models[0]
	}
	if in.Model == "" && in.Devices == nil && len(running) > 0 && !slices.ContainsFunc(running, func(g plan.GPU) bool { return g.Model != running[0].Model }) {
		in.Model = running[0].Model // additional GPUs are like the running ones
	}
	unnamed := in.Devices == nil || slices.ContainsFunc(in.Devices, func(d plan.Device) bool { return d.Model == "" })
	if in.Model == "" && unnamed && profile.Differ(rows) {
		return models
	}
	for i, d := range in.Devices {
		in.Devices[i].Model = cmp.Or(d.Model, in.Model)
	}
	return nil
}

// MemoryLimit limits the free memory of each device to mib. It reports whether any device has at least that
// much memory.
func MemoryLimit(devices []plan.Device, mib float64) (limits bool) {
	for i := range devices {
		d := &devices[i]
		limits = limits || d.MemMiB >= mib
		if d.MemMiB-d.UsedMemMiB > mib {
			d.MemMiB, d.UsedMemMiB = mib, 0
		}
	}
	return limits
}
