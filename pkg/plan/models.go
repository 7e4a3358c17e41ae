package plan

import (
	"cmp"
	"slices"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/lists"
)

// Granule is the unit in which gfaas-modeld allocates memory: each copy of a model is a multiple of it (the
// granularity of CUDA's virtual memory management on all GPUs so far).
const Granule = 2 * gpu.MiB

// Model is a set of weights that all instances of a tenant's functions on a GPU share; gfaas-modeld has one
// copy per tenant.
type Model struct {
	Name   string  `json:"name"`
	Tenant string  `json:"tenant,omitempty"` // empty: of the default tenant, or of every tenant without an entry of its own
	MemMiB float64 `json:"mem_mib"`
}

// Bytes returns the memory of one copy of the model, in whole granules.
func (m Model) Bytes() gpu.Bytes {
	return (gpu.FromMiB(m.MemMiB) + Granule - 1) / Granule * Granule
}

// Is reports whether both are the model with the same name and tenant.
func (m Model) Is(o Model) bool { return m.Name == o.Name && m.Tenant == o.Tenant }

// WeightsOf returns the model, without its size, that a function's instances share: the function's Model, or
// else one with the function's name.
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

// Shared returns the GPU's model with the name of these weights: the tenant's own, or else one without a
// tenant.
func (g GPU) Shared(weights Model) (Model, bool) {
	for _, tenant := range []string{weights.Tenant, ""} {
		if i := slices.IndexFunc(g.Models, Model{Name: weights.Name, Tenant: tenant}.Is); i >= 0 {
			return g.Models[i], true
		}
	}
	return Model{}, false
}

// Copies returns the copies of models that the GPU's instances hold, one for each tenant. `of` returns a
// function's weights. A model that no instance holds counts as one copy.
func (g GPU) Copies(of func(function string) Model) []Model {
	var out []Model
	inUse := map[Model]bool{}
	for _, in := range g.Instances {
		weights := of(in.Function)
		m, shared := g.Shared(weights)
		if !shared {
			continue
		}
		inUse[m] = true
		m.Tenant = weights.Tenant
		if !slices.ContainsFunc(out, m.Is) {
			out = append(out, m)
		}
	}
	out = append(out, lists.Filter(g.Models, func(m Model) bool { return !inUse[m] })...)
	slices.SortStableFunc(out, func(a, b Model) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Tenant, b.Tenant)) })
	return out
}
