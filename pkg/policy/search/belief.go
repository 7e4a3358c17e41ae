package search

import (
	"math"

	"github.com/gfaas/gfaas/pkg/profile"
)

// prior is what functions are taken to be like before one is measured, and
// when to stop. Sizes are standard deviations of natural logarithms: 0.1 is
// about 10%. They were chosen on one half of a set of recorded models and on
// made-up functions; none of them matters much: half or twice as much of any
// changes the regret after as many trials by less than other functions do.
type prior struct {
	bend, bendSM, bendBatch   float64 // a function's deviation from its curve: size, and how far apart in log SM share and log batch it changes
	own, ownSM                float64 // each batch size's own deviation (it runs kernels of its own): size, length in log SM share
	grain                     float64 // each SM share's own deviation: it is rounded to whole SMs, or to slices with memory bandwidth of their own
	noise                     float64 // each time's own deviation
	room, roomSize            float64 // the objective over the least latency: mean, size
	tail, tailBend, tailNoise float64 // p95 over execution time: size as a whole, smooth deviation, own deviation
	tailQuota, tailQuotaSize  float64 // p95 grows as the quota to minus this power: mean, size
	trust                     float64 // the sizes count as if they had been measured so often
	idle                      float64 // a smaller quota must be so much better in efficacy to count as better
	curves                    int     // how many are weighed against each other
	stop                      float64 // part of the error that may still be expected to be gained
	settled                   int     // after so many trials half of that: what is open then fits the curves badly, and its expectations are worth less
	trials                    int     // at most, once the objective is met
	hopeTrials                int     // at least, before the objective is given up
	hope                      float64 // chance of meeting the objective below which it is
}

var usual = prior{
	bend: 0.1, bendSM: 0.7, bendBatch: 1,
	own: 0.05, ownSM: 2,
	grain: 0.02,
	noise: 0.03,
	room:  0.8, roomSize: 0.8,
	tail: 1, tailBend: 0.03, tailNoise: 0.02,
	tailQuota: 0.7, tailQuotaSize: 0.4,
	trust: 4, idle: 0.05, curves: 1024,
	stop: 0.8, settled: 5, trials: 10, hopeTrials: 5, hope: 0.005,
}

// seen is one measurement.
type seen struct {
	at    int // of points
	point point
	quota float64 // log
	time  float64 // log of the execution time in ms
	tail  float64 // log of p95 over it
	// Standard deviations that the measurement states itself; 0 is not known.
	timeSD, p95SD float64
}

// candidate is a configuration that may be measured, and what is thought of it
// whichever curve is right.
type candidate struct {
	config profile.Config
	at     int // of points
	point  point
	cross  []float64 // covariance of its log time with each of the seen
	sd     float64   // of its log time, under each curve
	tail   normal    // log of p95 over execution time
	runs   float64   // chance that it runs at all
}

// idea is what one curve says of the candidates, given what was seen.
type idea struct {
	weight float64
	spread float64   // times the candidates' sd: more than 1 for a curve that fits badly
	mean   []float64 // log time by candidate
	whole  float64   // log efficacy of the smallest batch on the whole GPU
}

// belief is what the measurements make of the curves.
type belief struct {
	slo        float64 // log ms, less the margin; +Inf without
	candidates []candidate
	ideas      []idea
}

// normal is a normal distribution.
type normal struct{ mean, sd float64 }

// widths is half the width of a 95% confidence interval in standard deviations.
const widths = 1.96

func (f *fast) seen() (all []seen) {
	for _, r := range f.book.rows {
		if r.ThroughputRPS <= 0 || r.P95MS <= 0 {
			continue
		}
		p := pointOf(r.Config)
		time := math.Log(1000 * p.batch * r.Quota / r.ThroughputRPS)
		all = append(all, seen{f.index[p], p, math.Log(r.Quota), time, math.Log(r.P95MS) - time,
			r.ThroughputCIRPS / r.ThroughputRPS / widths, r.P95CIMS / r.P95MS / widths})
	}
	return all
}

