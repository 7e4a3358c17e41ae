package search

import (
	"fmt"
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/profile"
)

// fast is ours: Bayesian optimization by constrained expected improvement (Jones,
// Schonlau and Welch 1998, Efficient global optimization of expensive black-box
// functions; Gardner et al. 2014, Bayesian optimization with inequality
// constraints). It keeps a thousand hypotheses of how execution time depends on
// SM share and batch (curve), each with a smooth deviation of the function's own
// (a Gaussian process), and weighs them by how well they fit what was measured.
// It measures where it expects to gain most over the best configuration that was
// measured to meet the objective, the incumbent, and ends when what is left to
// gain is below the error.
//
// Throughput is taken as proportional to the quota, so the efficacy of a
// configuration does not depend on it, while latency does: each SM share and
// batch is measured at the largest quota first. Where rows tell how well their
// p95 is known, all of that must be within the objective, unless no such
// configuration is found.
//
// Where the goodput counts, it is expected to be what a queue leaves of the
// throughput (goodput.go), and p95 is that of single requests, without which no
// rate is within the objective.
type fast struct {
	book   *book
	curves []curve
	points []point
	index  map[point]int
	time   [][]float64 // log time by curve and point
	least  []float64   // of time, by curve
	whole  int         // the point with most SMs and the smallest batch
}

func newFast(b *book) planner {
	f := &fast{book: b, curves: priorCurves(), index: map[point]int{}}
	for _, c := range b.open {
		p := pointOf(c)
		if _, ok := f.index[p]; ok {
			continue
		}
		f.index[p] = len(f.points)
		f.points = append(f.points, p)
		if w := f.points[f.whole]; p.sm > w.sm || p.sm == w.sm && p.batch < w.batch {
			f.whole = len(f.points) - 1
		}
	}
	for _, c := range f.curves {
		times := make([]float64, len(f.points))
		for j, p := range f.points {
			times[j] = c.logTime(p)
		}
		f.time = append(f.time, times)
		if len(times) > 0 {
			f.least = append(f.least, slices.Min(times))
		}
	}
	return f
}

func pointOf(c profile.Config) point { return point{c.SMPct / 100, float64(c.Batch)} }

// candidates are, for each SM share and batch, the largest quota that is open,
// unless a larger one was measured to meet the objective: a smaller one has no
// better efficacy and no better latency. What could not run is no candidate
// with more requests or less of the GPU either, as long as there are others.
func (f *fast) candidates() []profile.Config {
	top := map[point]profile.Config{}
	for _, c := range f.book.open {
		if p := pointOf(c); top[p].Quota < c.Quota {
			top[p] = c
		}
	}
	for _, r := range f.book.rows {
		if f.book.goal.Meets(r) {
			delete(top, pointOf(r.Config))
		}
	}
	var all, alive []profile.Config
	for _, p := range f.points {
		c, ok := top[p]
		if !ok {
			continue
		}
		all = append(all, c)
		if !slices.ContainsFunc(f.book.dead, func(d profile.Config) bool { return c.SMPct <= d.SMPct && c.Batch >= d.Batch }) {
			alive = append(alive, c)
		}
	}
	if len(alive) == 0 {
		return all
	}
	return alive
}

func (f *fast) next() (step, bool) {
	o := f.look()
	if o.over {
		return f.check()
	}
	return step{o.candidate.config, o.why}, true
}

// best is the best row that surely meets the objective, or else that does as
// measured.
func (f *fast) best() (row profile.Row, ok bool) {
	if row, ok = f.bestBy(f.book.goal.surely); !ok {
		row, ok = f.bestBy(f.book.goal.Meets)
	}
	return row, ok
}

// bestBy is the best row of those that meet the objective in one sense, at the
// largest quota of its SM share and batch where efficacy is nearly as good:
// noise does not make a function idle.
func (f *fast) bestBy(meets func(profile.Row) bool) (profile.Row, bool) {
	best, ok := f.book.bestBy(meets)
	worth := func(r profile.Row) float64 { return f.book.goal.ranked(r).Efficacy() }
	least := (1 - assumed.idle) * worth(best)
	for _, r := range f.book.rows {
		if ok && pointOf(r.Config) == pointOf(best.Config) && r.Quota > best.Quota && meets(r) && worth(r) > least {
			best = r
		}
	}
	return best, ok
}

// check asks for the chosen SM share and batch at about half the quota, and
// goes on from there when efficacy is better: then the function does not use
// all the time it gets.
func (f *fast) check() (step, bool) {
	best, ok := f.best()
	if !ok || !f.book.goal.CheckQuota {
		return step{}, false
	}
	for _, r := range f.book.rows {
		if pointOf(r.Config) == pointOf(best.Config) && r.Quota < best.Quota {
			return step{}, false
		}
	}
	half, found := profile.Config{}, false
	for _, c := range f.book.open {
		near := distance(c.Quota, best.Quota/2) < distance(half.Quota, best.Quota/2)
		if pointOf(c) == pointOf(best.Config) && c.Quota < best.Quota && (!found || near) {
			half, found = c, true
		}
	}
	return step{half, "checks that throughput is in proportion to the quota"}, found
}

// outlook is what there is to gain.
type outlook struct {
	over      bool
	left      float64 // expected gain in efficacy of the best there may be, as a fraction
	candidate candidate
	why       string
}

