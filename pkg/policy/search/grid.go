package search

import "fmt"

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
