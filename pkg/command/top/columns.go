// Package top shows the state of GPUs, functions and instances: as tables (Tables) and as a live terminal
// screen (Run). The command gfaas top uses it. FromTokens converts the token daemon's status, for use without
// a gateway.
package top

import (
	"cmp"
	"strconv"

	"github.com/gfaas/gfaas/pkg/lists"
	plain "github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/status"
)

// column is a column of a table whose rows have the type T.
type column[T any] struct {
	title string
	words bool // left-aligned
	text  func(*T) string
	// order compares rows by the column's value: descending for numbers, ascending for words.
	order func(a, b *T) int
}

func words[T any](title string, of func(*T) string) column[T] {
	return column[T]{title: title, words: true, text: func(r *T) string { return cmp.Or(of(r), unknown) },
		order: func(a, b *T) int { return cmp.Compare(of(a), of(b)) }}
}

// number returns a column of numbers that may be unknown.
func number[T any, N int | int64 | float64](title string, of func(*T) *N, show func(N) string) column[T] {
	return column[T]{title: title,
		text: func(r *T) string {
			if v := of(r); v != nil {
				return show(*v)
			}
			return unknown
		},
		order: func(a, b *T) int {
			x, y := of(a), of(b)
			switch {
			case x == nil && y == nil:
				return 0
			case x == nil:
				return 1
			case y == nil:
				return -1
			}
			return cmp.Compare(*y, *x)
		}}
}

// unknown stands for an unknown value.
const unknown = "-"

func whole[N int | int64](v N) string { return strconv.FormatInt(int64(v), 10) }

// rounded formats a number with about three significant digits.
func rounded(v float64) string {
	switch {
	case v >= 100 || v == 0:
		return plain.Fixed(v, 0)
	case v >= 10:
		return plain.Fixed(v, 1)
	}
	return plain.Fixed(v, 2)
}

var gpuColumns = []column[status.GPU]{
	words("GPU", func(g *status.GPU) string { return g.GPU }),
	number("BUSY%", func(g *status.GPU) *float64 { return g.BusyPct }, rounded),
	number("RUNNING", func(g *status.GPU) *int { return g.Running }, whole),
	number("SLOTS", func(g *status.GPU) *int { return g.Slots }, whole),
	number("MEM MiB", func(g *status.GPU) *float64 { return g.MemUsedMiB }, rounded),
	number("OF MiB", func(g *status.GPU) *float64 { return g.MemMiB }, rounded),
}

var functionColumns = []column[status.Function]{
	words("FUNCTION", func(f *status.Function) string { return f.Function }),
	words("STATE", func(f *status.Function) string { return f.State }),
	number("WAITING", func(f *status.Function) *int { return f.Waiting }, whole),
	number("RUNNING", func(f *status.Function) *int { return f.InFlight }, whole),
	number("RPS", func(f *status.Function) *float64 { return f.RPS }, rounded),
	number("OF RPS", func(f *status.Function) *float64 { return f.PlannedRPS }, rounded),
	number("P50 ms", func(f *status.Function) *float64 { return f.P50MS }, rounded),
	number("P95 ms", func(f *status.Function) *float64 { return f.P95MS }, rounded),
	number("P99 ms", func(f *status.Function) *float64 { return f.P99MS }, rounded),
	number("COLD", func(f *status.Function) *int64 { return f.ColdStarts }, whole),
	number("HOST", func(f *status.Function) *int64 { return f.HostWarmStarts }, whole),
	number("WARM", func(f *status.Function) *int64 { return f.GPUWarmStarts }, whole),
	number("REJECTED", func(f *status.Function) *int64 { return f.Rejected }, whole),
	number("ERRORS", func(f *status.Function) *int64 { return f.Errors }, whole),
	number("INSTANCES", func(f *status.Function) *int { return &f.Instances }, whole),
	number("GPU s", func(f *status.Function) *float64 { return f.GPUSeconds }, rounded),
	words("WHY", func(f *status.Function) string { return f.Why }),
}

var instanceColumns = []column[status.Instance]{
	words("INSTANCE", func(i *status.Instance) string { return i.ID }),
	words("FUNCTION", func(i *status.Instance) string { return i.Function }),
	words("GPU", func(i *status.Instance) string { return i.GPU }),
	words("STATE", func(i *status.Instance) string { return i.State }),
	words("MEMORY", func(i *status.Instance) string { return i.Residency }),
	number("RUNNING", func(i *status.Instance) *int { return i.InFlight }, whole),
	number("MEM MiB", func(i *status.Instance) *float64 { return i.MemUsedMiB }, rounded),
	number("SM%", func(i *status.Instance) *float64 { return &i.SMPct }, plain.Plain),
	words("QUOTA", quota),
	number("IDLE s", func(i *status.Instance) *float64 { return i.IdleS }, rounded),
	words("ADDRESS", func(i *status.Instance) string { return i.Address }),
}

var modelColumns = []column[status.Model]{
	words("MODEL", func(m *status.Model) string { return m.Name }),
	words("TENANT", func(m *status.Model) string { return m.Tenant }),
	words("GPU", func(m *status.Model) string { return m.GPU }),
	words("STATE", func(m *status.Model) string { return m.State }),
	number("MEM MiB", func(m *status.Model) *float64 { return &m.MemMiB }, rounded),
	number("HELD BY", func(m *status.Model) *int { return &m.Refs }, whole),
}

func quota(i *status.Instance) string {
	if i.QuotaLimit == i.QuotaRequest {
		return rounded(i.QuotaRequest)
	}
	return rounded(i.QuotaRequest) + ":" + rounded(i.QuotaLimit)
}

// rows returns a table as text, header first.
func rows[T any](columns []column[T], values []T) [][]string {
	out := [][]string{lists.Map(columns, func(c column[T]) string { return c.title })}
	for i := range values {
		out = append(out, lists.Map(columns, func(c column[T]) string { return c.text(&values[i]) }))
	}
	return out
}

// Tables returns the tables of GPUs, functions and instances, and of models if there are any. Each starts with
// its header.
func Tables(s status.Status) [][][]string {
	out := [][][]string{rows(gpuColumns, s.GPUs), rows(functionColumns, s.Functions), rows(instanceColumns, s.Instances)}
	if len(s.Models) > 0 {
		out = append(out, rows(modelColumns, s.Models))
	}
	return out
}