// believe weighs the curves by what was seen and says what each expects of the
// candidates.
func (f *fast) believe(configs []profile.Config) *belief {
	b := &belief{slo: math.Inf(1)}
	if f.book.goal.SLOMS > 0 {
		b.slo = math.Log(f.book.goal.SLOMS / (1 + f.book.uncertainty()))
	}
	all := f.seen()
	times := factor(covariance(all, func(x, y seen) float64 { return timeCov(x.point, y.point) },
		func(x seen) float64 { return math.Hypot(usual.noise, x.timeSD) }))
	f.place(b, configs, all, times)
	f.tails(b, all)
	wide := candidate{at: f.wide, point: f.points[f.wide]}
	wide.cross = crossTime(wide.point, all)

	most := math.Inf(-1)
	logs := make([]float64, len(f.curves))
	pulls := make([][]float64, len(f.curves))
	spread := make([]float64, len(f.curves))
	n := float64(len(all))
	rest := make([]float64, len(all))
	for k := range f.curves {
		for i, x := range all {
			rest[i] = x.time - f.expect(b, k, x.at)
		}
		pulls[k] = times.solve(rest)
		misfit := dot(rest, pulls[k])
		spread[k] = math.Sqrt((usual.trust + misfit) / (usual.trust + n))
		logs[k] = -(usual.trust + n) * math.Log(spread[k])
		most = max(most, logs[k])
	}
	sum := 0.0
	for k, log := range logs {
		const negligible = 1e-3
		w := math.Exp(log - most)
		if w < negligible {
			continue
		}
		sum += w
		one := idea{weight: w, spread: spread[k], mean: make([]float64, len(b.candidates))}
		for i, c := range b.candidates {
			one.mean[i] = f.expect(b, k, c.at) + dot(c.cross, pulls[k])
		}
		one.whole = logEfficacy(wide.point, f.expect(b, k, wide.at)+dot(wide.cross, pulls[k]))
		b.ideas = append(b.ideas, one)
	}
	for i := range b.ideas {
		b.ideas[i].weight /= sum
	}
	return b
}

// expect is the log time of a point under a curve before anything is seen: the
// objective is expected to leave some room over the fastest configuration.
func (f *fast) expect(b *belief, k, at int) float64 {
	t := f.time[k][at] - f.least[k]
	if !math.IsInf(b.slo, 1) {
		t += b.slo - usual.room
	}
	return t
}

// place fills in the candidates' log times.
func (f *fast) place(b *belief, configs []profile.Config, all []seen, times cholesky) {
	for _, config := range configs {
		c := candidate{config: config, point: pointOf(config)}
		c.at = f.index[c.point]
		c.cross = crossTime(c.point, all)
		c.runs = f.book.runs(config)
		left := timeCov(c.point, c.point) - dot(c.cross, times.solve(c.cross))
		c.sd = math.Sqrt(max(left, 0) + usual.noise*usual.noise)
		b.candidates = append(b.candidates, c)
	}
}

// tails fills in the candidates' tails.
func (f *fast) tails(b *belief, all []seen) {
	tails := factor(covariance(all, func(x, y seen) float64 { return tailCov(x.point, x.quota, y.point, y.quota) },
		func(x seen) float64 { return math.Hypot(usual.tailNoise, x.p95SD) }))
	rest := make([]float64, len(all))
	for i, x := range all {
		rest[i] = x.tail + usual.tailQuota*x.quota
	}
	pull := tails.solve(rest)
	cross := make([]float64, len(all))
	for i := range b.candidates {
		c := &b.candidates[i]
		q := math.Log(c.config.Quota)
		for j, x := range all {
			cross[j] = tailCov(c.point, q, x.point, x.quota)
		}
		left := tailCov(c.point, q, c.point, q) - dot(cross, tails.solve(cross))
		c.tail = normal{dot(cross, pull) - usual.tailQuota*q, math.Sqrt(max(left, 0) + usual.tailNoise*usual.tailNoise)}
	}
}

// covariance is the matrix of what was seen, noise on the diagonal.
func covariance(all []seen, of func(x, y seen) float64, noise func(x seen) float64) [][]float64 {
	a := make([][]float64, len(all))
	for i, x := range all {
		a[i] = make([]float64, len(all))
		for j, y := range all {
			a[i][j] = of(x, y)
		}
		a[i][i] += square(noise(x))
	}
	return a
}

func crossTime(p point, all []seen) []float64 {
	cross := make([]float64, len(all))
	for i, x := range all {
		cross[i] = timeCov(p, x.point)
	}
	return cross
}

func timeCov(a, b point) float64 {
	v := square(usual.roomSize) + square(usual.bend)*like(a, b)
	if a.sm == b.sm {
		v += square(usual.grain)
	}
	if a.batch == b.batch {
		v += square(usual.own) * math.Exp(-square(math.Log(a.sm/b.sm)/usual.ownSM)/2)
	}
	return v
}

func tailCov(a point, qa float64, b point, qb float64) float64 {
	return square(usual.tail) + square(usual.tailBend)*like(a, b) + square(usual.tailQuotaSize)*qa*qb
}

// like is how alike two points are: 1 for the same, 0 for far apart.
func like(a, b point) float64 {
	return math.Exp(-(square(math.Log(a.sm/b.sm)/usual.bendSM) + square(math.Log(a.batch/b.batch)/usual.bendBatch)) / 2)
}

func square(x float64) float64 { return x * x }

// logEfficacy is the log of requests a second per whole GPU where an execution
// takes so long (log ms) at full quota. It is its own inverse: the time at
// which the efficacy is so much.
func logEfficacy(p point, logTime float64) float64 {
	return math.Log(1000*p.batch/p.sm) - logTime
}
