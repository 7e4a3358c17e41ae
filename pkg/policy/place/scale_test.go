package place

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/profile"
)

// figures is a measured configuration: its SM share in percent, its quota and its throughput in requests per
// second.
type figures struct {
	sm    float64
	quota float64
	rps   float64
}

func row(function string, m figures) profile.Row {
	return profile.Row{Function: function, Config: profile.Config{SMPct: m.sm, Quota: m.quota, Batch: 1}, ThroughputRPS: m.rps, P95MS: 10, GPUMemMiB: 1000}
}

// grid returns the profile of a function whose throughput is proportional to the quota and flattens out
// with SMs, as in the paper's figure 8.
func grid(function string) []profile.Row {
	var rows []profile.Row
	for sm, full := range map[float64]float64{6: 20, 12: 60, 24: 80, 50: 90, 100: 95} {
		for _, quota := range []float64{0.2, 0.4, 0.6, 0.8, 1} {
			rows = append(rows, row(function, figures{sm: sm, quota: quota, rps: full * quota}))
		}
	}
	return rows
}

func TestScaleUp(t *testing.T) {
	for _, c := range []struct {
		what string
		gap  float64
		tie  TieBreak
		want []Group
	}{
		{"whole and rest", 130, LargerQuota, []Group{{row("f", figures{sm: 12, quota: 1, rps: 60}), 2}, {row("f", figures{sm: 12, quota: 0.2, rps: 12}), 1}}},
		{"exactly whole", 120, LargerQuota, []Group{{row("f", figures{sm: 12, quota: 1, rps: 60}), 2}}},
		{"only a rest", 3, LargerQuota, []Group{{row("f", figures{sm: 6, quota: 0.2, rps: 4}), 1}}},
		{"smaller quota", 25, SmallerQuota, []Group{{row("f", figures{sm: 12, quota: 0.2, rps: 12}), 2}, {row("f", figures{sm: 6, quota: 0.2, rps: 4}), 1}}},
		{"nothing", 0, LargerQuota, nil},
		{"less than nothing", -5, LargerQuota, nil},
	} {
		t.Run(c.what, func(t *testing.T) {
			got := ScaleUp(grid("f"), c.gap, c.tie)
			if len(got) != len(c.want) {
				t.Fatalf("got %+v, want %+v", got, c.want)
			}
			for i := range got {
				if got[i] != c.want[i] {
					t.Errorf("got %+v, want %+v", got[i], c.want[i])
				}
			}
		})
	}
}

func TestScaleUpPassesOverWhatSustainsNothing(t *testing.T) {
	if got := ScaleUp([]profile.Row{row("f", figures{sm: 6, quota: 0.2})}, 5, LargerQuota); got != nil {
		t.Errorf("ScaleUp with a throughput of 0: got %v, want nil", got)
	}
}

func TestTiesDoNotDependOnTheLastDigit(t *testing.T) {
	rows := []profile.Row{row("f", figures{sm: 14, quota: 0.2, rps: 14.882}), row("f", figures{sm: 14, quota: 0.4, rps: 29.763}), row("f", figures{sm: 14, quota: 1, rps: 74.408})}
	if got := ScaleUp(rows, 80, LargerQuota); got[0].Row.Quota != 1 {
		t.Errorf("larger quota: got %+v, want Row.Quota 1", got[0])
	}
	if got := ScaleUp(rows, 80, SmallerQuota); got[0].Row.Quota != 0.2 {
		t.Errorf("smaller quota: got %+v, want Row.Quota 0.2", got[0])
	}
}

func TestScaleUpCoversTheGapAndNoMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := drawRows(t, "f")
		gap := rapid.Float64Range(0.01, 500).Draw(t, "gap")
		sum := 0.0
		groups := ScaleUp(rows, gap, rapid.SampledFrom([]TieBreak{LargerQuota, SmallerQuota}).Draw(t, "tie"))
		for _, g := range groups {
			sum += g.Row.ThroughputRPS * float64(g.Count)
		}
		if sum < gap*(1-1e-6) {
			t.Fatalf("%v: got %v requests a second, want at least %v", groups, sum, gap)
		}
		last := groups[len(groups)-1].Row.ThroughputRPS
		if sum-last > gap*(1+1e-6) {
			t.Fatalf("%v without its last instance: got %v requests a second, want less than %v", groups, sum-last, gap)
		}
	})
}

func TestScaleDown(t *testing.T) {
	running := []Running{{"good-0", row("f", figures{sm: 12, quota: 1, rps: 60})}, {"good-1", row("f", figures{sm: 12, quota: 1, rps: 60})}, {"poor", row("f", figures{sm: 100, quota: 0.2, rps: 19})}, {"fair", row("f", figures{sm: 24, quota: 0.4, rps: 32})}}
	for _, c := range []struct {
		excess float64
		want   []string
	}{
		{0, nil}, {18, nil}, {19, []string{"poor"}}, {50, []string{"poor"}}, {51, []string{"poor", "fair"}},
		{111, []string{"poor", "fair", "good-0"}}, {1000, []string{"poor", "fair", "good-0", "good-1"}},
	} {
		got := ScaleDown(running, c.excess)
		if len(got) != len(c.want) {
			t.Errorf("excess %v: got %v, want %v", c.excess, got, c.want)
			continue
		}
		for i := range got {
			if got[i].ID != c.want[i] {
				t.Errorf("excess %v: got %v, want %v", c.excess, got, c.want)
			}
		}
	}
	if running[0].ID != "good-0" {
		t.Errorf("first instance in the argument: got %s, want good-0, as before", running[0].ID)
	}
}
