package load

func sum[T ~int64 | ~float64](values []T) (total float64) {
	for _, v := range values {
		total += float64(v)
	}
	return total
}

func mean(values []float64) float64 { return sum(values) / float64(len(values)) }

// variance is that of a sample.
func variance(values []float64) float64 {
	m, squares := mean(values), 0.0
	for _, v := range values {
		squares += (v - m) * (v - m)
	}
	return squares / float64(len(values)-1)
}
