package search

import "math"

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

// below is the mean of (from − y), counted only where y < to, for a normal y.
// It is never negative when to <= from.
func below(from, to, mean, sd float64) float64 {
	z := (to - mean) / sd
	if z < -5 { // less than a ten-millionth
		return 0
	}
	density := math.Exp(-z*z/2) / math.Sqrt(2*math.Pi)
	return max(0, (from-mean)*cdf(z)+sd*density)
}

// cdf is the standard normal distribution function.
func cdf(z float64) float64 { return math.Erfc(-z/math.Sqrt2) / 2 }
