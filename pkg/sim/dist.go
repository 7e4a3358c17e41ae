package sim

import (
	"math"
	"slices"
	"time"
)

// dist is a distribution of durations in bounded memory: every value up to a
// number, and beyond it counts in buckets whose width is a part of the value,
// 2^-bits. Quantiles are by nearest rank: exact for as long as every value is
// kept, within half a bucket afterwards.
type dist struct {
	n       int64
	first   float64 // the first value; sums are of differences from it
	sum, sq float64
	counts  []uint32 // once there are too many values: by bucket, from base
	base    int32
	bits    uint8
	max     time.Duration
	values  []time.Duration
	exact   int // how many values to keep
}

func (d *dist) add(v time.Duration) {
	if d.n == 0 {
		d.first = float64(v)
	}
	d.n++
	x := float64(v) - d.first
	d.sum += x
	d.sq += x * x
	if v > d.max {
		d.max = v
	}
	if d.counts == nil {
		if len(d.values) < d.exact {
			d.values = append(d.values, v)
			return
		}
		for _, kept := range d.values {
			d.count(kept)
		}
		d.values = nil
	}
	d.count(v)
}

// bucket is the number of the bucket of a value: its exponent and the first
// bits of its fraction.
func (d *dist) bucket(v time.Duration) int32 {
	return int32(math.Float64bits(float64(v)+1) >> (52 - d.bits))
}

// middle is the middle of a bucket.
func (d *dist) middle(bucket int32) time.Duration {
	low := math.Float64frombits(uint64(bucket) << (52 - d.bits))
	high := math.Float64frombits(uint64(bucket+1) << (52 - d.bits))
	return time.Duration((low+high)/2) - 1
}

func (d *dist) count(v time.Duration) {
	b := d.bucket(v)
	switch {
	case len(d.counts) == 0:
		d.base = b
		d.counts = append(d.counts, 0)
	case b < d.base:
		d.counts = slices.Insert(d.counts, 0, make([]uint32, d.base-b)...)
		d.base = b
	case int(b-d.base) >= len(d.counts):
		d.counts = append(d.counts, make([]uint32, int(b+1-d.base)-len(d.counts))...)
	}
	d.counts[b-d.base]++
}

// mean is that of all values, in ns.
func (d *dist) mean() float64 {
	if d.n == 0 {
		return 0
	}
	return d.first + d.sum/float64(d.n)
}

// variance is that of all values, not of a sample, in ns².
func (d *dist) variance() float64 {
	if d.n == 0 {
		return 0
	}
	n := float64(d.n)
	return max(d.sq-d.sum*d.sum/n, 0) / n
}

// quantile is the least value that at least the fraction q of all do not
// exceed.
func (d *dist) quantile(q float64) time.Duration {
	if d.n == 0 {
		return 0
	}
	rank := max(int64(math.Ceil(q*float64(d.n)-1e-9)), 1)
	if d.counts == nil {
		slices.Sort(d.values)
		return d.values[rank-1]
	}
	for i, n := range d.counts {
		if rank -= int64(n); rank <= 0 {
			return min(d.middle(d.base+int32(i)), d.max)
		}
	}
	return d.max
}
