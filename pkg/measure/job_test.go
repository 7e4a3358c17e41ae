package measure

import (
	"reflect"
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
		goodput bool
		rounds  int
		want    Estimate
	}{
		{false, 0, Estimate{}},
		{false, 3, Estimate{Min: 45 * time.Second, Max: 45 * time.Second, Loaded: 36 * time.Second}},
		{true, 1, Estimate{Min: 120 * time.Second, Max: 165 * time.Second, Loaded: 96 * time.Second}},
	} {
		job.Goodput = c.goodput
		if got := job.Estimate(c.rounds); got != c.want {
			t.Errorf("goodput %v, %d rounds: got %v, want %v", c.goodput, c.rounds, got, c.want)
		}
	}
}

func TestExtent(t *testing.T) {
	space := search.Space{SMPct: []float64{6, 12, 24, 50, 60, 80, 100}, Quota: []float64{0.2, 0.4, 0.6, 0.8, 1}, Batch: []int{1}}
	likely, surely := search.MaxTrials("fast", space, search.Goal{})
	if likely >= surely {
		t.Fatalf("search.MaxTrials: %d, %d, want two bounds", likely, surely)
	}
	for _, c := range []struct {
		search                        string
		functions, measured, testbeds int
		want                          Extent
	}{
		{"grid", 1, 3, 2, Extent{[]int{32}, []int{16}, 2}},
		{"fast", 1, 0, 2, Extent{[]int{likely, surely}, []int{likely, surely}, 1}},
		{"fast", 3, 0, 2, Extent{[]int{3 * likely, 3 * surely}, []int{2 * likely, 2 * surely}, 2}},
		{"fast", 1, 34, 1, Extent{[]int{1}, []int{1}, 1}},
	} {
		job := Job{Search: c.search, Space: space, Functions: make([]function.Function, c.functions)}
		if got := job.Extent(c.measured, c.testbeds); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s of %d functions, %d measured, %d testbeds: got %v, want %v", c.search, c.functions, c.measured, c.testbeds, got, c.want)
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
