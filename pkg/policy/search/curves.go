package search

import "math"

// point is a place where the time of a function is asked: an SM share and a
// batch size. Quotas divide time, they do not change it.
type point struct {
	sm    float64 // fraction of the GPU
	batch float64
}

// curve is one idea of how the execution time of a function depends on the SM
// share s and the batch b, up to a factor:
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

// priorCurves are ideas spread evenly over what functions are like, before any
// of them is measured: the same ones for every function.
func priorCurves() []curve {
	curves := make([]curve, usual.curves)
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
