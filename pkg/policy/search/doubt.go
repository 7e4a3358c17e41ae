package search

import (
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/profile"
)

// uncertainty is half the width of the rows' confidence intervals of p95 as a
// fraction of it, at the median: the next row is taken to be known as well.
func (b *book) uncertainty() float64 {
	var parts []float64
	for _, r := range b.rows {
		if r.ThroughputRPS > 0 && r.P95MS > 0 {
			parts = append(parts, r.P95CIMS/r.P95MS)
		}
	}
	if len(parts) == 0 {
		return 0
	}
	slices.Sort(parts)
	return parts[len(parts)/2]
}

// runs is the chance that a configuration runs at all: 1 up to a batch that
// did, and least from one that did not, as when memory is short. The logarithm
// of the limit is equally likely anywhere between; a larger SM share may, but
// need not, come with as much more memory.
func (b *book) runs(c profile.Config) float64 {
	const least = 0.01
	works, fails, batch := 1.0, math.Inf(1), float64(c.Batch)
	for _, d := range b.dead {
		fails = min(fails, float64(d.Batch)*max(1, c.SMPct/d.SMPct))
	}
	for _, r := range b.rows {
		if r.ThroughputRPS > 0 {
			works = max(works, float64(r.Batch)*min(1, c.SMPct/r.SMPct))
		}
	}
	switch {
	case math.IsInf(fails, 1) || batch <= works:
		return 1
	case batch >= fails:
		return least
	}
	return max(least, math.Log(fails/batch)/math.Log(fails/works))
}
