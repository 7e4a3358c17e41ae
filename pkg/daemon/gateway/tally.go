package gateway

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// tally counts what became of a function's calls.
type tally struct {
	bodies atomic.Int64 // bytes of the bodies of its calls in memory

	// The engine's, under its lock.
	found  [3]int64      // dispatches, by what they found
	served time.Duration // time that instances were busy, without starts that failed

	mu       sync.Mutex
	rejected int64
	errors   int64
	recent   recent
}

// started takes note of a dispatch.
func (t *tally) started(how residency.Start) { t.found[how]++ }

// ran takes note of time that an instance was busy.
func (t *tally) ran(d time.Duration) { t.served += d }

// answered takes note of an answer that an instance gave, at a time of the limits.
func (t *tally) answered(now time.Duration, status int, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if status >= 500 {
		t.errors++
	}
	t.recent.add(now, took)
}

// refused takes note of an answer of the gateway's own.
func (t *tally) refused(e *Error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case e.Status >= 500 && e.Code != codeDraining && e.Code != codeQueueTimeout:
		t.errors++
	case e.Code == codeQueueFull || e.Status >= 500:
		t.rejected++
	}
}

// recent is how long the answers of the last minute took. Its time is not that of the
// wall, which may be set.
type recent struct {
	parts [6]part // of ten seconds each
}

const partTime = 10 * time.Second

type part struct {
	begin  int64 // in parts since the beginning
	count  int
	counts *[buckets]uint32
}

// Buckets grow by a twentieth, from a tenth of a millisecond to over an hour.
const (
	buckets   = 360
	growth    = 1.05
	firstEdge = 1e-4
)

func bucketOf(d time.Duration) int {
	return min(max(int(math.Log(d.Seconds()/firstEdge)/math.Log(growth))+1, 0), buckets-1)
}

func (r *recent) add(now time.Duration, took time.Duration) {
	n := int64(now / partTime)
	p := &r.parts[n%int64(len(r.parts))]
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

// look is the rate of the last minute, or since the beginning, and quantiles in
// milliseconds; they are 0 where nothing was answered.
func (r *recent) look(now time.Duration, quantiles ...float64) (rps float64, ms []float64) {
	var all [buckets]int64
	n, total := int64(now/partTime), int64(0)
	for i := range r.parts {
		p := &r.parts[i]
		if p.counts == nil || p.begin <= n-int64(len(r.parts)) {
			continue
		}
		total += int64(p.count)
		for b, c := range p.counts {
			all[b] += int64(c)
		}
	}
	whole := time.Duration(len(r.parts)-1)*partTime + now%partTime
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
