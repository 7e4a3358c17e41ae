package search

import (
	"slices"

	"github.com/gfaas/gfaas/pkg/profile"
)

// Grid measures every configuration of its space (FaST-GShare, section 5.2):
// SM shares ascending, for each the quotas ascending, for each the batch sizes
// ascending.
type Grid struct {
	todo []profile.Config
}

// NewGrid is a grid over the space.
func NewGrid(s Space) *Grid {
	todo := make([]profile.Config, 0, s.Size())
	for _, sm := range ascending(s.SMPct) {
		for _, quota := range ascending(s.Quota) {
			for _, batch := range ascending(s.Batch) {
				todo = append(todo, profile.Config{SMPct: sm, Quota: quota, Batch: batch})
			}
		}
	}
	return &Grid{todo: todo}
}

func ascending[T int | float64](values []T) []T {
	return slices.Compact(slices.Sorted(slices.Values(values)))
}

// Next is the first configuration that was not told about.
func (g *Grid) Next() (profile.Config, bool) {
	if len(g.todo) == 0 {
		return profile.Config{}, false
	}
	return g.todo[0], true
}

// Tell takes the configuration off the grid, measured or not.
func (g *Grid) Tell(c profile.Config, _ profile.Row, _ bool) {
	if i := slices.Index(g.todo, c); i >= 0 {
		g.todo = slices.Delete(g.todo, i, i+1)
	}
}

// Left is the number of configurations not told about.
func (g *Grid) Left() int { return len(g.todo) }
