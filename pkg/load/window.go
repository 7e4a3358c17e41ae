package load

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// How a window is judged.
const (
	bins        = 20    // parts of a window
	head        = 4     // bins at the front that may still be warm-up
	tail        = 10    // bins at the end that they are compared with
	merged      = 2     // bins in a batch of the batch means
	student     = 2.262 // 97.5% quantile of Student's t with bins/merged - 1 = 9 degrees of freedom
	normal      = 1.960 // and of the normal distribution
	certain     = 3     // standard errors that a drift must exceed
	tailFactor  = 4     // p95 may be known so many times less precisely than the throughput
	leastSample = 20    // latencies in a batch that make its p95 mean something
	leastAnswer = 5     // answers without which nothing is known
	behind      = 0.1   // unanswered part of an open load that only waiting longer would not help
)

// window is a part of a trial: what was answered in it, in bins of equal
// length, and the latencies of what was due in it.
type window struct {
	options   Options
	log       []request
	from, to  time.Duration
	served    [bins]float64         // answers, each by the part of its time in the bin
	latencies []time.Duration       // sorted
	inBin     [bins][]time.Duration // by the time they were due, unsorted
}

func (w *window) width() time.Duration { return max(1, (w.to-w.from)/bins) }

// bin is the one that a time in the window lies in.
func (w *window) bin(t time.Duration) int { return min(int((t-w.from)/w.width()), bins-1) }

// spread adds an answer to the bins that its time lies in.
func (w *window) spread(q request) {
	from, to := max(q.sent, w.from), min(q.end, w.to)
	if to <= from {
		return
	}
	for i := w.bin(from); i < bins; i++ {
		begin := w.from + time.Duration(i)*w.width()
		end := begin + w.width()
		if i == bins-1 {
			end = w.to
		}
		if begin >= to {
			return
		}
		w.served[i] += float64(min(to, end)-max(from, begin)) / float64(q.end-q.sent)
	}
}

// rates are the answers a second in each bin.
func (w *window) rates() []float64 {
	out := make([]float64, bins)
	for i, n := range w.served {
		out[i] = n / w.width().Seconds()
	}
	return out
}

// answers are the requests a second that ended well in each bin.
func (w *window) answers() []float64 {
	out := make([]float64, bins)
	for _, q := range w.log {
		if q.how == answered && q.end >= w.from && q.end < w.to {
			out[w.bin(q.end)] += 1 / w.width().Seconds()
		}
	}
	return out
}

// means are the mean latencies in each bin that has any.
func (w *window) means() []float64 {
	var out []float64
	for _, part := range w.inBin {
		if len(part) > 0 {
			out = append(out, sum(part)/float64(len(part)))
		}
	}
	return out
}

// count fills in what is counted.
func (w *window) count(res *Result) {
	for _, q := range w.log {
		if q.how == answered && q.end >= w.from && q.end < w.to {
			res.Completed++
		}
		if q.due < w.from || q.due >= w.to {
			continue
		}
		res.Due++
		if q.how != answered || w.options.Objective > 0 && q.end-q.due > w.options.Objective {
			res.Misses++
		}
		if q.sent-q.due > lateBy && q.how != unsent {
			res.Late++
		}
		switch q.how {
		case cut:
			res.Cut++
		case unsent:
			res.Unsent++
		}
		if q.how != answered {
			res.Errors++
		}
		if q.how != failed {
			res.Samples++
		}
	}
}

// unstable says why the window's figures should not be relied on; empty when
// they may be.
//
// They are of a steady state when the front of the window is like its end
// (Geweke's diagnostic, with a difference that matters beside one that is
// significant), and known well enough when the confidence interval is narrow.
// A closed loop is judged by its throughput, to which its latency is tied; an
// open loop, whose throughput is given, by its latency.
func (w *window) unstable() string {
	var res Result
	w.count(&res)
	if res.Completed < leastAnswer {
		return fmt.Sprintf("only %d requests were answered in %v", res.Completed, w.to-w.from)
	}
	if broken := res.Errors - res.Cut - res.Unsent; float64(broken) > w.options.Precision*float64(res.Samples+broken) {
		return fmt.Sprintf("%d of %d requests failed", broken, res.Samples+broken)
	}
	series, what, precision := w.series()
	if before, after, ok := drift(series, precision); ok {
		return fmt.Sprintf("%s still changed by %+.0f%% within the %v measured", what, 100*(after/before-1), w.to-w.from)
	}
	if !w.open() {
		if wide := halfWidth(series) / mean(series); wide > precision {
			return fmt.Sprintf("the throughput is known to ±%.0f%% only after %v", 100*wide, w.to-w.from)
		}
		return ""
	}
	ci, known := w.p95()
	switch wide := float64(ci) / float64(quantile(w.latencies, 0.95)); {
	case !known:
		return fmt.Sprintf("%d requests in %v are too few for a p95", len(w.latencies), w.to-w.from)
	case wide > precision:
		return fmt.Sprintf("the p95 is known to ±%.0f%% only after %v", 100*wide, w.to-w.from)
	}
	return ""
}

