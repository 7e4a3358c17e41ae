package profile

import (
	"math"
	"testing"
)

func TestBatchSlope(t *testing.T) {
	row := func(sm, quota float64, batch int, warm float64) Row {
		return Row{Config: Config{SMPct: sm, Quota: quota, Batch: batch}, WarmMS: warm}
	}
	for _, c := range []struct {
		name string
		rows []Row
		want float64
		ok   bool
	}{
		{name: "no rows"},
		{name: "one batch size", rows: []Row{row(50, 1, 1, 10), row(100, 1, 1, 8)}},
		{name: "without durations", rows: []Row{row(50, 1, 1, 10), row(50, 1, 8, 0)}},
		{"one batch beside that of 1", []Row{row(50, 1, 1, 10), row(50, 1, 8, 24)}, 0.2, true},
		{"on a line", []Row{row(50, 1, 1, 10), row(50, 1, 2, 11), row(50, 1, 5, 14)}, 0.1, true},
		{"through batch 1", []Row{row(50, 1, 1, 10), row(50, 1, 2, 14), row(50, 1, 3, 13)}, 0.2, true},
		{"without batch 1", []Row{row(50, 1, 2, 11), row(50, 1, 4, 13)}, 0.1, true},
		{"one after another", []Row{row(50, 1, 2, 20), row(50, 1, 4, 40)}, 1, true},
		{"faster in batches", []Row{row(50, 1, 1, 10), row(50, 1, 4, 9)}, 0, true},
		{"of the slice", []Row{row(100, 1, 1, 10), row(100, 1, 3, 30), row(50, 1, 1, 10), row(50, 1, 3, 12)}, 0.1, true},
		{"of the most SMs", []Row{row(20, 1, 1, 10), row(20, 1, 3, 30), row(30, 0.5, 1, 10), row(30, 0.5, 3, 12)}, 0.1, true},
	} {
		if got, ok := BatchSlope(c.rows, 50, 1); math.Abs(got-c.want) > 1e-9 || ok != c.ok {
			t.Errorf("%s: got %v, %v, want %v, %v", c.name, got, ok, c.want, c.ok)
		}
	}
}
