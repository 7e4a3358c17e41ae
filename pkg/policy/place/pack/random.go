package pack

// random draws numbers that depend on nothing but the seed (Steele, Lea and
// Flood, Fast splittable pseudorandom number generators: SplitMix64).
type random uint64

func (r *random) next() uint64 {
	*r += 0x9e3779b97f4a7c15
	z := uint64(*r)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// below draws from 0 to n-1, for n far below 2^32.
func (r *random) below(n int) int { return int(r.next() >> 32 * uint64(n) >> 32) }
