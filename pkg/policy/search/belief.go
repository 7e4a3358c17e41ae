package search

import (
	"math"

	"github.com/gfaas/gfaas/pkg/profile"
)

// prior has the assumptions about functions before any measurement, and the conditions for the end of the
// search. Sizes are standard deviations of natural logarithms: 0.1 is about 10%. The values were chosen with one
// half of a set of recorded models and with synthetic functions. None of them is critical: doubling or halving
// any of them changes the regret after the same number of trials by less than functions differ.
type prior struct {
	bend, bendSM, bendBatch   float64 // a function's deviation from its curve: size, and length in log SM share and log batch
	own, ownSM                float64 // each batch size's own deviation (it uses other kernels): size, length in log SM share
	grain                     float64 // each SM share's own deviation: it is rounded to whole SMs, or to slices with their own memory bandwidth
	noise                     float64 // each measured time's own deviation
	headroom, headroomSize    float64 // the objective relative to the least latency: mean, size
	tail, tailBend, tailNoise float64 // p95 relative to execution time: size of the common part, smooth deviation, own deviation
	tailQuota, tailQuotaSize  float64 // exponent with which p95 grows as the quota falls: mean, size
	trust                     float64 // weight of these sizes, in measurements
	idle                      float64 // a smaller quota counts as better if its efficacy is better by this fraction
	curves                    int     // number of curves
	stop                      float64 // fraction of the error that may still be gained when the search ends
	badFitTrials              int     // after this many trials, half of stop: the function fits the curves badly, and their expectations are less reliable
	trials                    int     // most trials once the objective is met
	hopeTrials                int     // fewest trials before the search gives up on the objective
	hope                      float64 // chance of meeting the objective below which it gives up
}

var assumed = prior{
	bend: 0.1, bendSM: 0.7, bendBatch: 1,
	own: 0.05, ownSM: 2,
	grain:    0.02,
	noise:    0.03,
	headroom: 0.8, headroomSize: 0.8,
	tail: 1, tailBend: 0.03, tailNoise: 0.02,
	tailQuota: 0.7, tailQuotaSize: 0.4,
	trust: 4, idle: 0.05, curves: 1024,
	stop: 0.8, badFitTrials: 5, trials: 10, hopeTrials: 5, hope: 0.005,
}

// observation is a measurement, as used by the Gaussian process.
type observation struct {
	at    int // index into points
	point point
	quota float64 // log of the quota
	time  float64 // log of the execution time in ms
	tail  float64 // log of p95 over the execution time
	// Standard deviations that the measurement states; 0: unknown.
	timeSD, p95SD float64
}

// candidate is a configuration that may be measured, with its properties that do not depend on the curve.
type candidate struct {
	config         profile.Config
	at             int // index into points
	point          point
	unit           float64   // logEfficacy at a log time of 0
	cross          []float64 // covariance of its log time with each observation
	sd             float64   // of its log time, under each curve
	tail           normal    // log of p95 over execution time
	runProbability float64   // chance that it can run
}

// hypothesis has one curve's predictions for the candidates, given the observations.
type hypothesis struct {
	weight float64
	spread float64   // factor for the candidates' sd; above 1 for a curve that fits badly
	mean   []float64 // log time by candidate
	whole  float64   // log efficacy of the smallest batch on the whole GPU
}

// belief has the weighted predictions of all curves.
type belief struct {
	slo        float64 // log of the objective in ms minus the margin; +Inf: none
	queue      bool    // goodput is compared instead of throughput
	shift      float64 // log of the ratio of goodput to its prediction
	candidates []candidate
	hypotheses []hypothesis
}

// normal is a normal distribution.
type normal struct{ mean, sd float64 }

// widths is half the width of a 95% confidence interval in standard deviations.
const widths = 1.96

func (f *fast) observations() (all []observation) {
	for _, r := range f.book.rows {
		if r.ThroughputRPS <= 0 || r.P95MS <= 0 {
			continue
		}
		p := pointOf(r.Config)
		time := math.Log(1000 * p.batch * r.Quota / r.ThroughputRPS)
		p95, p95SD := r.P95MS, r.P95CIMS/r.P95MS/widths
		if f.book.goal.byGoodput() && r.IdleP95MS > 0 {
			p95, p95SD = r.IdleP95MS, 0
		}
		all = append(all, observation{f.index[p], p, math.Log(r.Quota), time, math.Log(p95) - time,
			r.ThroughputCIRPS / r.ThroughputRPS / widths, p95SD})
	}
	return all
}

