package search

import (
	"fmt"
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/profile"
)

// fast is a Bayesian optimization by constrained expected improvement (Jones, Schonlau and Welch 1998,
// Efficient global optimization of expensive black-box functions; Gardner et al. 2014, Bayesian
// optimization with inequality constraints).
//
// It keeps 1,024 hypotheses of how execution time depends on SM share and batch (curve), each with a smooth
// deviation of the function's own (a Gaussian process), and weighs them by how well they fit the
// measurements. The incumbent is the best measured configuration that meets the objective. fast measures
// the configuration with the largest expected gain over the incumbent, and ends when the gain expected from
// all others is below the error.
//
// Throughput is assumed to be proportional to the quota. So the efficacy of a configuration does not depend
// on the quota, but its latency does, and each SM share and batch is measured at its largest quota first. If
// rows have a confidence interval of p95, the upper end must meet the objective, unless no such
// configuration is found.
//
// If the goal is goodput, it is predicted as the part of the throughput that a queue allows (goodput.go),
// and p95 is that of single requests, which must meet the objective at any rate.
type fast struct {
	book     *book
	curves   []curve
	points   []point
	index    map[point]int
	time     [][]float64 // log time by curve and point
	minTime  []float64   // least time, by curve
	wholeGPU int         // the point with most SMs and the smallest batch
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
		if w := f.points[f.wholeGPU]; p.sm > w.sm || p.sm == w.sm && p.batch < w.batch {
			f.wholeGPU = len(f.points) - 1
		}
	}
	for _, c := range f.curves {
		times := make([]float64, len(f.points))
		for j, p := range f.points {
			times[j] = c.logTime(p)
		}
		f.time = append(f.time, times)
		if len(times) > 0 {
			f.minTime = append(f.minTime, slices.Min(times))
		}
	}
	return f
}

func pointOf(c profile.Config) point { return point{c.SMPct / 100, float64(c.Batch)} }

// candidates returns, for each SM share and batch, the largest open quota, unless a larger one was measured
// and meets the objective: a smaller quota has no better efficacy and no better latency. After a
// configuration that could not run, those with at most its SM share and at least its batch are no candidates
// as long as there are others.
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
		if !slices.ContainsFunc(f.book.failed, func(d profile.Config) bool { return c.SMPct <= d.SMPct && c.Batch >= d.Batch }) {
			alive = append(alive, c)
		}
	}
	if len(alive) == 0 {
		return all
	}
	return alive
}

func (f *fast) next() (step, bool) {
	o := f.outlook()
	if o.done {
		return f.checkQuota()
	}
	return step{o.candidate.config, o.reason}, true
}

// best returns the best row that meets the objective including its confidence interval, or else the best
// that meets it as measured.
func (f *fast) best() (row profile.Row, ok bool) {
	if row, ok = f.bestBy(f.book.goal.meetsSurely); !ok {
		row, ok = f.bestBy(f.book.goal.Meets)
	}
	return row, ok
}

// bestBy returns the best of the rows that meet the objective. Among the quotas of its SM share and batch it
// prefers the largest one whose efficacy is nearly as good, because noise can make a smaller one look better.
func (f *fast) bestBy(meets func(profile.Row) bool) (profile.Row, bool) {
	best, ok := f.book.bestBy(meets)
	worth := func(r profile.Row) float64 { return f.book.goal.ranked(r).Efficacy() }
	threshold := (1 - assumed.minQuotaGain) * worth(best)
	for _, r := range f.book.rows {
		if ok && pointOf(r.Config) == pointOf(best.Config) && r.Quota > best.Quota && meets(r) && worth(r) > threshold {
			best = r
		}
	}
	return best, ok
}

// checkQuota returns the chosen SM share and batch at about half the quota. If that has a better efficacy, the
// function does not use all of its time, and the search continues from there.
func (f *fast) checkQuota() (step, bool) {
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
	return step{half, "checks whether the throughput is proportional to the quota"}, found
}

// outlook is the expected gain of further measurements.
type outlook struct {
	done      bool
	gain      float64 // expected gain in efficacy of the best candidate, as a fraction
	candidate candidate
	reason    string
}

