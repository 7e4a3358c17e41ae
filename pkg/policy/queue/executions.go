package queue

import (
	"math"
	"time"
)

// InBatch returns the duration of an execution that takes warm alone, while n invocations execute on its
// instance (R33).
func InBatch(warm time.Duration, slope float64, n int) time.Duration {
	if slope == 0 || n < 2 {
		return warm
	}
	return multiplied(warm, stretch(slope, float64(n)))
}

// stretch returns how much longer than alone each of n invocations takes, as a factor.
func stretch(slope, n float64) float64 { return 1 + slope*max(n-1, 0) }

func multiplied(d time.Duration, factor float64) time.Duration {
	return time.Duration(min(math.Round(float64(d)*factor), math.MaxInt64/4))
}

// slope returns the BatchSlope of a function whose instances run batches, and 0 of others.
func (v *view) slope(f int32) float64 {
	if !v.batches(f) {
		return 0
	}
	return v.functions[f].BatchSlope
}

// nextBatchOn returns the expected duration, on a GPU, of the batch with which the waiting invocations of a
// function begin.
func (v *view) nextBatchOn(f, gpu int32) time.Duration {
	spec := &v.functions[f]
	return InBatch(v.warmOn(f, gpu), v.slope(f), int(min(spec.Inflight, v.queues.queues[f].len)))
}

// backlogOn returns the expected duration, on a GPU, of n invocations of a function that execute in
// batches, one batch after another.
func (v *view) backlogOn(f, gpu int32, n int) time.Duration {
	warm := v.warmOn(f, gpu)
	if !v.batches(f) {
		return warm * time.Duration(n)
	}
	each, slope := int(v.functions[f].Inflight), v.functions[f].BatchSlope
	total := InBatch(warm, slope, each) * time.Duration(n/each)
	if rest := n % each; rest > 0 {
		total += InBatch(warm, slope, rest)
	}
	return total
}

// stretchOthers changes the expected ends of the invocations on an instance of a function, after the
// number of those that execute there has changed.
func (d *dispatcher) stretchOthers(f, instance int32, before, after int) {
	slope := d.slope(f)
	if slope == 0 || before == after {
		return
	}
	factor := stretch(slope, float64(after)) / stretch(slope, float64(before))
	for n := d.pool.Run(instance); n != none; n = d.runs.entries[n].next {
		d.runs.entries[n].stretch(factor, d.now)
	}
	d.reportEnds(instance)
}

// resize applies Sized.
func (d *dispatcher) resize(r *run, times float64) {
	before := r.times
	if before == 0 {
		before = 1
	}
	r.times = times
	r.stretch(times/before, max(r.started, r.executes))
	if !r.planned {
		d.reportEnds(r.instance)
	}
}

// stretch multiplies the time from now to the expected end of an invocation, without the time before it
// executes.
func (r *run) stretch(factor float64, now time.Duration) {
	if from := max(r.executes, now); r.expectedEnd > from {
		r.expectedEnd = from + multiplied(r.expectedEnd-from, factor)
	}
}

// reportEnds tells the order that the expected ends of the invocations on an instance have changed.
func (d *dispatcher) reportEnds(instance int32) {
	end, _ := d.runs.busyUntil(instance, d.now)
	for n := d.pool.Run(instance); n != none; n = d.runs.entries[n].next {
		d.order.expects(d.now, &d.runs.entries[n], end)
	}
}