// series is what the window is judged by, what it is called, and how
// precisely it must be known.
func (w *window) series() (values []float64, what string, precision float64) {
	if w.open() {
		return w.means(), "the latency", tailFactor * w.options.Precision
	}
	return w.rates(), "the throughput", w.options.Precision
}

func (w *window) drifts() bool {
	values, _, precision := w.series()
	_, _, ok := drift(values, precision)
	return ok
}

func (w *window) open() bool { return w.options.Spec.Kind == Poisson }

// p95 is half the width of the 95% confidence interval of the 95th percentile:
// that of its order statistics, or that of the percentiles of batches where
// these differ more, as when one slow time made many requests slow. It is not
// known from fewer than about 75 latencies.
func (w *window) p95() (half time.Duration, known bool) {
	n := float64(len(w.latencies))
	off := normal * math.Sqrt(n*0.95*0.05)
	low, high := int(math.Floor(0.95*n-off)), int(math.Ceil(0.95*n+off))
	if low < 0 || high >= len(w.latencies) {
		return 0, false
	}
	half = (w.latencies[high] - w.latencies[low]) / 2
	var of []float64
	for i := 0; i < bins; i += merged {
		var batch []time.Duration
		for _, part := range w.inBin[i : i+merged] {
			batch = append(batch, part...)
		}
		if len(batch) < leastSample {
			return half, true
		}
		slices.Sort(batch)
		of = append(of, float64(quantile(batch, 0.95)))
	}
	return max(half, time.Duration(student*math.Sqrt(variance(of)/float64(len(of))))), true
}

// drift compares the front of a series with its end and tells whether they
// differ by more than a fraction, beyond what chance explains: the chance that
// shows at the end, since a front that is part warm-up varies by that.
func drift(series []float64, tolerance float64) (before, after float64, ok bool) {
	if len(series) < bins {
		return 0, 0, false
	}
	front, end := series[:head], series[len(series)-tail:]
	before, after = mean(front), mean(end)
	noise := math.Sqrt(variance(end) * (1.0/head + 1.0/tail))
	gap := math.Abs(after - before)
	return before, after, gap > tolerance*after && gap > certain*noise
}

// halfWidth is half the width of the 95% confidence interval of the mean of a
// series, by the means of batches: neighbours may depend on each other.
func halfWidth(series []float64) float64 {
	var batches []float64
	for batch := range slices.Chunk(series, merged) {
		batches = append(batches, mean(batch))
	}
	return student * math.Sqrt(variance(batches)/float64(len(batches)))
}

// p95Due is the 95th percentile of the latencies of all that was due, Never where
// that is a request that failed.
func (w *window) p95Due(due int64) time.Duration {
	i := int(math.Ceil(0.95*float64(due))) - 1
	switch {
	case due == 0:
		return 0
	case i >= len(w.latencies):
		return Never
	}
	return w.latencies[i]
}

// quantile is the least value with that part of the sorted ones at or below.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

// longestPeriods is how many periods a trial may take, the warm-up that was
// asked for aside.
const longestPeriods = 4

// look judges, at a time of the trial, what was measured so far. It returns
// where the measured period begins, and when to look again; 0 is now enough.
//
// While the front of the period is unlike its end, the front counts as
// warm-up: the period begins later and is as long again. While it is only not
// known well enough, it goes on for as long as it was asked for.
func (r *recorder) look(now time.Duration, log []request) (from, next time.Duration) {
	o := r.options
	w := r.window(log, r.from, r.horizon(now, log))
	most := o.Warmup + longestPeriods*o.Duration
	if w.unstable() == "" || now >= most || r.falling(now, log) {
		return r.from, 0
	}
	from, next = r.from, now+o.Duration
	if w.drifts() {
		step := (now - r.from) * head / bins
		from = r.from + step
		next = max(from+o.Duration, now+o.Duration*head/bins)
	}
	return from, min(next, most)
}

// horizon is how far everything that was sent is likely to have been answered.
func (r *recorder) horizon(now time.Duration, log []request) time.Duration {
	var slowest time.Duration
	for _, q := range log {
		if q.how == answered && q.end > r.from {
			slowest = max(slowest, q.end-q.sent)
		}
	}
	return max(now-slowest, r.from+(now-r.from)/2)
}

// falling tells whether an open load is more than the target sustains: what is
// unanswered grows by a part of all that is sent. More time would not help.
func (r *recorder) falling(now time.Duration, log []request) bool {
	if r.options.Spec.Kind != Poisson {
		return false
	}
	middle := r.from + (now-r.from)/2
	due, ended := 0, 0
	arrivals := newArrivals(r.options.Spec.RPS, r.options.Seed, r.start)
	for at := arrivals.next().Sub(r.start); at < now; at = arrivals.next().Sub(r.start) {
		if at >= middle {
			due++
		}
	}
	for _, q := range log {
		if q.end >= middle && q.end < now {
			ended++
		}
	}
	return float64(due-ended) > behind*float64(due)
}

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
