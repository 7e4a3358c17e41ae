// Package splitmix implements the random number generator SplitMix64 (Steele, Lea and Flood 2014,
// Fast splittable pseudorandom number generators). A seed gives the same results on every host and
// with every version of Go, whereas the distributions of math/rand/v2 may change. Values that
// should differ each time, such as ports, use math/rand/v2.
//
// The traces of pkg/sim/workload are compared with published figures, so they keep the generator
// PCG with which they were first drawn.
package splitmix

import "math"

// Source is a sequence of random numbers. Its initial value is the seed; later it is the state.
type Source uint64

// Uint64 returns the next number.
func (s *Source) Uint64() uint64 {
	*s += 0x9e3779b97f4a7c15
	return Mix(uint64(*s))
}

// Below returns a number from 0 to n-1, for n above 0 and far below 2^64.
func (s *Source) Below(n int) int { return int(s.Uint64() % uint64(n)) }

// Unit returns a number in [0, 1).
func (s *Source) Unit() float64 { return float64(s.Uint64()>>11) / (1 << 53) }

// Exponential returns the time between two events of a Poisson process with mean 1: 0 to 36.8.
func (s *Source) Exponential() float64 { return -math.Log1p(-s.Unit()) }

// Mix scrambles a number, so that adjacent seeds give independent sequences.
func Mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
