package queue

import "math"

// unit is the scale of virtual times: the number of units in a nanosecond. It is chosen so that
// the execution time of any invocation over its weight is a whole number. Sums of whole numbers
// are exact, so equal times tie regardless of the weights and of the order of the additions,
// which would not hold for thirds of a nanosecond, for example. The first dispatch fixes the
// unit; times of functions that are added later may be rounded to it. 0 means that no such unit
// was found: one unit is then a nanosecond, with fractions.
type unit float64

// withWeight returns the smallest unit that also suits one more weight, which is a decimal number.
// It returns 0 if that unit would exceed maxUnits; sums are then rounded.
func (u unit) withWeight(weight float64) unit {
	if u == 0 {
		return 0
	}
	p, least := numerator(weight), int64(u)
	if p == 0 || p/gcd(p, least) > maxUnits/least {
		return 0
	}
	return unit(least * (p / gcd(p, least)))
}

// maxUnits is the largest unit. With larger ones, long sums would exceed the whole numbers that
// a float64 represents exactly, and be rounded as well.
const maxUnits = 1 << 40

// numerator returns p for a weight p/q in lowest terms, where q divides a power of ten. It
// returns 0 if p exceeds maxUnits or q exceeds 1e9.
func numerator(weight float64) int64 {
	for q := int64(1); q <= 1e9; q *= 10 {
		p := math.Round(weight * float64(q))
		if p > maxUnits {
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

// perWeight converts a time in nanoseconds, divided by a weight, to units.
func (u unit) perWeight(ns, weight float64) float64 {
	if u <= 1 {
		return ns / weight
	}
	return math.Round(ns * float64(u) / weight)
}

// fromNS converts nanoseconds to units.
func (u unit) fromNS(ns float64) float64 { return ns * float64(max(u, 1)) }

// ms converts units to milliseconds.
func (u unit) ms(v float64) float64 { return v / float64(max(u, 1)) / 1e6 }
