package workload

import (
	"math"
	"math/rand/v2"
)

// random draws numbers that depend only on the seed: the source is fixed, and all distributions
// are implemented here. It does not use splitmix, because the published traces were drawn with
// PCG.
type random struct{ source *rand.PCG }

// newRandom returns independent numbers for each stream of a seed.
func newRandom(seed, stream uint64) random { return random{rand.NewPCG(seed, stream)} }

// uniform returns a number between 0 and 1, exclusive.
func (r random) uniform() float64 { return (float64(r.source.Uint64()>>11) + 0.5) / (1 << 53) }

// below returns an integer from 0 to n-1.
func (r random) below(n int) int { return min(int(r.uniform()*float64(n)), n-1) }

func (r random) exponential(mean float64) float64 { return -mean * math.Log(r.uniform()) }

// normal returns a number with mean 0 and variance 1 (Box and Muller).
func (r random) normal() float64 {
	return math.Sqrt(-2*math.Log(r.uniform())) * math.Cos(2*math.Pi*r.uniform())
}

// gamma returns a gamma-distributed number with scale 1 (Marsaglia and Tsang, 2000).
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

// logUniform returns a number between low and high whose logarithm is uniform.
func (r random) logUniform(low, high float64) float64 {
	return low * math.Exp(r.uniform()*math.Log(high/low))
}

// shuffled returns a random permutation of the numbers from 0 to n-1.
func (r random) shuffled(n int) []int {
	out := make([]int, n)
	for i := range out {
		j := r.below(i + 1)
		out[i], out[j] = out[j], i
	}
	return out
}
