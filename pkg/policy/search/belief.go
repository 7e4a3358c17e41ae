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

var assumed = prior{
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

// observation is one measurement.
type observation struct {
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
	unit   float64   // logEfficacy at a log time of 0
	cross  []float64 // covariance of its log time with each of the seen
	sd     float64   // of its log time, under each curve
	tail   normal    // log of p95 over execution time
	runs   float64   // chance that it runs at all
}

// hypothesis is what one curve says of the candidates, given what was seen.
type hypothesis struct {
	weight float64
	spread float64   // times the candidates' sd: more than 1 for a curve that fits badly
	mean   []float64 // log time by candidate
	whole  float64   // log efficacy of the smallest batch on the whole GPU
}

// belief is what the measurements make of the curves.
type belief struct {
	slo        float64 // log ms, less the margin; +Inf without
	queue      bool    // the goodput counts, not the throughput
	shift      float64 // log of the goodput over what a queue leaves of the throughput
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

// believe weighs the curves by what was seen and says what each expects of the
// candidates: a Gaussian process around each curve, its size unknown (so that
// the curve's likelihood is a Student t's).
func (f *fast) believe(configs []profile.Config) *belief {
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
	f.tails(b, all)
	whole := candidate{at: f.whole, point: f.points[f.whole]}
	whole.cross = crossTime(whole.point, all)

	most := math.Inf(-1)
	logs := make([]float64, len(f.curves))
	weights := make([][]float64, len(f.curves))
	spread := make([]float64, len(f.curves))
	n := float64(len(all))
	rest := make([]float64, len(all))
	for k := range f.curves {
		for i, x := range all {
			rest[i] = x.time - f.expect(b, k, x.at)
		}
		weights[k] = times.solve(rest)
		misfit := dot(rest, weights[k])
		spread[k] = math.Sqrt((assumed.trust + misfit) / (assumed.trust + n))
		logs[k] = -(assumed.trust + n) * math.Log(spread[k])
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

// expect is the log time of a point under a curve before anything is seen: the
// objective is expected to leave some room over the fastest configuration.
func (f *fast) expect(b *belief, k, at int) float64 {
	t := f.time[k][at] - f.least[k]
	if !math.IsInf(b.slo, 1) {
		t += b.slo - assumed.room
	}
	return t
}

// addCandidates fills in the candidates' log times.
func (f *fast) addCandidates(b *belief, configs []profile.Config, all []observation, times cholesky) {
	for _, config := range configs {
		c := candidate{config: config, point: pointOf(config)}
		c.unit = logEfficacy(c.point, 0)
		c.at = f.index[c.point]
		c.cross = crossTime(c.point, all)
		c.runs = f.book.runs(config)
		left := timeCov(c.point, c.point) - dot(c.cross, times.solve(c.cross))
		c.sd = math.Sqrt(max(left, 0) + assumed.noise*assumed.noise)
		b.candidates = append(b.candidates, c)
	}
}

// tails fills in the candidates' tails.
func (f *fast) tails(b *belief, all []observation) {
	tails := factor(covariance(all, func(x, y observation) float64 { return tailCov(x.point, x.quota, y.point, y.quota) },
		func(x observation) float64 { return math.Hypot(assumed.tailNoise, x.p95SD) }))
	rest := make([]float64, len(all))
	for i, x := range all {
		rest[i] = x.tail + assumed.tailQuota*x.quota
	}
	weight := tails.solve(rest)
	cross := make([]float64, len(all))
	for i := range b.candidates {
		c := &b.candidates[i]
		q := math.Log(c.config.Quota)
		for j, x := range all {
			cross[j] = tailCov(c.point, q, x.point, x.quota)
		}
		left := tailCov(c.point, q, c.point, q) - dot(cross, tails.solve(cross))
		c.tail = normal{dot(cross, weight) - assumed.tailQuota*q, math.Sqrt(max(left, 0) + assumed.tailNoise*assumed.tailNoise)}
	}
}

// covariance is the matrix of what was seen, noise on the diagonal.
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
	v := square(assumed.roomSize) + square(assumed.bend)*correlation(a, b)
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

// correlation is how alike two points are: 1 for the same, 0 for far apart.
func correlation(a, b point) float64 {
	return math.Exp(-(square(math.Log(a.sm/b.sm)/assumed.bendSM) + square(math.Log(a.batch/b.batch)/assumed.bendBatch)) / 2)
}

func square(x float64) float64 { return x * x }

// logEfficacy is the log of requests a second per whole GPU where an execution
// takes so long (log ms) at full quota. It is its own inverse: the time at
// which the efficacy is so much.
func logEfficacy(p point, logTime float64) float64 {
	return math.Log(1000*p.batch/p.sm) - logTime
}

// point is a place where the time of a function is asked: an SM share and a
// batch size. Quotas divide time, they do not change it.
type point struct {
	sm    float64 // fraction of the GPU
	batch float64
}

// curve is one way in which the execution time of a function may depend on the
// SM share s and the batch b, up to a factor:
//
//	t(b, s) = |floor, serial·b + (fixed + b)/s|
//
// where |x, y| is the sharp-norm of the two, and what follows the floor is
// multiplied by single for a batch of one. The floor is what launching and
// waiting take however little there is to compute; fixed is the part of the
// divisible work that does not grow with the batch; serial is the part of each
// request that more SMs do not speed up. A single request has single of its
// work: libraries run other kernels for it, which may be twice as fast.
type curve struct {
	floor, fixed, serial float64
	sharp                float64
	single               float64
}

// logTime is the logarithm of t(b, s).
func (c curve) logTime(p point) float64 {
	work := c.serial*p.batch + (c.fixed+p.batch)/p.sm
	if p.batch == 1 {
		work *= c.single
	}
	hi, lo := max(work, c.floor), min(work, c.floor)
	return math.Log(hi) + math.Log1p(math.Pow(lo/hi, c.sharp))/c.sharp
}

// priorCurves are curves spread evenly over what functions are like, before any
// of them is measured: the same ones for every function.
func priorCurves() []curve {
	curves := make([]curve, assumed.curves)
	for i := range curves {
		n := i + 1
		fixed := logBetween(0.02, 3, halton(n, 3))
		// The SM share at which the divisible work of one request takes as
		// long as the floor: 1% for a function that only launches, 300% for
		// one that keeps a whole GPU busy.
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

// singleAt spreads single over part of the curves; in the others it is 1.
func singleAt(part float64) float64 {
	const odd = 0.4
	if part >= odd {
		return 1
	}
	return logBetween(0.5, 1.3, part/odd)
}

func logBetween(low, high, part float64) float64 { return low * math.Pow(high/low, part) }

// halton is the n-th number of the Halton sequence of a base: evenly spread in
// (0, 1), with no structure shared by different prime bases.
func halton(n, base int) float64 {
	sum, part := 0.0, 1.0
	for ; n > 0; n /= base {
		part /= float64(base)
		sum += part * float64(n%base)
	}
	return sum
}

// cholesky is the lower triangle L of a positive definite matrix A = L·Lᵀ.
type cholesky [][]float64

// factor decomposes a symmetric matrix whose diagonal keeps it positive
// definite.
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

// solve is A⁻¹·y.
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

// expectedBelow is the mean of (from − y), counted only where y < to, for a normal y.
// It is never negative when to <= from.
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
