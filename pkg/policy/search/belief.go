package search

import (
	"math"

	"github.com/gfaas/gfaas/pkg/profile"
)

// prior has the assumptions about functions before any measurement, and the conditions for the end of the
// search. Standard deviations (SD) are those of natural logarithms: 0.1 is about 10%. The values were chosen with
// one half of a set of recorded models and with synthetic functions. None of them is critical: if one is doubled or
// halved, the regret after a given number of trials changes by less than it differs between functions.
type prior struct {
	// A function's smooth deviation from its curve: size, and correlation lengths in log SM share and log batch.
	curveSD, curveScaleSM, curveScaleBatch float64
	// Each batch size's deviation, because it uses other kernels: size, and correlation length in log SM share.
	batchSD, batchScaleSM float64
	// Each SM share's deviation, because it is rounded to whole SMs, or to slices with their own memory bandwidth.
	smSD    float64
	noiseSD float64 // each measured time's deviation

	headroom, headroomSD float64 // log of the objective over the least latency: mean, SD

	// p95 relative to the execution time: SD of the part that all configurations have in common, of the smooth
	// deviation and of each measured value.
	tailSD, tailCurveSD, tailNoiseSD float64
	tailQuota, tailQuotaSD           float64 // exponent with which p95 grows as the quota falls: mean, SD

	priorWeight  float64 // weight of these SDs, as a number of measurements
	minQuotaGain float64 // a smaller quota counts as better only if its efficacy is higher by this fraction
	curves       int     // number of curves

	stopFraction float64 // the search ends when the expected gain is below this fraction of the error
	badFitTrials int     // after more trials, the search ends at half that gain: the function fits the curves badly, and their predictions are less reliable
	maxTrials    int     // once the objective is met
	minTrials    int     // before the search gives up on the objective
	minChance    float64 // the search gives up if the chance of meeting the objective is below
}

var assumed = prior{
	curveSD: 0.1, curveScaleSM: 0.7, curveScaleBatch: 1,
	batchSD: 0.05, batchScaleSM: 2,
	smSD:     0.02,
	noiseSD:  0.03,
	headroom: 0.8, headroomSD: 0.8,
	tailSD: 1, tailCurveSD: 0.03, tailNoiseSD: 0.02,
	tailQuota: 0.7, tailQuotaSD: 0.4,
	priorWeight: 4, minQuotaGain: 0.05, curves: 1024,
	stopFraction: 0.8, badFitTrials: 5, maxTrials: 10, minTrials: 5, minChance: 0.005,
}

// observation is a measurement in the form that the Gaussian processes use.
type observation struct {
	at    int // index into points
	point point
	quota float64 // log of the quota
	time  float64 // log of the execution time in ms
	tail  float64 // log of p95 over the execution time
	// Standard deviations of time and tail, from the measurement's confidence intervals; 0: unknown.
	timeSD, tailSD float64
}

// candidate is a configuration that may be measured, with its properties that do not depend on the curve.
type candidate struct {
	config         profile.Config
	at             int // index into points
	point          point
	offset         float64   // log efficacy plus log time, which is a constant
	cross          []float64 // covariances of its log time with those of the observations
	sd             float64   // of its log time, given the observations and a curve that fits as expected
	tail           normal    // log of p95 over execution time
	runProbability float64   // chance that it can run
}

// hypothesis has one curve's predictions for the candidates, given the observations.
type hypothesis struct {
	weight float64
	spread float64   // factor for the candidates' sd; above 1 for a curve that fits badly
	mean   []float64 // mean log time by candidate
	// wholeGPU is the predicted log efficacy of the smallest batch on the whole GPU.
	wholeGPU float64
}

// belief has the weighted predictions of all curves.
type belief struct {
	slo        float64 // log of the objective in ms, less a margin for the uncertainty of p95; +Inf: none
	byGoodput  bool    // gains are in goodput instead of throughput
	shift      float64 // log of the mean ratio of measured to predicted goodput
	candidates []candidate
	hypotheses []hypothesis
}

// normal is a normal distribution.
type normal struct{ mean, sd float64 }

// ciHalfWidth is half the width of a 95% confidence interval, in standard deviations.
const ciHalfWidth = 1.96

// observations returns the measurements whose throughput and p95 are known.
func (f *fast) observations() (all []observation) {
	for _, r := range f.book.rows {
		if r.ThroughputRPS <= 0 || r.P95MS <= 0 {
			continue
		}
		p := pointOf(r.Config)
		time := math.Log(1000 * p.batch * r.Quota / r.ThroughputRPS)
		p95, tailSD := r.P95MS, r.P95CIMS/r.P95MS/ciHalfWidth
		if f.book.goal.byGoodput() && r.IdleP95MS > 0 {
			p95, tailSD = r.IdleP95MS, 0
		}
		all = append(all, observation{
			at: f.index[p], point: p, quota: math.Log(r.Quota),
			time: time, timeSD: r.ThroughputCIRPS / r.ThroughputRPS / ciHalfWidth,
			tail: math.Log(p95) - time, tailSD: tailSD,
		})
	}
	return all
}