// infer weighs the curves by the observations and computes their predictions for the candidates. It uses a
// Gaussian process of unknown size around each curve, so the likelihood of a curve is a Student's t.
func (f *fast) infer(configs []profile.Config) *belief {
	b := &belief{slo: math.Inf(1)}
	if f.book.goal.SLOMS > 0 {
		b.slo = math.Log(f.book.goal.SLOMS / (1 + f.book.uncertainty()))
	}
	if f.book.goal.byGoodput() {
		b.slo, b.queue = math.Log(f.book.goal.SLOMS), true
		b.shift = f.book.shift()
	}
	all := f.observations()
	times := factor(covariance(all, func(x, y observation) float64 { return timeCov(x.point, y.point) },
		func(x observation) float64 { return math.Hypot(assumed.noise, x.timeSD) }))
	f.addCandidates(b, configs, all, times)
	f.setTails(b, all)
	whole := candidate{at: f.wholeGPU, point: f.points[f.wholeGPU]}
	whole.cross = crossTime(whole.point, all)

	maxLog := math.Inf(-1)
	logs := make([]float64, len(f.curves))
	weights := make([][]float64, len(f.curves))
	spread := make([]float64, len(f.curves))
	n := float64(len(all))
	residuals := make([]float64, len(all))
	for k := range f.curves {
		for i, x := range all {
			residuals[i] = x.time - f.expect(b, k, x.at)
		}
		weights[k] = times.solve(residuals)
		misfit := dot(residuals, weights[k])
		spread[k] = math.Sqrt((assumed.trust + misfit) / (assumed.trust + n))
		logs[k] = -(assumed.trust + n) * math.Log(spread[k])
		maxLog = max(maxLog, logs[k])
	}
	sum := 0.0
	for k, log := range logs {
		const negligible = 1e-3
		w := math.Exp(log - maxLog)
		if w < negligible {
			continue
		}
		sum += w
		h := hypothesis{weight: w, spread: spread[k], mean: make([]float64, len(b.candidates))}
		for i, c := range b.candidates {
			h.mean[i] = f.expect(b, k, c.at) + dot(c.cross, weights[k])
		}
		h.whole = logEfficacy(whole.point, f.expect(b, k, whole.at)+dot(whole.cross, weights[k]))
		b.hypotheses = append(b.hypotheses, h)
	}
	for i := range b.hypotheses {
		b.hypotheses[i].weight /= sum
	}
	return b
}

// expect returns the log time of a point under a curve before any observation. The objective is expected to
// leave some room over the fastest configuration.
func (f *fast) expect(b *belief, k, at int) float64 {
	t := f.time[k][at] - f.minTime[k]
	if !math.IsInf(b.slo, 1) {
		t += b.slo - assumed.headroom
	}
	return t
}

// addCandidates adds the candidates, with the properties of their log times.
func (f *fast) addCandidates(b *belief, configs []profile.Config, all []observation, times cholesky) {
	for _, config := range configs {
		c := candidate{config: config, point: pointOf(config)}
		c.unit = logEfficacy(c.point, 0)
		c.at = f.index[c.point]
		c.cross = crossTime(c.point, all)
		c.runProbability = f.book.runProbability(config)
		residual := timeCov(c.point, c.point) - dot(c.cross, times.solve(c.cross))
		c.sd = math.Sqrt(max(residual, 0) + assumed.noise*assumed.noise)
		b.candidates = append(b.candidates, c)
	}
}

// setTails sets the candidates' tails.
func (f *fast) setTails(b *belief, all []observation) {
	tails := factor(covariance(all, func(x, y observation) float64 { return tailCov(x.point, x.quota, y.point, y.quota) },
		func(x observation) float64 { return math.Hypot(assumed.tailNoise, x.p95SD) }))
	residuals := make([]float64, len(all))
	for i, x := range all {
		residuals[i] = x.tail + assumed.tailQuota*x.quota
	}
	weight := tails.solve(residuals)
	cross := make([]float64, len(all))
	for i := range b.candidates {
		c := &b.candidates[i]
		q := math.Log(c.config.Quota)
		for j, x := range all {
			cross[j] = tailCov(c.point, q, x.point, x.quota)
		}
		residual := tailCov(c.point, q, c.point, q) - dot(cross, tails.solve(cross))
		c.tail = normal{dot(cross, weight) - assumed.tailQuota*q, math.Sqrt(max(residual, 0) + assumed.tailNoise*assumed.tailNoise)}
	}
}

