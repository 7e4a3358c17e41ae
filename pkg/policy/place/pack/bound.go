package pack

import "math/bits"

// Names of the bounds, for bound_method.
const (
	boundNone   = "none" // nothing to pack
	boundArea   = "area"
	boundMemory = "memory"
	boundDFF    = "dff"
	boundBars   = "bars"
)

// lowerBound is a number of bins below which the kinds, all of which must fit
// the bin, cannot be packed, and which of the bounds it is: the largest of area,
// memory, dual feasible functions and bars, with so much work for the bars.
func lowerBound(kinds []Kind, bin Bin, work int) (bins int, method string) {
	bins, method = coarseBound(kinds, bin)
	if n := dffBound(kinds, bin); n > bins {
		bins, method = n, boundDFF
	}
	if n := barBound(kinds, bin, bins, work); n > bins {
		bins, method = n, boundBars
	}
	return bins, method
}

// coarseBound is the larger of the bounds by area and by memory, which take no
// time.
func coarseBound(kinds []Kind, bin Bin) (bins int, method string) {
	bins, method = areaBound(kinds, bin), boundArea
	if bins == 0 {
		return 0, boundNone
	}
	if n := memoryBound(kinds, bin); n > bins {
		bins, method = n, boundMemory
	}
	return bins, method
}

func areaBound(kinds []Kind, bin Bin) int {
	var s sum
	for _, k := range kinds {
		s.add(k.W*k.H, int64(k.Count))
	}
	return s.over(bin.W * bin.H)
}

func memoryBound(kinds []Kind, bin Bin) int {
	if bin.Mem == 0 {
		return 0
	}
	var s sum
	for _, k := range kinds {
		s.add(k.Mem, int64(k.Count))
	}
	return s.over(bin.Mem)
}

// sum is a sum of products in 128 bits.
type sum struct{ hi, lo uint64 }

// add adds a × b, neither negative.
func (s *sum) add(a, b int64) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	var carry uint64
	s.lo, carry = bits.Add64(s.lo, lo, 0)
	s.hi += hi + carry
}

// over is the sum divided by whole, rounded up; it must be a number of bins, as
// it is where every product counts rectangles that are at most whole.
func (s *sum) over(whole int64) int {
	q, rest := bits.Div64(s.hi, s.lo, uint64(whole))
	if rest > 0 {
		q++
	}
	return int(q)
}
