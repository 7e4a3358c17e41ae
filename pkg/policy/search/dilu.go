package search

import (
	"fmt"

	"github.com/gfaas/gfaas/pkg/profile"
)

const (
	requestFraction = 0.8  // binary: the fraction of the exclusive throughput at the request
	limitFraction   = 1.0  // the fraction at the limit
	slack           = 0.02 // tolerance of both
	growSMPct       = 10   // hybrid: start and step of the SM share, in percent
	maxEfficacyDrop = 0.1  // hybrid ends when the efficacy is this fraction below the best
)

// binary is Dilu's search for training functions (section 3.2). It finds the SM shares at which 80% (the
// request) and 100% (the limit) of the throughput of the whole GPU are reached, each within 2%. The job keeps
// its batch size, the smallest of the space, and its whole time, the largest quota. The paper's search ends as
// soon as a throughput is within 2% of its aim. Here the search for the limit continues to the least such SM
// share, because on a flat part of the throughput curve the first match is arbitrary.
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

// axis returns the SM shares that are measured or open, ascending.
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
	whole, ok := p.book.measurement(top)
	if !ok {
		return step{top, "the throughput with all SMs, to which the other throughputs are compared"}, true
	}
	if !p.book.goal.Meets(whole) {
		return step{}, false
	}
	for _, fraction := range []float64{requestFraction, limitFraction} {
		_, unmeasured := p.bisect(axis, fraction, whole)
		if unmeasured >= 0 {
			return step{p.at(axis[unmeasured]), fmt.Sprintf("bisects the SM shares for %s%% of %s requests/s",
				num(100*fraction), num(whole.ThroughputRPS))}, true
		}
	}
	return step{}, false
}

// bisect finds the least index of the axis that reaches a fraction of the whole throughput, within the slack
// and within the noise beyond that. If an index must be measured first, it returns that in unmeasured, else
// -1. The search for the request also ends at an index within the slack above the aim.
func (p binary) bisect(axis []float64, fraction float64, whole profile.Row) (found, unmeasured int) {
	low, high := -1, len(axis)-1
	aim, early := fraction*whole.ThroughputRPS, fraction < 1
	for high-low > 1 {
		mid := middle(axis, low, high)
		row, ok := p.book.measurement(p.at(axis[mid]))
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

// middle returns the index strictly between low and high whose value is nearest to the middle of their values;
// low -1 stands for 0%.
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
		return p.book.noChoice()
	}
	whole, ok := p.book.measurement(p.at(axis[len(axis)-1]))
	if !ok || !p.book.goal.Meets(whole) {
		return p.book.noChoice()
	}
	request, _ := p.bisect(axis, requestFraction, whole)
	limit, _ := p.bisect(axis, limitFraction, whole)
	row, ok := p.book.measurement(p.at(axis[request]))
	if !ok {
		row = whole
	}
	return Choice{OK: true, Row: row, LimitSMPct: max(axis[limit], row.SMPct), LimitQuota: row.Quota, Reason: fmt.Sprintf(
		"%s%% of the throughput with all SMs at sm_pct %s (the request), %s%% at %s (the limit)",
		num(100*row.ThroughputRPS/whole.ThroughputRPS), num(row.SMPct), num(100*limitFraction), num(axis[limit]))}
}

// hybrid is Dilu's growth search for inference functions (section 3.2). The SM share grows by 10% until the
// objective is met; then the batch doubles, until the efficacy falls. The paper compares execution times with
// half of the objective, to leave room for queueing. A profile's p95_ms is the latency under load, so it is
// compared with the whole objective.
type hybrid struct {
	book  *book
	sm    []float64 // the SM shares of the growth
	batch []int
	quota float64 // the largest quota; hybrid does not divide time
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

// stepsBy returns the values nearest above each step, always including the last value.
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

// next repeats the search on the known measurements, up to the first unknown one.
func (h hybrid) next() (step, bool) {
	best, met, i := 0.0, profile.Config{}, 0
	for _, batch := range h.batch {
		for ; ; i++ {
			if i == len(h.sm) {
				return step{}, false
			}
			c := profile.Config{SMPct: h.sm[i], Quota: h.quota, Batch: batch}
			if h.book.isOpen(c) {
				return step{c, h.reason(c, met)}, true
			}
			row, ok := h.book.measurement(c)
			if !ok || !h.book.goal.Meets(row) {
				continue
			}
			if row.Efficacy() < (1-maxEfficacyDrop)*best {
				return step{}, false
			}
			best, met = max(best, row.Efficacy()), c
			break
		}
	}
	return step{}, false
}

func (h hybrid) reason(c, met profile.Config) string {
	switch {
	case met.Batch == 0 && c.SMPct == h.sm[0]:
		return "the search starts at the smallest SM share and the smallest batch"
	case met.Batch == 0 || c.SMPct > met.SMPct:
		return fmt.Sprintf("a smaller SM share did not meet the objective: the SM share grows to %s", num(c.SMPct))
	}
	return fmt.Sprintf("the objective was met at %s: the batch grows to %d", describe(met), c.Batch)
}

func (h hybrid) choice() Choice {
	return h.book.bestChoice("the best efficacy of %d measured configurations, after which the growth ended")
}
