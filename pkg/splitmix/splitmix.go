// Package splitmix is the generator SplitMix64 (Steele, Lea and Flood 2014, Fast
// splittable pseudorandom number generators). What a seed decides is drawn with
// it, so that the seed decides the same on every machine and with every version
// of Go: the distributions of math/rand/v2 may change. What should differ each
// time, such as a port, is drawn with math/rand/v2.
//
// The exception is pkg/sim/workload: its traces are compared with published
// figures, and stay those of the generator PCG that they were first drawn with.
package splitmix

import "math"

// Source is a sequence of numbers. Its value is the seed at first, and all of
// its state later.
type Source uint64

// Uint64 is the next number.
func (s *Source) Uint64() uint64 {
	*s += 0x9e3779b97f4a7c15
	return Mix(uint64(*s))
}

// Below is a number from 0 to n-1, for n above 0 and far below 2^64.
func (s *Source) Below(n int) int { return int(s.Uint64() % uint64(n)) }

// Unit is a number from 0, inclusive, to 1.
func (s *Source) Unit() float64 { return float64(s.Uint64()>>11) / (1 << 53) }

// Exponential is a time between two events of a Poisson process, the mean being
// 1: 0 to 36.8.
func (s *Source) Exponential() float64 { return -math.Log1p(-s.Unit()) }

// Mix scrambles a number, so that the seeds of sequences beside each other have
// nothing in common.
func Mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
