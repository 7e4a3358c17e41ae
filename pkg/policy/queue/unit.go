package queue

import "math"

// unit is how execution over weight is counted: so many to a nanosecond that
// what any invocation adds is a whole number. Sums of whole numbers are exact, so
// that equal times tie whatever the weights are and however they came about;
// thirds of a nanosecond, say, would not. It is settled when the first invocation
// goes; functions that come later may have theirs rounded to it. 0 is a
// nanosecond with thirds.
type unit float64

// with is the least unit for one more weight, which is a decimal. A nanosecond
// will do where there is none within reason: sums are rounded then.
func (u unit) with(weight float64) unit {
	if u == 0 {
		return 0
	}
	p, least := numerator(weight), int64(u)
	if p == 0 || p/gcd(p, least) > mostUnits/least {
		return 0
	}
	return unit(least * (p / gcd(p, least)))
}

// mostUnits is where to stop looking. With a unit this small long sums are beyond
// the whole numbers of a float64, and rounded as thirds would be.
const mostUnits = 1 << 40

// numerator is p of a weight p/q in lowest terms, where q divides a power of
// ten; 0 when that is beyond reason.
func numerator(weight float64) int64 {
	for q := int64(1); q <= 1e9; q *= 10 {
		p := math.Round(weight * float64(q))
		if p > mostUnits {
			break
		}
		if p > 0 && p/float64(q) == weight {
			return int64(p) / gcd(int64(p), q)
		}
	}
	return 0
}

func gcd(a, b int64) int64 {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// over is a time in ns over a weight.
func (u unit) over(ns, weight float64) float64 {
	if u <= 1 {
		return ns / weight
	}
	return math.Round(ns * float64(u) / weight)
}

// of is so much time in ns.
func (u unit) of(ns float64) float64 { return ns * float64(max(u, 1)) }

// ms tells a time in ms.
func (u unit) ms(v float64) float64 { return v / float64(max(u, 1)) / 1e6 }
