package load

import "time"

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
