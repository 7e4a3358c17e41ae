package search

import (
	"fmt"

	"github.com/gfaas/gfaas/pkg/profile"
)

const (
	requestPart = 0.8  // binary: of the exclusive throughput that the request keeps
	limitPart   = 1.0  // that the limit reaches
	slack       = 0.02 // either way
	growSMPct   = 10   // hybrid: start and step of the SM share, in percent
	fallen      = 0.1  // the search ends when efficacy is so much below the best
)

// binary is Dilu's search for training functions (section 3.2): the SM shares
// at which 80% (the request) and 100% (the limit) of the throughput of the
// whole GPU are reached, each within 2%. The job keeps its batch size, the
// smallest of the space, and its whole time, the largest quota. The paper ends
// as soon as a throughput is within 2% of its aim; here the limit's search goes
// on to the least SM share that is, for where throughput is flat the first one
// found says nothing.
type binary struct {
	book  *book
	batch int
	quota float64
}

func newBinary(b *book) planner {
	p := binary{book: b}
	for _, c := range b.open {
		p.quota = max(p.quota, c.Quota)
		if p.batch == 0 || c.Batch < p.batch {
			p.batch = c.Batch
		}
	}
	return p
}

// axis are the SM shares that are measured or can be, ascending.
func (p binary) axis() (sm []float64) {
	for _, c := range p.book.open {
		if c.Quota == p.quota && c.Batch == p.batch {
			sm = append(sm, c.SMPct)
		}
	}
	for _, r := range p.book.rows {
		sm = append(sm, r.SMPct)
	}
	return ascending(sm)
}

func (p binary) at(sm float64) profile.Config {
	return profile.Config{SMPct: sm, Quota: p.quota, Batch: p.batch}
}

func (p binary) next() (step, bool) {
	axis := p.axis()
	if len(axis) == 0 {
		return step{}, false
	}
	top := p.at(axis[len(axis)-1])
	whole, ok := p.book.at(top)
	if !ok {
		return step{top, "the throughput with all SMs, of which the others are parts"}, true
	}
	if !p.book.goal.Meets(whole) {
		return step{}, false
	}
	for _, part := range []float64{requestPart, limitPart} {
		_, ask := p.bisect(axis, part, whole)
		if ask >= 0 {
			return step{p.at(axis[ask]), fmt.Sprintf("halves where %s%% of %s requests a second are reached",
				num(100*part), num(whole.ThroughputRPS))}, true
		}
	}
	return step{}, false
}

// bisect finds the least of the axis that reaches a part of the whole
// throughput within the slack, and within what noise explains beyond that. It
// returns its index, or in ask which to measure first, else -1. For the request
// one that is within the slack to either side ends the search.
func (p binary) bisect(axis []float64, part float64, whole profile.Row) (found, ask int) {
	low, high := -1, len(axis)-1
	aim, early := part*whole.ThroughputRPS, part < 1
	for high-low > 1 {
		mid := middle(axis, low, high)
		row, ok := p.book.at(p.at(axis[mid]))
		switch {
		case !ok:
			return high, mid
		case row.ThroughputRPS < (1-slack-noise(row, whole))*aim || !p.book.goal.Meets(row):
			low = mid
		default:
			high = mid
			if early && row.ThroughputRPS <= (1+slack)*aim {
				return high, -1
			}
		}
	}
	return high, -1
}

// middle is the index strictly between low and high whose value is nearest to
// the middle of theirs; -1 stands for 0%.
func middle(axis []float64, low, high int) int {
	from := 0.0
	if low >= 0 {
		from = axis[low]
	}
	aim, best := (from+axis[high])/2, low+1
	for i := low + 2; i < high; i++ {
		if distance(axis[i], aim) < distance(axis[best], aim) {
			best = i
		}
	}
	return best
}

func distance(a, b float64) float64 { return max(a-b, b-a) }

func (p binary) choice() Choice {
	axis := p.axis()
	if len(axis) == 0 {
		return p.book.none()
	}
	whole, ok := p.book.at(p.at(axis[len(axis)-1]))
	if !ok || !p.book.goal.Meets(whole) {
		return p.book.none()
	}
	request, _ := p.bisect(axis, requestPart, whole)
	limit, _ := p.bisect(axis, limitPart, whole)
	row, ok := p.book.at(p.at(axis[request]))
	if !ok {
		row = whole
	}
	return Choice{OK: true, Row: row, LimitSMPct: max(axis[limit], row.SMPct), Reason: fmt.Sprintf(
		"%s%% of the throughput with all SMs at sm_pct %s (the request), %s%% at %s (the limit)",
		num(100*row.ThroughputRPS/whole.ThroughputRPS), num(row.SMPct), num(100*limitPart), num(axis[limit]))}
}

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

// doubled is Dilu's limit of an inference function: twice the request, at most
// the whole GPU (section 3.2).
func doubled(smPct float64) float64 { return min(2*smPct, 100) }
