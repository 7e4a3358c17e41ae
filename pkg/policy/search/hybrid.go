package search

import (
	"fmt"

	"github.com/gfaas/gfaas/pkg/profile"
)

const (
	growSMPct = 10  // Dilu's start and step of the SM share, in percent
	fallen    = 0.1 // the search ends when efficacy is so much below the best
)

// hybrid is Dilu's growth search for inference functions (section 3.2): the SM
// share grows by 10% until the objective is met, then the batch doubles, until
// efficacy falls. The paper compares execution times with half the objective to
// leave room for queueing; a profile's p95_ms is of requests under load, so it
// is compared with the whole.
type hybrid struct {
	book  *book
	sm    []float64 // the steps
	batch []int
	quota float64 // the largest: time is not divided here
}

func newHybrid(b *book) planner {
	h := hybrid{book: b}
	var sm []float64
	var batch []int
	for _, c := range b.open {
		sm, batch, h.quota = append(sm, c.SMPct), append(batch, c.Batch), max(h.quota, c.Quota)
	}
	h.sm = stepsBy(ascending(sm), growSMPct)
	for _, size := range ascending(batch) {
		if n := len(h.batch); n == 0 || size >= 2*h.batch[n-1] {
			h.batch = append(h.batch, size)
		}
	}
	return h
}

// stepsBy are the values nearest above each step, the last one always.
func stepsBy(values []float64, by float64) (steps []float64) {
	next := by
	for i, v := range values {
		if v >= next || i == len(values)-1 {
			steps = append(steps, v)
			next = v + by
		}
	}
	return steps
}

// next replays the search on what is known, up to the first thing that is not.
func (h hybrid) next() (step, bool) {
	best, met, i := 0.0, profile.Config{}, 0
	for _, batch := range h.batch {
		for ; ; i++ {
			if i == len(h.sm) {
				return step{}, false
			}
			c := profile.Config{SMPct: h.sm[i], Quota: h.quota, Batch: batch}
			if h.book.isOpen(c) {
				return step{c, h.why(c, met)}, true
			}
			row, ok := h.book.at(c)
			if !ok || !h.book.goal.Meets(row) {
				continue
			}
			if row.Efficacy() < (1-fallen)*best {
				return step{}, false
			}
			best, met = max(best, row.Efficacy()), c
			break
		}
	}
	return step{}, false
}

func (h hybrid) why(c, met profile.Config) string {
	switch {
	case met.Batch == 0 && c.SMPct == h.sm[0]:
		return "the smallest step of the SM share with the smallest batch"
	case met.Batch == 0 || c.SMPct > met.SMPct:
		return fmt.Sprintf("the objective was not met with less: the SM share grows to %s", num(c.SMPct))
	}
	return fmt.Sprintf("the objective was met at %s: the batch grows to %d", name(met), c.Batch)
}

func (h hybrid) choice() Choice {
	row, ok := h.book.best()
	if !ok {
		return h.book.none()
	}
	return Choice{OK: true, Row: row, LimitSMPct: doubled(row.SMPct),
		Reason: fmt.Sprintf("the best efficacy of %d configurations up to where the growth ended", len(h.book.rows))}
}
