package workload

import (
	"math"
	"math/rand/v2"
)

// random draws numbers that depend on nothing but the seed: the source is
// fixed, and every distribution is made from it here. It is not splitmix because
// the traces that were published are drawn with PCG.
type random struct{ source *rand.PCG }

// newRandom gives each stream of a seed numbers of its own.
func newRandom(seed, stream uint64) random { return random{rand.NewPCG(seed, stream)} }

// uniform is above 0 and below 1.
func (r random) uniform() float64 { return (float64(r.source.Uint64()>>11) + 0.5) / (1 << 53) }

// below is a whole number from 0 to n-1.
func (r random) below(n int) int { return min(int(r.uniform()*float64(n)), n-1) }

func (r random) exponential(mean float64) float64 { return -mean * math.Log(r.uniform()) }

// normal is of mean 0 and variance 1 (Box and Muller).
func (r random) normal() float64 {
	return math.Sqrt(-2*math.Log(r.uniform())) * math.Cos(2*math.Pi*r.uniform())
}

// gamma is of scale 1 (Marsaglia and Tsang, 2000).
func (r random) gamma(shape float64) float64 {
	if shape < 1 {
		return r.gamma(shape+1) * math.Pow(r.uniform(), 1/shape)
	}
	d := shape - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := r.normal()
		v := math.Pow(1+c*x, 3)
		if v > 0 && math.Log(r.uniform()) < x*x/2+d-d*v+d*math.Log(v) {
			return d * v
		}
	}
}

// logUniform is as likely to lie between 1 and 10 as between 10 and 100.
func (r random) logUniform(low, high float64) float64 {
	return low * math.Exp(r.uniform()*math.Log(high/low))
}

// shuffled are the numbers from 0 to n-1 in an even draw of their orders.
func (r random) shuffled(n int) []int {
	out := make([]int, n)
	for i := range out {
		j := r.below(i + 1)
		out[i], out[j] = out[j], i
	}
	return out
}