// covariance returns the covariance matrix of the observations, with the noise on its diagonal.
func covariance(all []observation, of func(x, y observation) float64, noise func(x observation) float64) [][]float64 {
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

func crossTime(p point, all []observation) []float64 {
	cross := make([]float64, len(all))
	for i, x := range all {
		cross[i] = timeCov(p, x.point)
	}
	return cross
}

func timeCov(a, b point) float64 {
	v := square(assumed.headroomSize) + square(assumed.bend)*correlation(a, b)
	if a.sm == b.sm {
		v += square(assumed.grain)
	}
	if a.batch == b.batch {
		v += square(assumed.own) * math.Exp(-square(math.Log(a.sm/b.sm)/assumed.ownSM)/2)
	}
	return v
}

func tailCov(a point, qa float64, b point, qb float64) float64 {
	return square(assumed.tail) + square(assumed.tailBend)*correlation(a, b) + square(assumed.tailQuotaSize)*qa*qb
}

// correlation returns how similar two points are: 1 for the same point, 0 for points far apart.
func correlation(a, b point) float64 {
	return math.Exp(-(square(math.Log(a.sm/b.sm)/assumed.bendSM) + square(math.Log(a.batch/b.batch)/assumed.bendBatch)) / 2)
}

func square(x float64) float64 { return x * x }

// logEfficacy returns the log of the requests per second per whole GPU, given the log of the execution time in ms
// at full quota. It is its own inverse: given a log efficacy, it returns the log time.
func logEfficacy(p point, logTime float64) float64 {
	return math.Log(1000*p.batch/p.sm) - logTime
}

// point is an SM share and a batch size. The execution time depends on both, but not on the quota.
type point struct {
	sm    float64 // fraction of the GPU
	batch float64
}

// curve is a model of how a function's execution time depends on the SM share s and the batch b, up to a factor:
//
//	t(b, s) = |floor, serial·b + (fixed + b)/s|
//
// |x, y| is the norm of order sharp of the two values. For a batch of one, the second value is multiplied by
// single. floor is the time of launches and waits, independent of the amount of work. fixed is the part of the
// divisible work that does not grow with the batch. serial is the part of each request that more SMs do not speed
// up. single is below 1 for functions whose libraries use other kernels for a single request, which may be twice
// as fast.
type curve struct {
	floor, fixed, serial float64
	sharp                float64
	single               float64
}

// logTime returns the log of t(b, s).
func (c curve) logTime(p point) float64 {
	work := c.serial*p.batch + (c.fixed+p.batch)/p.sm
	if p.batch == 1 {
		work *= c.single
	}
	hi, lo := max(work, c.floor), min(work, c.floor)
	return math.Log(hi) + math.Log1p(math.Pow(lo/hi, c.sharp))/c.sharp
}

// priorCurves returns curves that are evenly spread over the range of known functions; they are the same for every
// function.
func priorCurves() []curve {
	curves := make([]curve, assumed.curves)
	for i := range curves {
		n := i + 1
		fixed := logBetween(0.02, 3, halton(n, 3))
		// The SM share at which the divisible work of one request takes as long as the floor: 0.5%
		// for a function that only launches, 300% for one that keeps a whole GPU busy.
		knee := logBetween(0.005, 3, halton(n, 2))
		curves[i] = curve{
			floor:  (1 + fixed) / knee,
			fixed:  fixed,
			serial: logBetween(0.01, 2, halton(n, 5)),
			sharp:  logBetween(2, 8, halton(n, 7)),
			single: singleAt(halton(n, 11)),
		}
	}
	return curves
}

// singleAt spreads single over a part of the curves; for the others it is 1.
func singleAt(fraction float64) float64 {
	const odd = 0.4
	if fraction >= odd {
		return 1
	}
	return logBetween(0.5, 1.3, fraction/odd)
}

func logBetween(low, high, fraction float64) float64 { return low * math.Pow(high/low, fraction) }

// halton returns the nth number of the Halton sequence of a base. The numbers are evenly spread in (0, 1), and
// sequences of different prime bases are independent.
func halton(n, base int) float64 {
	sum, fraction := 0.0, 1.0
	for ; n > 0; n /= base {
		fraction /= float64(base)
		sum += fraction * float64(n%base)
	}
	return sum
}

// cholesky is the lower triangle L of a positive definite matrix A = L·Lᵀ.
type cholesky [][]float64

// factor returns the Cholesky decomposition of a symmetric matrix whose diagonal makes it positive definite.
func factor(a [][]float64) cholesky {
	l := make(cholesky, len(a))
	for i := range a {
		l[i] = make([]float64, i+1)
		for j := range i + 1 {
			sum := a[i][j]
			for k := range j {
				sum -= l[i][k] * l[j][k]
			}
			if i == j {
				l[i][i] = math.Sqrt(max(sum, 1e-12))
			} else {
				l[i][j] = sum / l[j][j]
			}
		}
	}
	return l
}

// solve returns A⁻¹·y.
func (l cholesky) solve(y []float64) []float64 {
	x := make([]float64, len(y))
	for i := range y {
		sum := y[i]
		for k := range i {
			sum -= l[i][k] * x[k]
		}
		x[i] = sum / l[i][i]
	}
	for i := len(y) - 1; i >= 0; i-- {
		sum := x[i]
		for k := i + 1; k < len(y); k++ {
			sum -= l[k][i] * x[k]
		}
		x[i] = sum / l[i][i]
	}
	return x
}

func dot(a, b []float64) (sum float64) {
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

// expectedBelow returns the mean of (from − y), counted only for y < to, for a normal y. It is not negative if
// to <= from.
func expectedBelow(from, to, mean, sd float64) float64 {
	z := (to - mean) / sd
	if z < -5 { // less than a ten-millionth
		return 0
	}
	density := math.Exp(-z*z/2) / math.Sqrt(2*math.Pi)
	return max(0, (from-mean)*cdf(z)+sd*density)
}

// cdf is the standard normal distribution function.
func cdf(z float64) float64 { return math.Erfc(-z/math.Sqrt2) / 2 }
