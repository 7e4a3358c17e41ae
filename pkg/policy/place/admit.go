package place

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/profile"
)

// admissible are the configurations of a function that meet its SLO and fit
// some GPU. When there is none, reason says what stands in the way.
func (in Input) admissible(d plan.Demand, all []profile.Row) (rows []profile.Row, reason string) {
	if len(all) == 0 {
		return nil, "the profile has no row of this function"
	}
	rows = filter(all, func(r profile.Row) bool { return r.ThroughputRPS > 0 })
	if len(rows) == 0 {
		return nil, "no configuration of the profile sustains any request"
	}
	if d.SLOMS > 0 {
		fast := filter(rows, func(r profile.Row) bool { return r.P95MS <= d.SLOMS })
		if len(fast) == 0 {
			best := slices.MinFunc(rows, byLatency)
			return nil, fmt.Sprintf("no configuration has p95_ms <= %s: the best is %s at %s",
				num(d.SLOMS), num(best.P95MS), describe(best))
		}
		rows = fast
	}
	return in.fitting(rows)
}

// fitting keeps the rows for which there is a GPU of their model with memory
// enough.
func (in Input) fitting(rows []profile.Row) ([]profile.Row, string) {
	devices := in.Devices
	if devices == nil {
		devices = []plan.Device{{MemMiB: in.MemMiB}}
	}
	if len(devices) == 0 {
		return nil, "the inventory has no GPU"
	}
	somewhere := func(ok func(profile.Row, plan.Device) bool) func(profile.Row) bool {
		return func(r profile.Row) bool {
			return slices.ContainsFunc(devices, func(d plan.Device) bool { return ok(r, d) })
		}
	}
	matching := filter(rows, somewhere(matches))
	if len(matching) == 0 {
		return nil, fmt.Sprintf("no GPU is of a model it was measured on: it was on %s, the inventory has %s",
			names(rows, func(r profile.Row) string { return r.GPU }), names(devices, func(d plan.Device) string { return d.Model }))
	}
	fitting := filter(matching, somewhere(func(r profile.Row, d plan.Device) bool {
		return matches(r, d) && gpu.FromMiB(r.GPUMemMiB) <= room(d)
	}))
	if len(fitting) == 0 {
		least := slices.MinFunc(matching, byMemory)
		most := slices.MaxFunc(devices, func(a, b plan.Device) int { return cmp.Compare(room(a), room(b)) })
		return nil, fmt.Sprintf("no GPU is large enough: it needs at least %s MiB, the most a GPU has free is %s MiB",
			num(least.GPUMemMiB), num(room(most).MiB()))
	}
	return fitting, ""
}

func byLatency(a, b profile.Row) int {
	if a.P95MS != b.P95MS {
		return cmp.Compare(a.P95MS, b.P95MS)
	}
	return cmp.Compare(area(a), area(b))
}

func byMemory(a, b profile.Row) int { return cmp.Compare(a.GPUMemMiB, b.GPUMemMiB) }

// describe names a configuration.
func describe(r profile.Row) string {
	text := fmt.Sprintf("sm_pct %s, quota %s, batch %d", num(r.SMPct), num(r.Quota), r.Batch)
	if r.GPU != "" {
		text += " on " + r.GPU
	}
	return text
}

// num prints a number as profiles do.
func num(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// names lists the different names of items, sorted.
func names[T any](items []T, name func(T) string) string {
	var out []string
	for _, item := range items {
		if n := name(item); n != "" {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return strings.Join(slices.Compact(out), ", ")
}

func filter[T any](items []T, keep func(T) bool) []T {
	var out []T
	for _, item := range items {
		if keep(item) {
			out = append(out, item)
		}
	}
	return out
}
