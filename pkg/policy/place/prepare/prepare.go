// Package prepare completes the input of the planner from function files: the objectives
// of functions, the memory of their weights and their limits. All commands and use cases
// that plan use it, so the same files give the same plan.
package prepare

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/profile"
)

// TimeLimit is the default limit on the time to improve a plan. Except on slow machines,
// the search ends earlier, after a fixed amount of work.
const TimeLimit = 2 * time.Second

// Objectives sets the objective of each demand that has none: to the function's own or, if that has none
// either, to slo.
func Objectives(demand []plan.Demand, functions []function.Function, slo time.Duration) {
	known := byName(functions)
	for at, d := range demand {
		if slo := cmp.Or(known[d.Function].SLO, slo); d.SLOMS == 0 {
			demand[at].SLOMS = float64(slo) / float64(time.Millisecond)
		}
	}
}

// Scaled returns the demand with its rates and objectives multiplied by the factors, in decimal arithmetic:
// 100 ms × 0.57 is exactly 57 ms.
func Scaled(demand []plan.Demand, rps, slo float64) []plan.Demand {
	demand = slices.Clone(demand)
	for i := range demand {
		d := &demand[i]
		d.RPS, d.SLOMS = times(d.RPS, rps), times(d.SLOMS, slo)
	}
	return demand
}

func times(v, factor float64) float64 {
	if product, err := strconv.ParseFloat(number.Significant(v*factor, 15), 64); err == nil {
		return product
	}
	return v * factor
}

// Weights sets the memory of weights, in rows without a measured value, to the size of the function's model
// if that is known.
func Weights(rows []profile.Row, functions []function.Function) {
	known := byName(functions)
	for i := range rows {
		r := &rows[i]
		if model := known[r.Function].Model; model != nil && r.ModelMemMiB == 0 {
			r.ModelMemMiB = min(model.Size.MiB(), r.GPUMemMiB)
		}
	}
}

// Limits raises the memory of rows to the function's gpu_mem, which gfaas up gives to instances. It returns
// the functions whose rows it raised. If share is true, it adds the weights of a model with a file to
// gpu_mem, because the model daemon holds them; in that case, call Weights first.
func Limits(rows []profile.Row, functions []function.Function, share bool) (raised []string) {
	known := byName(functions)
	for i := range rows {
		r := &rows[i]
		fn := known[r.Function]
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

func byName(functions []function.Function) map[string]function.Function {
	all := map[string]function.Function{}
	for _, fn := range functions {
		all[fn.Name] = fn
	}
	return all
}
