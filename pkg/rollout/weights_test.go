package rollout

import (
	"testing"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
)

// TestLimitsWithWeights checks that copies of the model daemon count once per tenant, in whole granules. Weights that
// instances load themselves are part of their limits.
func TestLimitsWithWeights(t *testing.T) {
	for _, c := range []struct {
		name   string
		file   string
		models []plan.Model
		limit  gpu.Bytes // of an instance
		need   float64   // MiB of the GPU
	}{
		{"two tenants", "m.safetensors", []plan.Model{{Name: "m", Tenant: "a", MemMiB: 100}, {Name: "m", Tenant: "b", MemMiB: 100}}, 50 * gpu.MiB, 300},
		{"two of one name", "m.safetensors", []plan.Model{{Name: "m", MemMiB: 100}}, 50 * gpu.MiB, 300},
		{"granules", "m.safetensors", []plan.Model{{Name: "m", MemMiB: 99}}, 50 * gpu.MiB, 300},
		{"loaded by each", "", []plan.Model{{Name: "m", Tenant: "a", MemMiB: 100}, {Name: "m", Tenant: "b", MemMiB: 100}}, 150 * gpu.MiB, 300},
	} {
		var functions []function.Function
		g := plan.GPU{Node: "n", Models: c.models}
		for _, tenant := range []string{"a", "b"} {
			functions = append(functions, function.Function{Name: tenant, Tenant: tenant, GPUs: 1, Model: &function.Model{Name: "m", File: c.file}})
			g.Instances = append(g.Instances, plan.Instance{ID: tenant + "-0", Function: tenant, SMPct: 10, QuotaRequest: 1, QuotaLimit: 1, Batch: 1, MemMiB: 50})
		}
		for less := range 2 {
			g.MemMiB = c.need - float64(less)
			p := plan.Plan{GPUs: []plan.GPU{g}}
			list, err := Assign(p, "n", functions, simulated, nil)
			if err != nil || list[0].Slice.Mem != c.limit {
				t.Fatalf("%s: %+v, %v, want a limit of %v", c.name, list, err, c.limit)
			}
			if err := CheckLimits(p, list); (err != nil) != (less > 0) {
				t.Errorf("%s: %v MiB: %v", c.name, g.MemMiB, err)
			}
		}
	}
}
