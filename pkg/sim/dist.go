package sim

import (
	"math"
	"slices"
	"time"
)

// dist is a distribution of durations in bounded memory. It stores up to exact values. Beyond
// that, it counts values in buckets, whose width is the fraction 2^-bits of the value. Quantiles
// are by nearest rank: exact as long as the values are stored, and within half a bucket
// afterwards.
type dist struct {
	first   float64 // the first value; sum and sq are of differences from it
	sum, sq float64
	values  []time.Duration // all values, up to exact
	counts  *counts         // all values, beyond exact
	exact   int32
	bits    uint8
}

// counts is a histogram. buckets[0] is bucket number base.
type counts struct {
	n       int64
	max     time.Duration
	base    int32
	buckets []uint32
}

func (d *dist) add(v time.Duration) {
	if len(d.values) == 0 && d.counts == nil {
		d.first = float64(v)
	}
	x := float64(v) - d.first
	d.sum += x
	d.sq += x * x
	if d.counts == nil {
		if len(d.values) < int(d.exact) {
			d.values = append(d.values, v)
			return
		}
		d.counts = &counts{}
		for _, kept := range d.values {
			d.count(kept)
		}
		d.values = nil
	}
	d.count(v)
}

func (d *dist) count(v time.Duration) { d.counts.add(v, d.bucket(v)) }

// n returns the number of values.
func (d *dist) n() int64 {
	if d.counts != nil {
		return d.counts.n
	}
	return int64(len(d.values))
}

// max returns the largest value.
func (d *dist) max() time.Duration {
	switch {
	case d.counts != nil:
		return d.counts.max
	case len(d.values) > 0:
		return slices.Max(d.values)
	}
	return 0
}

// bucket returns the number of a value's bucket: the exponent and the first bits of the fraction.
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
func (c *counts) add(v time.Duration, bucket int32) {
	c.n++
	c.max = max(c.max, v)
	switch {
	case len(c.buckets) == 0:
		c.base = bucket
		c.buckets = append(c.buckets, 0)
	case bucket < c.base:
		c.buckets = slices.Insert(c.buckets, 0, make([]uint32, c.base-bucket)...)
		c.base = bucket
	case int(bucket-c.base) >= len(c.buckets):
		c.buckets = append(c.buckets, make([]uint32, int(bucket+1-c.base)-len(c.buckets))...)
	}
	c.buckets[bucket-c.base]++
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
	return max(d.sq-d.sum*d.sum/n, 0) / n
}

// quantile returns the nearest-rank quantile: the least value v such that at least the fraction q
// of all values is at most v.
func (d *dist) quantile(q float64) time.Duration {
	if d.n() == 0 {
		return 0
	}
	rank := max(int64(math.Ceil(q*float64(d.n())-1e-9)), 1)
	if d.counts == nil {
		slices.Sort(d.values)
		return d.values[rank-1]
	}
	for i, n := range d.counts.buckets {
		if rank -= int64(n); rank <= 0 {
			return min(d.middle(d.counts.base+int32(i)), d.counts.max)
		}
	}
	return d.counts.max
}
