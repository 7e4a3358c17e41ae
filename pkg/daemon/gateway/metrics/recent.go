package metrics

import (
	"math"
	"time"
)

// recent holds a histogram of the answer times of the last minute. Its times count from a
// fixed instant, so that setting the wall clock has no effect.
type recent struct {
	periods [6]period // one per periodTime
}

const periodTime = 10 * time.Second

type period struct {
	begin  int64 // start, in units of periodTime
	count  int
	counts *[buckets]uint32
}

// The histogram's buckets grow by 5%, from 0.1 ms to more than an hour.
const (
	buckets   = 360
	growth    = 1.05
	firstEdge = 1e-4
)

func bucketOf(d time.Duration) int {
	return min(max(int(math.Log(d.Seconds()/firstEdge)/math.Log(growth))+1, 0), buckets-1)
}

func (r *recent) add(now time.Duration, took time.Duration) {
	n := int64(now / periodTime)
	p := &r.periods[n%int64(len(r.periods))]
	if p.counts == nil {
		p.counts = new([buckets]uint32)
	}
	if p.begin != n {
		clear(p.counts[:])
		p.begin, p.count = n, 0
	}
	p.count++
	p.counts[bucketOf(max(took, time.Nanosecond))]++
}

// rates returns the answers per second over the last minute, or since the start if that is
// shorter, and quantiles of the answer times in ms. Without answers, the quantiles are 0.
func (r *recent) rates(now time.Duration, quantiles ...float64) (rps float64, ms []float64) {
	var all [buckets]int64
	n, total := int64(now/periodTime), int64(0)
	for i := range r.periods {
		p := &r.periods[i]
		if p.counts == nil || p.begin <= n-int64(len(r.periods)) {
			continue
		}
		total += int64(p.count)
		for b, c := range p.counts {
			all[b] += int64(c)
		}
	}
	whole := time.Duration(len(r.periods)-1)*periodTime + now%periodTime
	rps = float64(total) / max(min(whole, now), time.Second).Seconds()
	for _, q := range quantiles {
		ms = append(ms, quantile(&all, total, q))
	}
	return rps, ms
}

func quantile(all *[buckets]int64, total int64, q float64) float64 {
	if total == 0 {
		return 0
	}
	rank := max(int64(math.Ceil(q*float64(total))), 1)
	for b, c := range all {
		if rank -= c; rank <= 0 {
			return firstEdge * math.Pow(growth, float64(b)-0.5) * 1e3 // the middle of the bucket
		}
	}
	return 0
}