// outlook returns the candidate with the largest expected gain.
func (f *fast) outlook() outlook {
	configs := f.candidates()
	if len(configs) == 0 {
		return outlook{done: true}
	}
	b := f.infer(configs)
	best, met := f.bestBy(f.book.goal.meetsSurely)
	incumbent := 0.0
	if met {
		best = f.book.goal.ranked(best)
		incumbent = math.Log(best.Efficacy())
	}
	gains, gain := b.gains(incumbent, met)
	top := 0
	for i := range gains {
		if gains[i] > gains[top] {
			top = i
		}
	}
	o := outlook{gain: math.Expm1(gain), candidate: b.candidates[top]}
	chance, rps := b.outcome(top)
	switch {
	case met:
		o.done = f.converged(o.gain) || len(f.book.rows) >= assumed.maxTrials
		o.reason = fmt.Sprintf("the expected gain over %s requests/s per GPU is %s%%, and %s%% in this configuration", num(best.Efficacy()), percent(o.gain), percent(math.Expm1(gains[top])))
	default:
		_, measured := f.best()
		o.done = measured && len(f.book.rows) >= assumed.maxTrials || len(f.book.rows) >= assumed.minTrials && b.feasibilityChance() < assumed.minChance
		o.reason = "no measured configuration meets the objective yet, and this one has the largest expected gain"
	}
	o.reason += fmt.Sprintf(": about %s requests/s", num(rps*o.candidate.config.Quota))
	if !math.IsInf(b.slo, 1) {
		o.reason += fmt.Sprintf(", with a %.0f%% chance to meet the objective", 100*chance)
	}
	return o
}

// converged reports whether the remaining gain is too small for another trial.
func (f *fast) converged(gain float64) bool {
	stop := assumed.stopFraction * f.book.goal.errorLimit()
	if len(f.book.rows) > assumed.badFitTrials {
		stop /= 2
	}
	return gain < stop
}

// gains returns the log efficacy that each candidate is expected to add to the incumbent's (its expected
// improvement), and the expectation of the largest gain over the hypotheses. Without an incumbent, each hypothesis
// takes its own prediction for the whole GPU as the incumbent's efficacy.
func (b *belief) gains(incumbent float64, met bool) (each []float64, best float64) {
	each = make([]float64, len(b.candidates))
	for _, h := range b.hypotheses {
		if !met {
			incumbent = h.wholeGPU
			if b.byGoodput {
				incumbent += firstLogFraction + b.shift
			}
		}
		largest := 0.0
		for i, c := range b.candidates {
			g := b.gain(c, h, i, incumbent)
			each[i] += h.weight * g
			largest = max(largest, g)
		}
		best += h.weight * largest
	}
	return each, best
}

// gain returns the log efficacy that a candidate is expected to add to the incumbent's under one hypothesis;
// outcomes that miss the objective add nothing. It integrates over the tail with three points.
func (b *belief) gain(c candidate, h hypothesis, i int, incumbent float64) float64 {
	if b.byGoodput {
		return b.gainUnderLoad(c, h.mean[i], c.sd*h.spread, incumbent)
	}
	from := c.offset - incumbent
	at := func(x float64) float64 {
		return expectedBelow(from, min(from, b.slo-c.tail.mean-x*c.tail.sd), h.mean[i], c.sd*h.spread)
	}
	return c.runProbability * (at(0)*2/3 + (at(math.Sqrt(3))+at(-math.Sqrt(3)))/6)
}

// outcome returns the chance that a candidate meets the objective, and its expected throughput at full quota.
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

// feasibilityChance returns the chance that any candidate meets the objective, taking only the best one of
// each hypothesis into account.
func (b *belief) feasibilityChance() (sum float64) {
	for _, h := range b.hypotheses {
		largest := 0.0
		for i, c := range b.candidates {
			largest = max(largest, b.meets(c, h, i))
		}
		sum += h.weight * largest
	}
	return sum
}

func (f *fast) choice() Choice {
	row, ok := f.best()
	if !ok {
		return f.book.noChoice()
	}
	figure := f.book.goal.metricName()
	c := inferenceChoice(row, "")
	if !f.book.goal.meetsSurely(row) {
		c.Reason = fmt.Sprintf("the best efficacy of %d measured configurations, but the precision of its p95 of %s ms is only %s ms, and no configuration is within the objective with certainty",
			len(f.book.rows), num(row.P95MS), num(row.P95CIMS))
		return c
	}
	gain := f.outlook().gain
	c.Reason = fmt.Sprintf("the best %s of %d measured configurations; the expected gain of any other is at most %s%%",
		figure, len(f.book.rows), percent(gain))
	if gain == 0 {
		c.Reason = fmt.Sprintf("the best %s of %d measured configurations; no other is expected to be better", figure, len(f.book.rows))
	}
	return c
}

// percent formats a fraction as a percentage with two digits.
func percent(v float64) string { return number.Significant(100*v, 2) }
