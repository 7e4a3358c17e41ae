package load

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/number"
)

// Parameters for evaluating a window.
const (
	bins              = 20    // number of bins of a window
	frontBins         = 4     // bins at the front that may still be warm-up
	endBins           = 10    // bins at the end to compare them with
	binsPerBatch      = 2     // bins per batch of the batch means
	studentQuantile   = 2.262 // 97.5% quantile of Student's t with bins/binsPerBatch - 1 = 9 degrees of freedom
	normalQuantile    = 1.960 // 97.5% quantile of the normal distribution
	driftSignificance = 3     // number of standard errors that a drift must exceed
	tailFactor        = 4     // allowed imprecision of p95, relative to that of the throughput
	minBatchSample    = 20    // minimum number of latencies in a batch for a meaningful p95
	minAnswers        = 5     // minimum number of answers for any conclusion
	maxBacklogGrowth  = 0.1   // fraction of unanswered requests of an open loop above which a longer trial cannot help
)

// window is a period of a trial, divided into bins of equal length. It holds the answers and
// the latencies of the requests that were due in it.
type window struct {
	options   Options
	log       []request
	from, to  time.Duration
	served    [bins]float64         // answers in each bin; a request counts by the fraction of its time in the bin
	latencies []time.Duration       // sorted
	inBin     [bins][]time.Duration // by the time when the request was due, unsorted
}

func (w *window) width() time.Duration { return max(1, (w.to-w.from)/bins) }

// bin returns the index of the bin that contains a time in the window.
func (w *window) bin(t time.Duration) int { return min(int((t-w.from)/w.width()), bins-1) }

// spread adds a successful request to served, in the bins that its time overlaps.
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

// rates returns the answers per second in each bin, with requests counted by fractions.
func (w *window) rates() []float64 {
	out := make([]float64, bins)
	for i, n := range w.served {
		out[i] = n / w.width().Seconds()
	}
	return out
}

// answers returns the number per second of successful requests that ended in each bin.
func (w *window) answers() []float64 {
	out := make([]float64, bins)
	for _, q := range w.log {
		if q.outcome == answered && q.end >= w.from && q.end < w.to {
			out[w.bin(q.end)] += 1 / w.width().Seconds()
		}
	}
	return out
}

// binMeans returns the mean latency of each bin that has latencies.
func (w *window) binMeans() []float64 {
	var out []float64
	for _, latencies := range w.inBin {
		if len(latencies) > 0 {
			out = append(out, sum(latencies)/float64(len(latencies)))
		}
	}
	return out
}

// count sets the counters of a Result.
func (w *window) count(res *Result) {
	for _, q := range w.log {
		if q.outcome == answered && q.end >= w.from && q.end < w.to {
			res.Completed++
		}
		if q.due < w.from || q.due >= w.to {
			continue
		}
		res.Due++
		if q.outcome != answered || w.options.Objective > 0 && q.end-q.due > w.options.Objective {
			res.Misses++
		}
		if q.sent-q.due > lateThreshold && q.outcome != unsent {
			res.Late++
		}
		switch q.outcome {
		case cut:
			res.Cut++
		case unsent:
			res.Unsent++
		}
		if q.outcome != answered {
			res.Errors++
		}
		if q.outcome != failed {
			res.Samples++
		}
	}
}

// unstable returns the reason why the window's figures are unreliable, or "" if they are
// reliable.
//
// The figures belong to a steady state unless the front of the window differs from its end
// by a difference that is both relevant and significant (Geweke's diagnostic). They are
// precise enough if the confidence interval is narrow. A closed loop is judged by its
// throughput, which determines its latency; an open loop, whose throughput is given, is
// judged by its latency.
func (w *window) unstable() string {
	var res Result
	w.count(&res)
	if res.Completed < minAnswers && w.options.iterations {
		return fmt.Sprintf("only %d iterations ended in %v", res.Completed, w.to-w.from)
	}
	if res.Completed < minAnswers {
		return fmt.Sprintf("only %d requests were answered in %v", res.Completed, w.to-w.from)
	}
	if broken := res.Errors - res.Cut - res.Unsent; float64(broken) > w.options.Precision*float64(res.Samples+broken) {
		return fmt.Sprintf("%d of %d requests failed", broken, res.Samples+broken)
	}
	series, metric, precision := w.series()
	if before, after, ok := drift(series, precision); ok {
		return fmt.Sprintf("%s still changed by %+.0f%% within the measured %v", metric, 100*(after/before-1), w.to-w.from)
	}
	if !w.isOpen() {
		if wide := halfWidth(series) / mean(series); wide > precision {
			return fmt.Sprintf("the precision of the throughput is only ±%.0f%% after %v", 100*wide, w.to-w.from)
		}
		return ""
	}
	ci, known := w.p95()
	switch wide := float64(ci) / float64(number.Quantile(w.latencies, 0.95)); {
	case !known:
		return fmt.Sprintf("%d requests in %v are too few for a p95", len(w.latencies), w.to-w.from)
	case wide > precision:
		return fmt.Sprintf("the precision of the p95 is only ±%.0f%% after %v", 100*wide, w.to-w.from)
	}
	return ""
}

// series returns the values that the window is judged by, their name, and the required
// precision.
func (w *window) series() (values []float64, metric string, precision float64) {
	if w.isOpen() {
		return w.binMeans(), "the latency", tailFactor * w.options.Precision
	}
	return w.rates(), "the throughput", w.options.Precision
}