// infer weighs the curves by their likelihood, given the observations, and predicts the log times of the candidates
// under each. The deviations from a curve are a Gaussian process whose variance is unknown up to a factor, so the
// likelihood is that of a multivariate Student's t-distribution.
func (f *fast) infer(configs []profile.Config) *belief {
	b := &belief{slo: math.Inf(1), byGoodput: f.book.goal.byGoodput()}
	switch slo := f.book.goal.SLOMS; {
	case b.byGoodput:
		b.slo, b.shift = math.Log(slo), f.book.shift()
	case slo > 0:
		b.slo = math.Log(slo / (1 + f.book.uncertainty()))
	}
	all := f.observations()
	times := factor(covariance(all, func(x, y observation) float64 { return timeCov(x.point, y.point) },
		func(x observation) float64 { return math.Hypot(assumed.noiseSD, x.timeSD) }))
	f.addCandidates(b, configs, all, times)
	b.setTails(all)
	wholeGPU := f.points[f.wholeGPU]
	wholeCross := crossTime(wholeGPU, all)

	maxLog := math.Inf(-1)
	logs := make([]float64, len(f.curves)) // log likelihoods
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
		spread[k] = math.Sqrt((assumed.priorWeight + misfit) / (assumed.priorWeight + n))
		logs[k] = -(assumed.priorWeight + n) * math.Log(spread[k])
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
		h.wholeGPU = logEfficacy(wholeGPU, f.expect(b, k, f.wholeGPU)+dot(wholeCross, weights[k]))
		b.hypotheses = append(b.hypotheses, h)
	}
	for i := range b.hypotheses {
		b.hypotheses[i].weight /= sum
	}
	return b
}

// expect returns the log time that the curve with index k predicts, before any observation, for the point with
// index at. A curve is known only up to a factor. With an objective, the factor is such that the curve's least
// latency is below the objective by the expected headroom.
func (f *fast) expect(b *belief, k, at int) float64 {
	t := f.time[k][at] - f.minTime[k]
	if !math.IsInf(b.slo, 1) {
		t += b.slo - assumed.headroom
	}
	return t
}

// addCandidates adds the configurations to b as candidates, without their tails.
func (f *fast) addCandidates(b *belief, configs []profile.Config, all []observation, times cholesky) {
	for _, config := range configs {
		c := candidate{config: config, point: pointOf(config)}
		c.offset = logEfficacy(c.point, 0)
		c.at = f.index[c.point]
		c.cross = crossTime(c.point, all)
		c.runProbability = f.book.runProbability(config)
		variance := timeCov(c.point, c.point) - dot(c.cross, times.solve(c.cross))
		c.sd = math.Sqrt(max(variance, 0) + assumed.noiseSD*assumed.noiseSD)
		b.candidates = append(b.candidates, c)
	}
}

// setTails predicts the candidates' tails by a second Gaussian process, which is the same for all curves.
func (b *belief) setTails(all []observation) {
	tails := factor(covariance(all, func(x, y observation) float64 { return tailCov(x.point, x.quota, y.point, y.quota) },
		func(x observation) float64 { return math.Hypot(assumed.tailNoiseSD, x.tailSD) }))
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
		variance := tailCov(c.point, q, c.point, q) - dot(cross, tails.solve(cross))
		c.tail = normal{dot(cross, weight) - assumed.tailQuota*q, math.Sqrt(max(variance, 0) + assumed.tailNoiseSD*assumed.tailNoiseSD)}
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

// crossTime returns the covariances of the log time of a point with those of the observations.
func crossTime(p point, all []observation) []float64 {
	cross := make([]float64, len(all))
	for i, x := range all {
		cross[i] = timeCov(p, x.point)
	}
	return cross
}

// timeCov returns the covariance of the log times of two points, before any observation.
func timeCov(a, b point) float64 {
	v := square(assumed.headroomSD) + square(assumed.curveSD)*correlation(a, b)
	if a.sm == b.sm {
		v += square(assumed.smSD)
	}
	if a.batch == b.batch {
		v += square(assumed.batchSD) * math.Exp(-square(math.Log(a.sm/b.sm)/assumed.batchScaleSM)/2)
	}
	return v
}

// tailCov returns the covariance of the tails of two points at the log quotas qa and qb, before any observation.
func tailCov(a point, qa float64, b point, qb float64) float64 {
	return square(assumed.tailSD) + square(assumed.tailCurveSD)*correlation(a, b) + square(assumed.tailQuotaSD)*qa*qb
}

// correlation returns the correlation of a smooth deviation at two points: 1 at the same point, near 0 at points far
// apart.
func correlation(a, b point) float64 {
	return math.Exp(-(square(math.Log(a.sm/b.sm)/assumed.curveScaleSM) + square(math.Log(a.batch/b.batch)/assumed.curveScaleBatch)) / 2)
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

// singleAt returns a curve's single: 1 for most curves, spread around 1 for the others.
func singleAt(fraction float64) float64 {
	const differ = 0.4 // fraction of the curves
	if fraction >= differ {
		return 1
	}
	return logBetween(0.5, 1.3, fraction/differ)
}

// logBetween interpolates between low and high on a logarithmic scale.
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

// dot returns the scalar product of two vectors.
func dot(a, b []float64) (sum float64) {
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

// expectedBelow returns the expectation of from − y for y < to, and of 0 otherwise, where y is normally distributed
// and to is at most from.
func expectedBelow(from, to, mean, sd float64) float64 {
	z := (to - mean) / sd
	if z < -5 { // a probability below 3e-7
		return 0
	}
	density := math.Exp(-z*z/2) / math.Sqrt(2*math.Pi)
	return max(0, (from-mean)*cdf(z)+sd*density)
}

// cdf is the standard normal distribution function.
func cdf(z float64) float64 { return math.Erfc(-z/math.Sqrt2) / 2 }
