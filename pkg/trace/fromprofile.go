package trace

import (
	"cmp"
	"io"
	"math"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/profile"
)

// isProfile tells profiles from function costs by their columns.
func isProfile(header []string) bool {
	return slices.Contains(header, "sm_pct") && slices.Contains(header, "quota")
}

// fromProfile takes the costs of functions from a profile: for each from the
// row that is most like having the GPU to itself, as invocations have it in a
// simulation. That is, of those with warm_ms, the one with the most SMs, then
// the largest quota, then the smallest batch.
func fromProfile(file io.Reader, name string) ([]Function, error) {
	rows, err := profile.Read(file, name)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, fault(name, 1, "", "the file has no functions, expected a line for each")
	}
	var functions []Function
	of := map[string][]profile.Row{}
	for _, r := range rows {
		if known := of[r.Function]; known == nil {
			functions = append(functions, Function{Name: r.Function})
		} else if known[0].GPU != r.GPU {
			return nil, fault(name, r.Line, "gpu", "%s of function %s, which line %d has on %s: expected one model of GPU",
				csvfile.Quote(r.GPU), csvfile.Quote(r.Function), known[0].Line, csvfile.Quote(known[0].GPU))
		}
		of[r.Function] = append(of[r.Function], r)
	}
	for i, f := range functions {
		measured := slices.DeleteFunc(slices.Clone(of[f.Name]), func(r profile.Row) bool { return r.WarmMS <= 0 })
		if len(measured) == 0 {
			return nil, fault(name, of[f.Name][0].Line, "warm_ms", "no configuration of function %s has it, expected one that does", csvfile.Quote(f.Name))
		}
		functions[i] = costs(slices.MaxFunc(measured, alone))
	}
	return functions, nil
}

// alone orders rows by how much of the GPU they have.
func alone(a, b profile.Row) int {
	return cmp.Or(cmp.Compare(a.SMPct, b.SMPct), cmp.Compare(a.Quota, b.Quota), cmp.Compare(b.Batch, a.Batch))
}

func costs(r profile.Row) Function {
	ms := func(v float64) time.Duration { return time.Duration(math.Round(v * 1e6)) }
	f := Function{
		Name: r.Function, Warm: ms(r.WarmMS), Load: ms(r.LoadMS), Cold: ms(r.ColdMS),
		MemMiB: r.GPUMemMiB, Weight: 1, Model: r.Function, Line: r.Line,
	}
	if f.Cold == 0 {
		f.Cold = f.Warm + f.Load
	}
	return f
}
