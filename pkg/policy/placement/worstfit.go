package placement

import (
	"cmp"
	"slices"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/reason"
)

// worstFit places an instance on the GPUs with the most free memory; among equal ones, on those with the
// lowest numbers. This is Dilu's rule for large models (section 3.3, principle 2). Memory is its only
// limit.
type worstFit struct{ gpus []GPU }

func newWorstFit(gpus []GPU, _ Options) Placer { return worstFit{gpus} }

func (w worstFit) Place(r Request, free []gpu.Bytes, except func(int) bool) ([]int, reason.Reason) {
	able := mostFree(w.gpus, r, free, except)
	if len(able) < r.GPUs {
		return nil, reason.New(NoRoom, reason.Number("gpus", r.GPUs), reason.Number("mem_mib", r.Mem.MiB()))
	}
	chosen := able[:r.GPUs]
	slices.Sort(chosen)
	return chosen, reason.New(mostFreeMemory)
}

func (worstFit) Put(Request, []int) {}
func (worstFit) Remove(string)      {}

// mostFree returns the GPUs with enough free memory for an instance that suit its configuration, those
// with the most free memory first.
func mostFree(gpus []GPU, r Request, free []gpu.Bytes, except func(int) bool) (able []int) {
	for g := range gpus {
		if free[g] >= r.Mem && gpus[g].suits(&r) && !except(g) {
			able = append(able, g)
		}
	}
	slices.SortStableFunc(able, func(a, b int) int { return cmp.Compare(free[b], free[a]) })
	return able
}
