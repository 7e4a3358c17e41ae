// Package search decides which configurations of a function to measure. A
// strategy is told what was measured, names what to measure next and why, and
// at the end says which configuration to run the function in: grid is
// FaST-GShare's (section 5.2), binary and hybrid are Dilu's (section 3.2), fast
// is ours. It does no I/O and gives the same answers to the same measurements.
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
	// Why is the reason for what Next answers.
	Why() string
	// Tell reports what was measured at the configuration that Next named.
	// With ok false it could not be measured and row says nothing.
	Tell(c profile.Config, row profile.Row, ok bool)
	// Left is how many configurations are still to be measured, at most.
	Left() int
	// Choice is what the search makes of all it was told so far.
	Choice() Choice
}

// Choice is the configuration to run a function in.
type Choice struct {
	OK bool // false when nothing that was measured is good enough
	// Row is the configuration as it was measured: the request.
	Row profile.Row
	// LimitSMPct is the SM share up to which more is of use: Dilu's limit.
	LimitSMPct float64
	// Reason says why this one, or why none.
	Reason string
}

// strategies are the searches by name.
var strategies = map[string]func(*book) planner{
	"grid":   newGrid,
	"binary": newBinary,
	"hybrid": newHybrid,
	"fast":   newFast,
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
func New(name string, s Space, goal Goal) (Strategy, error) {
	build, ok := strategies[name]
	if !ok {
		return nil, fmt.Errorf("search %q is not available: expected %s", name, strings.Join(Names(), ", "))
	}
	goal.Goodput = goal.byGoodput() && name == "fast"
	b := &book{goal: goal, open: s.Configs()}
	b.size = len(b.open)
	return &guide{book: b, planner: build(b)}, nil
}

// planner is what strategies differ in. It reads the book and keeps nothing
// that the book does not tell.
type planner interface {
	// next is the configuration to measure, one of those open, and why; false
	// when there is nothing left to learn.
	next() (step, bool)
	choice() Choice
}

// step is a configuration to measure.
type step struct {
	config profile.Config
	why    string
}

// guide makes a strategy of a planner: it asks it once for each step.
type guide struct {
	book    *book
	planner planner
	now     step
	asked   bool // now is what is to be measured
}

func (g *guide) Next() (profile.Config, bool) {
	if !g.asked && len(g.book.open) > 0 {
		if g.now, g.asked = g.planner.next(); !g.asked {
			g.book.open = nil
		}
	}
	return g.now.config, g.asked
}

func (g *guide) Why() string { return g.now.why }

func (g *guide) Tell(c profile.Config, row profile.Row, ok bool) {
	if g.book.tell(c, row, ok) {
		g.asked, g.now = false, step{}
	}
}

// Left asks the planner first, so that a search that is over has none left.
func (g *guide) Left() int {
	g.Next()
	return len(g.book.open)
}

func (g *guide) Choice() Choice { return g.planner.choice() }

// grid measures every configuration (FaST-GShare, section 5.2) and takes the
// best.
type grid struct{ book *book }

func newGrid(b *book) planner { return grid{b} }

func (g grid) next() (step, bool) {
	return step{g.book.open[0], "every configuration is measured"}, true
}

func (g grid) choice() Choice {
	row, ok := g.book.best()
	if !ok {
		return g.book.none()
	}
	return Choice{OK: true, Row: row, LimitSMPct: doubled(row.SMPct),
		Reason: fmt.Sprintf("the best efficacy of %d configurations measured", len(g.book.rows))}
}
