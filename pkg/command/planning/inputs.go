package planning

import (
	"cmp"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/profile"
)

// TimeLimit is how long a plan is improved at most, unless a flag says otherwise: the
// search ends before, after a fixed amount of work, on any but slow machines.
const TimeLimit = 2 * time.Second

// Objectives gives each function that has none by its demand the objective of its
// own slo, else that of --slo. Functions that the demand does not name are left out.
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

// Weights gives rows whose weights were not measured the size of their function's
// model, as far as it is known.
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

// Limits raises the memory of rows to what gfaas up gives an instance of their function,
// its gpu_mem, where that is more than was measured. It returns the functions for which
// it is. With shared weights, those of a model with a file are on top of gpu_mem, since
// the model daemon holds them. Weights comes before.
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
