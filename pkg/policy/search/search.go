// Package search decides which configurations of a function to measure. A
// strategy is told what was measured and names what to measure next; it does
// no I/O and gives the same answers to the same measurements.
package search

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/profile"
)

// Strategy chooses configurations of one function, one after the other.
type Strategy interface {
	// Next is the configuration to measure now; false when the search is over.
	// Until Tell it answers the same.
	Next() (profile.Config, bool)
	// Tell reports what was measured at the configuration that Next named.
	// With ok false it could not be measured and row says nothing.
	Tell(c profile.Config, row profile.Row, ok bool)
	// Left is how many configurations are still to be measured, at most.
	Left() int
}

// Space is the set of configurations to choose from: every SM share with every
// quota and every batch size.
type Space struct {
	SMPct []float64 // percent, (0, 100]
	Quota []float64 // fraction of a window, (0, 1]
	Batch []int     // requests in one invocation, at least 1
}

// Size is the number of configurations in the space.
func (s Space) Size() int { return len(s.SMPct) * len(s.Quota) * len(s.Batch) }

// strategies are the searches by name.
var strategies = map[string]func(Space) Strategy{
	"grid": func(s Space) Strategy { return NewGrid(s) },
}

// Names are the strategies that New knows, sorted.
func Names() []string {
	names := make([]string, 0, len(strategies))
	for name := range strategies {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// New is the strategy of that name over the space.
func New(name string, s Space) (Strategy, error) {
	build, ok := strategies[name]
	if !ok {
		return nil, fmt.Errorf("search %q is not available: expected %s", name, strings.Join(Names(), ", "))
	}
	return build(s), nil
}
