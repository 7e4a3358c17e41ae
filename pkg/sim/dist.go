package sim

import (
	"math"
	"slices"
	"time"
)

// dist is a distribution of durations in bounded memory. It stores up to maxValues values. Beyond
// that, it only counts them in buckets. A bucket is at most 2^-bits as wide as its values are large:
// with 7 bits, 1 s is in a bucket of less than 8 ms. Quantiles are by nearest rank: exact as long as
// the values are stored, and within half a bucket afterwards.
type dist struct {
	maxValues int32
	bits      uint8

	first           float64         // the first value
	sum, sumSquares float64         // of the differences from first
	values          []time.Duration // empty if histogram is set
	histogram       *histogram      // nil for up to maxValues values
}

// histogram counts values in buckets. buckets[0] is bucket number base.
type histogram struct {
	n       int64
	max     time.Duration
	base    int32
	buckets []uint32
}

// add adds a value.
func (d *dist) add(v time.Duration) {
	if len(d.values) == 0 && d.histogram == nil {
		d.first = float64(v)
	}
	x := float64(v) - d.first
	d.sum += x
	d.sumSquares += x * x
	if d.histogram == nil {
		if len(d.values) < int(d.maxValues) {
			d.values = append(d.values, v)
			return
		}
		d.histogram = &histogram{}
		for _, stored := range d.values {
			d.count(stored)
		}
		d.values = nil
	}
	d.count(v)
}

// count adds a value to the histogram.
func (d *dist) count(v time.Duration) { d.histogram.add(v, d.bucket(v)) }

// n returns the number of values.
func (d *dist) n() int64 {
	if d.histogram != nil {
		return d.histogram.n
	}
	return int64(len(d.values))
}

// max returns the largest value.
func (d *dist) max() time.Duration {
	switch {
	case d.histogram != nil:
		return d.histogram.max
	case len(d.values) > 0:
		return slices.Max(d.values)
	}
	return 0
}

// bucket returns the number of a value's bucket: the exponent and the first d.bits bits of the fraction of
// the value as a floating-point number. It adds 1 ns because there are very many buckets between
// 0 and 1.
func (d *dist) bucket(v time.Duration) int32 {
	return int32(math.Float64bits(float64(v)+1) >> (52 - d.bits))
}

// middle returns the middle of a bucket.
func (d *dist) middle(bucket int32) time.Duration {
	low := math.Float64frombits(uint64(bucket) << (52 - d.bits))
	high := math.Float64frombits(uint64(bucket+1) << (52 - d.bits))
	return time.Duration((low+high)/2) - 1
}

// add counts a value in a bucket.
func (h *histogram) add(v time.Duration, bucket int32) {
	h.n++
	h.max = max(h.max, v)
	switch {
	case len(h.buckets) == 0:
		h.base = bucket
		h.buckets = append(h.buckets, 0)
	case bucket < h.base:
		h.buckets = slices.Insert(h.buckets, 0, make([]uint32, h.base-bucket)...)
		h.base = bucket
	case int(bucket-h.base) >= len(h.buckets):
		h.buckets = append(h.buckets, make([]uint32, int(bucket+1-h.base)-len(h.buckets))...)
	}
	h.buckets[bucket-h.base]++
}

// mean returns the mean of all values, in ns.
func (d *dist) mean() float64 {
	if d.n() == 0 {
		return 0
	}
	return d.first + d.sum/float64(d.n())
}

// variance returns the population variance, in ns².
func (d *dist) variance() float64 {
	if d.n() == 0 {
		return 0
	}
	n := float64(d.n())
	return max(d.sumSquares-d.sum*d.sum/n, 0) / n
}

// quantile returns the nearest-rank quantile: the least value v such that at least the fraction q
// of all values is at most v.
func (d *dist) quantile(q float64) time.Duration {
	if d.n() == 0 {
		return 0
	}
	const rounding = 1e-9 // so that an error of the product does not raise the rank
	rank := max(int64(math.Ceil(q*float64(d.n())-rounding)), 1)
	if d.histogram == nil {
		slices.Sort(d.values)
		return d.values[rank-1]
	}
	for i, n := range d.histogram.buckets {
		if rank -= int64(n); rank <= 0 {
			return min(d.middle(d.histogram.base+int32(i)), d.histogram.max)
		}
	}
	return d.histogram.max
}
