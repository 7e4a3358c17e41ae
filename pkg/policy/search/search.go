// Package search decides which configurations of a function to measure. A Strategy receives
// measurements, names the next configuration with the reason and, at the end, the configuration in
// which to run the function. "grid" is FaST-GShare's search (section 5.2), "binary" and "hybrid" are
// Dilu's (section 3.2), "gpulet" is its baseline GPUlet, "fast" is this project's. A strategy does no I/O and gives the same answers to
// the same measurements.
package search

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/profile"
)

// Strategy chooses configurations of one function, one at a time.
type Strategy interface {
	// Next returns the configuration to measure, or false when the search has ended. It returns the
	// same until Record.
	Next() (profile.Config, bool)
	// Reason returns the reason for the answer of Next.
	Reason() string
	// Record reports the measurement of the configuration that Next returned. If ok is false, it could
	// not be measured, and row is ignored.
	Record(c profile.Config, row profile.Row, ok bool)
	// Remaining returns the most configurations that may still be measured.
	Remaining() int
	// Choice returns the best configuration according to all measurements so far.
	Choice() Choice
}

// Choice is the configuration in which to run a function.
type Choice struct {
	OK bool // false if no measured configuration meets the goal
	// Row is the measurement of the configuration: the request.
	Row profile.Row
	// LimitSMPct and LimitQuota are the largest SM share and quota that are useful: Dilu's limit.
	LimitSMPct float64
	LimitQuota float64
	// Reason explains the choice, or why there is none.
	Reason string
}

// strategies has the constructors by name.
var strategies = map[string]func(*book) planner{
	"grid":   newGrid,
	"binary": newBinary,
	"hybrid": newHybrid,
	"gpulet": newGPUlet,
	"fast":   newFast,
}

// Names returns the names that New accepts, sorted.
func Names() []string { return slices.Sorted(maps.Keys(strategies)) }

// New returns the strategy with that name for the space. It fails if there is none.
func New(name string, s Space, goal Goal) (Strategy, error) {
	build, ok := strategies[name]
	if !ok {
		return nil, fmt.Errorf("unknown search %q: expected %s", name, strings.Join(Names(), ", "))
	}
	goal.Goodput = goal.byGoodput() && name == "fast"
	b := &book{goal: goal, open: s.Configs()}
	b.size = len(b.open)
	return &guide{book: b, planner: build(b)}, nil
}

// planner is the part in which strategies differ. It has no state except the book.
type planner interface {
	// next returns an open configuration to measure, with the reason, or false when the search has
	// ended.
	next() (step, bool)
	choice() Choice
}

// step is a configuration to measure.
type step struct {
	config profile.Config
	reason string
}

// guide implements Strategy with a planner, which it calls once for each step.
type guide struct {
	book    *book
	planner planner
	current step
	pending bool // current is the configuration to measure
}

func (g *guide) Next() (profile.Config, bool) {
	if !g.pending && len(g.book.open) > 0 {
		if g.current, g.pending = g.planner.next(); !g.pending {
			g.book.open = nil
		}
	}
	return g.current.config, g.pending
}

func (g *guide) Reason() string { return g.current.reason }

func (g *guide) Record(c profile.Config, row profile.Row, ok bool) {
	if g.book.record(c, row, ok) {
		g.pending, g.current = false, step{}
	}
}

// Remaining calls Next first, so that it returns 0 when the search has ended.
func (g *guide) Remaining() int {
	g.Next()
	return len(g.book.open)
}

func (g *guide) Choice() Choice { return g.planner.choice() }

// grid measures every configuration (FaST-GShare, section 5.2) and chooses the best.
type grid struct{ book *book }

func newGrid(b *book) planner { return grid{b} }

func (g grid) next() (step, bool) {
	return step{g.book.open[0], "every configuration is measured"}, true
}

func (g grid) choice() Choice {
	return g.book.bestChoice("the best efficacy of %d measured configurations")
}

// inferenceChoice returns the choice of a row with Dilu's limits of an inference function.
func inferenceChoice(row profile.Row, reason string) Choice {
	c := Choice{OK: true, Row: row, Reason: reason}
	c.LimitSMPct, c.LimitQuota = row.InferenceLimits()
	return c
}

// bestChoice returns the choice of the best row. The reason states the number of measured rows.
func (b *book) bestChoice(reason string) Choice {
	row, ok := b.best()
	if !ok {
		return b.noChoice()
	}
	return inferenceChoice(row, fmt.Sprintf(reason, len(b.rows)))
}