// look finds the candidate from which most is expected.
func (f *fast) look() outlook {
	configs := f.candidates()
	if len(configs) == 0 {
		return outlook{over: true}
	}
	b := f.believe(configs)
	best, met := f.bestBy(f.book.goal.surely)
	incumbent := 0.0
	if met {
		best = f.book.goal.ranked(best)
		incumbent = math.Log(best.Efficacy())
	}
	gains, left := b.gains(incumbent, met)
	top := 0
	for i := range gains {
		if gains[i] > gains[top] {
			top = i
		}
	}
	o := outlook{left: math.Expm1(left), candidate: b.candidates[top]}
	chance, rps := b.outcome(top)
	switch {
	case met:
		o.over = f.enough(o.left) || len(f.book.rows) >= assumed.trials
		o.why = fmt.Sprintf("%s%% may be gained over %s a second per GPU, here %s%%", percent(o.left), num(best.Efficacy()), percent(math.Expm1(gains[top])))
	default:
		_, measured := f.best()
		o.over = measured && len(f.book.rows) >= assumed.trials || len(f.book.rows) >= assumed.hopeTrials && b.chance() < assumed.hope
		o.why = "nothing is known to meet the objective, here most is expected"
	}
	o.why += fmt.Sprintf(": about %s rps", num(rps*o.candidate.config.Quota))
	if !math.IsInf(b.slo, 1) {
		o.why += fmt.Sprintf(", the objective met with a chance of %.0f%%", 100*chance)
	}
	return o
}

// enough tells whether so little is left to gain that no trial is worth it.
func (f *fast) enough(left float64) bool {
	stop := assumed.stop * f.book.goal.allowed()
	if len(f.book.rows) > assumed.settled {
		stop /= 2
	}
	return left < stop
}

// gains is how much log efficacy each candidate is expected to add to the
// incumbent's (its expected improvement), and how much the best of them under
// each hypothesis. Without an incumbent it is compared with what the hypothesis
// expects of the whole GPU.
func (b *belief) gains(incumbent float64, met bool) (each []float64, best float64) {
	each = make([]float64, len(b.candidates))
	for _, h := range b.hypotheses {
		if !met {
			incumbent = h.whole
			if b.queue {
				incumbent += modest + b.shift
			}
		}
		most := 0.0
		for i, c := range b.candidates {
			g := b.gain(c, h, i, incumbent)
			each[i] += h.weight * g
			most = max(most, g)
		}
		best += h.weight * most
	}
	return each, best
}

// gain is how much log efficacy a candidate is expected to add to the
// incumbent's, counting nothing where it misses the objective. The tail is
// integrated over by three points.
func (b *belief) gain(c candidate, h hypothesis, i int, incumbent float64) float64 {
	if b.queue {
		return b.gainUnderLoad(c, h.mean[i], c.sd*h.spread, incumbent)
	}
	from := c.unit - incumbent
	at := func(x float64) float64 {
		return expectedBelow(from, min(from, b.slo-c.tail.mean-x*c.tail.sd), h.mean[i], c.sd*h.spread)
	}
	return c.runs * (at(0)*2/3 + (at(math.Sqrt(3))+at(-math.Sqrt(3)))/6)
}

// outcome is the chance that a candidate meets the objective, and the expected
// throughput at full quota.
func (b *belief) outcome(i int) (chance, rps float64) {
	c, log := b.candidates[i], 0.0
	for _, h := range b.hypotheses {
		chance += h.weight * b.meets(c, h, i)
		log += h.weight * h.mean[i]
	}
	return chance, 1000 * c.point.batch / math.Exp(log)
}

func (b *belief) meets(c candidate, h hypothesis, i int) float64 {
	return cdf((b.slo - h.mean[i] - c.tail.mean) / math.Hypot(c.sd*h.spread, c.tail.sd))
}

// chance is the chance that any candidate meets the objective, were the best one
// of each hypothesis the only one.
func (b *belief) chance() (sum float64) {
	for _, h := range b.hypotheses {
		most := 0.0
		for i, c := range b.candidates {
			most = max(most, b.meets(c, h, i))
		}
		sum += h.weight * most
	}
	return sum
}

func (f *fast) choice() Choice {
	row, ok := f.best()
	if !ok {
		return f.book.none()
	}
	figure := f.book.goal.figure()
	c := Choice{OK: true, Row: row, LimitSMPct: doubled(row.SMPct)}
	if !f.book.goal.surely(row) {
		c.Reason = fmt.Sprintf("the best efficacy of %d configurations measured, but its p95 of %s ms is known to %s ms only, and none was surely within the objective",
			len(f.book.rows), num(row.P95MS), num(row.P95CIMS))
		return c
	}
	left := f.look().left
	c.Reason = fmt.Sprintf("the best %s of %d configurations measured; the others are expected to gain %s%% at most",
		figure, len(f.book.rows), percent(left))
	if left == 0 {
		c.Reason = fmt.Sprintf("the best %s of %d configurations measured; no other can be expected to be better", figure, len(f.book.rows))
	}
	return c
}

// percent prints a fraction as a percentage with two digits.
func percent(v float64) string { return number.Significant(100*v, 2) }
