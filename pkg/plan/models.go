package plan

import (
	"cmp"
	"slices"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
)

// Granule is what gfaas-modeld takes memory in: each copy of a model is a whole number
// of them (the granularity of CUDA's virtual memory management on all GPUs so far).
const Granule = 2 * gpu.MiB

// Model is a set of weights kept once on a GPU for all instances of a tenant's
// functions: gfaas-modeld has a copy for each tenant.
type Model struct {
	Name   string  `json:"name"`
	Tenant string  `json:"tenant,omitempty"` // empty: of the default tenant, or of every tenant without an entry of its own
	MemMiB float64 `json:"mem_mib"`
}

// Bytes returns the memory that one copy of the model takes: whole granules.
func (m Model) Bytes() gpu.Bytes {
	return (gpu.FromMiB(m.MemMiB) + Granule - 1) / Granule * Granule
}

// Is reports whether both are the same tenant's model of the same name.
func (m Model) Is(o Model) bool { return m.Name == o.Name && m.Tenant == o.Tenant }

// WeightsOf returns the model, without its size, that a function's instances share: the
// one that the function names, else one of the function's own name.
func WeightsOf(fn function.Function) Model {
	m := Model{Name: fn.Name}
	if fn.Model != nil {
		m.Name = fn.Model.Name
	}
	if fn.Tenant != function.DefaultTenant {
		m.Tenant = fn.Tenant
	}
	return m
}

// Shared returns the GPU's model that instances share whose weights are so called: the
// tenant's own, else one without a tenant.
func (g GPU) Shared(weights Model) (Model, bool) {
	for _, tenant := range []string{weights.Tenant, ""} {
		if i := slices.IndexFunc(g.Models, Model{Name: weights.Name, Tenant: tenant}.Is); i >= 0 {
			return g.Models[i], true
		}
	}
	return Model{}, false
}

// Copies returns the copies of models that the GPU's instances hold, one for each tenant:
// of says what a function's weights are called. A model that no instance holds is one.
func (g GPU) Copies(of func(function string) Model) []Model {
	var out []Model
	held := map[Model]bool{}
	for _, in := range g.Instances {
		weights := of(in.Function)
		m, shared := g.Shared(weights)
		if !shared {
			continue
		}
		held[m] = true
		m.Tenant = weights.Tenant
		if !slices.ContainsFunc(out, m.Is) {
			out = append(out, m)
		}
	}
	for _, m := range g.Models {
		if !held[m] {
			out = append(out, m)
		}
	}
	slices.SortStableFunc(out, func(a, b Model) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Tenant, b.Tenant)) })
	return out
}
