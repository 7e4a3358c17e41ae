package search

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/profile"
)

// slowGPUlet is a simple twin of gpulet: it returns the configurations to measure, and the best throughput of
// those that meet the goal, for each percent of the GPU.
func slowGPUlet(space Space, goal Goal, table map[profile.Config]profile.Row) (trials []profile.Config, best float64) {
	var shares []float64
	var batches []int
	quota := 0.0
	for _, c := range space.Configs() {
		if !slices.Contains(shares, c.SMPct) {
			shares = append(shares, c.SMPct)
		}
		if !slices.Contains(batches, c.Batch) {
			batches = append(batches, c.Batch)
		}
		quota = math.Max(quota, c.Quota)
	}
	slices.Sort(batches)
	picked := func(n, i int) bool { // reports whether the value at i of n is one of the four
		if n <= 4 {
			return true
		}
		for k := range 4 {
			if i == int(math.Round(float64(k)*float64(n-1)/3)) {
				return true
			}
		}
		return false
	}
	var rows []profile.Row
	for i, s := range shares {
		for j, b := range batches {
			c := profile.Config{SMPct: s, Quota: quota, Batch: b}
			if !picked(len(shares), i) || !picked(len(batches), j) || !slices.Contains(space.Configs(), c) {
				continue
			}
			trials = append(trials, c)
			if row, ok := table[c]; ok && goal.Meets(row) {
				rows = append(rows, row)
			}
		}
	}
	best = 0
	for _, r := range rows {
		best = math.Max(best, r.ThroughputRPS/(r.SMPct*r.Quota))
	}
	return trials, best
}

// TestGPUletMatchesTwin compares the trials and the choice of gpulet with slowGPUlet's.
func TestGPUletMatchesTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		space, table := drawTable(t)
		goal := drawGoal(t)
		trials, choice := drive(t, "gpulet", space, goal, table)
		want, best := slowGPUlet(space, goal, table)
		var got []profile.Config
		for _, one := range trials {
			got = append(got, one.config)
		}
		if efficacy := choice.Row.Efficacy() / 100; !slices.Equal(got, want) || choice.OK != (best > 0) || choice.OK && efficacy < best*(1-2*rounding) {
			t.Fatalf("got %v and the choice %+v, want %v and an efficacy of %v", got, choice, want, best)
		}
	})
}
