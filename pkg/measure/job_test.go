package measure

import (
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/load"
	"github.com/gfaas/gfaas/pkg/policy/search"
	"github.com/gfaas/gfaas/pkg/profile"
)

func TestEstimate(t *testing.T) {
	job := Job{Functions: []function.Function{{Name: "f", SLO: time.Second}}, Load: load.Options{Warmup: 2 * time.Second, Duration: 10 * time.Second}}
	for _, c := range []struct {
		goodput          bool
		points, testbeds int
		want             Estimate
	}{
		{false, 0, 1, Estimate{}},
		{false, 5, 2, Estimate{Least: 45 * time.Second, Most: 45 * time.Second, Loaded: 36 * time.Second}},
		{true, 1, 1, Estimate{Least: 120 * time.Second, Most: 165 * time.Second, Loaded: 96 * time.Second}},
	} {
		job.Goodput = c.goodput
		if got := job.Estimate(c.points, c.testbeds); got != c.want {
			t.Errorf("goodput %v, %d points, %d testbeds: got %v, want %v", c.goodput, c.points, c.testbeds, got, c.want)
		}
	}
}

func TestEarlierRows(t *testing.T) {
	job := Job{
		Functions: []function.Function{{Name: "f", SLO: 5 * time.Millisecond}}, GPU: "sim", Goodput: true,
		Space: search.Space{SMPct: []float64{10, 20}, Quota: []float64{1}, Batch: []int{1}},
	}
	row := func(name, gpu string, sm, sloMS float64) profile.Row {
		return profile.Row{Function: name, GPU: gpu, Config: profile.Config{SMPct: sm, Quota: 1, Batch: 1}, SLOMS: sloMS, Line: 2}
	}
	old, err := job.EarlierRows([]profile.Row{row("f", "sim", 10, 5), row("f", "sim", 20, 7), row("f", "sim", 50, 5)}, "p.csv")
	if err != nil || len(old) != 2 || old[Point{"f", profile.Config{SMPct: 10, Quota: 1, Batch: 1}}].SLOMS != 5 {
		t.Errorf("got %v, %v, want the rows of sm_pct 10 and 20", old, err)
	}
	if n := job.CountWithoutGoodput(old); n != 1 {
		t.Errorf("%d rows without a goodput for 5 ms, want 1", n)
	}
	for want, other := range map[string]profile.Row{`p.csv:2: function: "g"`: row("g", "sim", 10, 0), `p.csv:2: gpu: "V100"`: row("f", "V100", 10, 0)} {
		if _, err := job.EarlierRows([]profile.Row{other}, "p.csv"); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v: got %v, want %s", other, err, want)
		}
	}
}