// drifts reports whether the values that the window is judged by drift.
func (w *window) drifts() bool {
	values, _, precision := w.series()
	_, _, ok := drift(values, precision)
	return ok
}

// isOpen reports whether the load is an open loop.
func (w *window) isOpen() bool { return w.options.Spec.Kind == Poisson }

// p95 returns half the width of the 95% confidence interval of the 95th percentile: that of
// the order statistics or, if it is wider, that of the percentiles of batches, as when one
// slow phase delayed many requests. With fewer than about 75 latencies, known is false.
func (w *window) p95() (half time.Duration, known bool) {
	n := float64(len(w.latencies))
	off := normalQuantile * math.Sqrt(n*0.95*0.05)
	low, high := int(math.Floor(0.95*n-off)), int(math.Ceil(0.95*n+off))
	if low < 0 || high >= len(w.latencies) {
		return 0, false
	}
	half = (w.latencies[high] - w.latencies[low]) / 2
	var batches []float64
	for i := 0; i < bins; i += binsPerBatch {
		batch := slices.Concat(w.inBin[i : i+binsPerBatch]...)
		if len(batch) < minBatchSample {
			return half, true
		}
		slices.Sort(batch)
		batches = append(batches, float64(number.Quantile(batch, 0.95)))
	}
	return max(half, time.Duration(studentQuantile*math.Sqrt(variance(batches)/float64(len(batches))))), true
}

// drift compares the front of a series with its end. ok reports whether they differ by more
// than the fraction tolerance and more than chance explains. The noise is estimated from
// the end only, because a front with some warm-up varies more.
func drift(series []float64, tolerance float64) (before, after float64, ok bool) {
	if len(series) < bins {
		return 0, 0, false
	}
	front, end := series[:frontBins], series[len(series)-endBins:]
	before, after = mean(front), mean(end)
	noise := math.Sqrt(variance(end) * (1.0/frontBins + 1.0/endBins))
	gap := math.Abs(after - before)
	return before, after, gap > tolerance*after && gap > driftSignificance*noise
}

// halfWidth returns half the width of the 95% confidence interval of the mean of a series.
// It uses batch means, because neighbouring values may be dependent.
func halfWidth(series []float64) float64 {
	var batches []float64
	for batch := range slices.Chunk(series, binsPerBatch) {
		batches = append(batches, mean(batch))
	}
	return studentQuantile * math.Sqrt(variance(batches)/float64(len(batches)))
}

// p95Due returns the 95th percentile of the latencies of all requests that were due, or
// Never if that request failed.
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

// longestPeriods limits a trial, without the requested warm-up, to this multiple of
// Options.Duration.
const longestPeriods = 4

// evaluate evaluates the measurements at a time of the trial. It returns the beginning of
// the measured period and the time of the next evaluation; next is 0 if the measurements
// suffice.
//
// If the front of the period differs from its end, evaluate adds the front to the warm-up
// and extends the trial, so that the period is at least Options.Duration long. If only the
// precision is insufficient, it extends the trial by Options.Duration.
func (r *recorder) evaluate(now time.Duration, log []request) (from, next time.Duration) {
	o := r.options
	w := r.window(log, r.from, r.horizon(now, log))
	limit := o.Warmup + longestPeriods*o.Duration
	if w.unstable() == "" || now >= limit || r.fallsBehind(now, log) {
		return r.from, 0
	}
	from, next = r.from, now+o.Duration
	if w.drifts() {
		step := (now - r.from) * frontBins / bins
		from = r.from + step
		next = max(from+o.Duration, now+o.Duration*frontBins/bins)
	}
	return from, min(next, limit)
}

// horizon returns the time up to which all sent requests have probably been answered.
func (r *recorder) horizon(now time.Duration, log []request) time.Duration {
	var slowest time.Duration
	if r.options.iterations {
		slowest = reportDelay
	}
	for _, q := range log {
		if q.outcome == answered && q.end > r.from {
			slowest = max(slowest, q.end-q.sent)
		}
	}
	return max(now-slowest, r.from+(now-r.from)/2)
}

// fallsBehind reports whether an open loop exceeds the capacity of the instance: in the
// second half of the period, the number of unanswered requests grew by more than
// maxBacklogGrowth times the number of requests that were due.
func (r *recorder) fallsBehind(now time.Duration, log []request) bool {
	if r.options.Spec.Kind != Poisson {
		return false
	}
	middle := r.from + (now-r.from)/2
	due, answeredCount := 0, 0
	arrivals := newArrivals(r.options.Spec.RPS, r.options.Seed, r.start)
	for at := arrivals.next().Sub(r.start); at < now; at = arrivals.next().Sub(r.start) {
		if at >= middle {
			due++
		}
	}
	for _, q := range log {
		if q.end >= middle && q.end < now {
			answeredCount++
		}
	}
	return float64(due-answeredCount) > maxBacklogGrowth*float64(due)
}

func sum[T ~int64 | ~float64](values []T) (total float64) {
	for _, v := range values {
		total += float64(v)
	}
	return total
}

func mean(values []float64) float64 { return sum(values) / float64(len(values)) }

// variance returns the variance of a sample.
func variance(values []float64) float64 {
	m, squares := mean(values), 0.0
	for _, v := range values {
		squares += (v - m) * (v - m)
	}
	return squares / float64(len(values)-1)
}
