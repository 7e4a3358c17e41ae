// Package prepare completes the input of the planner from function files: the objectives
// of functions, the memory of their weights and their limits. All commands and use cases
// that plan use it, so the same files give the same plan.
package prepare

import (
	"cmp"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/profile"
)

// TimeLimit is the default limit on the time to improve a plan. Except on slow machines,
// the search ends earlier, after a fixed amount of work.
const TimeLimit = 2 * time.Second

// Objectives sets the objective of each demand that has none: to the function's own, else
// to slo.
func Objectives(demand []plan.Demand, functions []function.Function, slo time.Duration) {
	own := map[string]time.Duration{}
	for _, fn := range functions {
		own[fn.Name] = fn.SLO
	}
	for at, d := range demand {
		if slo := cmp.Or(own[d.Function], slo); d.SLOMS == 0 {
			demand[at].SLOMS = float64(slo) / float64(time.Millisecond)
		}
	}
}

// Weights sets the memory of the model in rows where it was not measured, to the size of
// the function's model, if that is known.
func Weights(rows []profile.Row, functions []function.Function) {
	sizes := map[string]float64{}
	for _, fn := range functions {
		if fn.Model != nil {
			sizes[fn.Name] = fn.Model.Size.MiB()
		}
	}
	for i := range rows {
		if r := &rows[i]; r.ModelMemMiB == 0 {
			r.ModelMemMiB = min(sizes[r.Function], r.GPUMemMiB)
		}
	}
}

// Limits raises the memory of rows to what gfaas up gives an instance, the function's
// gpu_mem, and returns the functions whose rows it raised. If share is true, the weights
// of a model with a file come on top of gpu_mem, since the model daemon holds them; call
// Weights before in that case.
func Limits(rows []profile.Row, functions []function.Function, share bool) (raised []string) {
	byName := map[string]function.Function{}
	for _, fn := range functions {
		byName[fn.Name] = fn
	}
	for i := range rows {
		r := &rows[i]
		fn := byName[r.Function]
		limit := fn.GPUMem.MiB()
		if share && limit > 0 && fn.Model != nil && fn.Model.File != "" {
			limit += r.ModelMemMiB
		}
		if limit <= r.GPUMemMiB {
			continue
		}
		r.GPUMemMiB = limit
		if !slices.Contains(raised, r.Function) {
			raised = append(raised, r.Function)
		}
	}
	return raised
}
