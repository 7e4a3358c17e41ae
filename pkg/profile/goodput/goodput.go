// Package goodput searches for the goodput of an instance: the largest rate of
// Poisson arrivals, in requests a second, at which the 95th percentile of their
// latency stays within an objective. A request that fails counts as one that is
// never answered. It is the metric of the server scenario of MLPerf Inference
// (Reddi et al. 2020, section IV: Poisson arrivals, the largest rate within a
// bound on a percentile), with p95 as the objectives of functions are.
//
// The search does no I/O. It says at which rate to try next and is told what was
// seen there.
//
// A queue makes requests wait in proportion to u/(1-u), u being its utilization
// (Kingman 1961, in heavy traffic, where waits are exponential, so that each
// percentile is in proportion to the mean). With the latency at rest r and the
// capacity, which are measured before, each trial gives a wait, p95 - r, and a u.
// A line through the logarithms of the waits over those of u/(1-u), whose slope is
// about 1, tells at which rate the wait is what the objective leaves. That is tried
// next, as long as it lies between the largest rate that is known to be within the
// objective and the smallest known not to be; where it does not, as for an instance
// that refuses requests beyond some rate, the search halves what lies between these,
// in the logarithm of the rate.
//
// The wait of a trial of n requests is known to about 1.8/((1-u) sqrt(n)) of itself,
// and with it the rate, wherever that is, to 1.8/sqrt(n): waits that follow each
// other are alike, more so the longer they are. So about 5000 requests in all tell a
// goodput to 5%.
package goodput

import (
	"fmt"
	"math"
)

const (
	missing    = 0.05 // part of the requests that may be beyond the objective
	mostTrials = 8
	fewest     = 2        // trials that a search takes, unless nothing keeps to the objective
	smallest   = 1.0 / 50 // of the throughput: there a queue is practically at rest
	small      = 0.2      // part of the throughput below which precision is relative to that part
	standard   = 0.05     // precision where none was asked for
	normal     = 1.960    // 97.5% quantile of the normal distribution
	keepsPace  = 0.97     // part of the arrivals that must be answered for a rate above the throughput to be sustained
	saturated  = 0.98     // utilization from which on the capacity is not known well enough for the model
	waitOfD1   = 1.5      // wait at u = 1/2 of a queue with constant service times, over the service time
	spread     = 1.8      // see the package; 1.6 of a queue with constant service times, 3 with exponential ones
	widest     = 0.4      // the same when u is close to 1: no trial is long enough to see more
	cliff      = 10.0     // times the wait that the objective leaves: no queue has that just beside it
	farthest   = 2.0      // times the largest rate tried: as far as the model is followed
	millis     = 1000.0   // in a second
)

// Trial is what was seen at one rate.
type Trial struct {
	RPS      float64 // arrivals a second, as they came
	Answered float64 // answers a second
	// P95 is the 95th percentile of the latency in ms, infinite when more than
	// 5% failed, and P95CI half the width of its 95% confidence interval; 0 is
	// not known.
	P95, P95CI float64
	Misses     int64 // requests beyond the objective, those that failed among them
	Count      int64 // of the requests
}

// Setting is what is searched for and known before.
type Setting struct {
	Objective  float64 // for p95, in ms
	Throughput float64 // that a closed loop sustains, in requests a second
	Rest       Trial   // of single requests with gaps between them; without Count not known
	// Precision is how well the goodput must be known: half the width of its 95%
	// confidence interval, over itself, or over a fifth of the throughput where
	// that is more. 0 takes it as known as the trials give it.
	Precision float64
}

// Outcome is what a search found.
type Outcome struct {
	Known  bool
	RPS    float64 // 0 when even the smallest rate misses the objective
	CI     float64 // half the width of the 95% confidence interval, in requests a second
	Trials int
	Reason string // why this, or why it is not known
}

// Search is one search. It is a function of its setting and of what it was told.
type Search struct {
	Setting
	trials []Trial
	none   bool // the smallest rate misses the objective
}

// New begins a search. Objective and Throughput must be above 0.
func New(s Setting) *Search {
	low, _ := wilson(s.Rest.Misses, s.Rest.Count)
	return &Search{Setting: s, none: low > missing && s.Rest.Misses > 1}
}

// Next is the rate to try; false when the search is over.
func (s *Search) Next() (rps float64, more bool) {
	if s.over() {
		return 0, false
	}
	return s.propose(), true
}

// Tell tells what was seen at the rate that Next returned.
func (s *Search) Tell(t Trial) {
	asked, more := s.Next()
	if !more {
		return
	}
	s.none = asked <= smallest*s.Throughput && s.judge(t) == beyond
	s.trials = append(s.trials, t)
}

// over tells whether no trial would change the outcome, or none may be made.
func (s *Search) over() bool {
	if s.none || len(s.trials) >= mostTrials {
		return true
	}
	r, ok := s.found()
	return ok && len(s.trials) >= fewest && r.half() <= s.tolerance(r.at)
}

// tolerance is the half width of the interval, in requests a second, at which the
// goodput counts as known.
func (s *Search) tolerance(rps float64) float64 {
	precision := s.Precision
	if precision == 0 {
		precision = standard
	}
	return precision * max(rps, small*s.Throughput)
}

// Outcome is what the search found so far. After the last trial an interval of
// twice the precision still counts as known.
func (s *Search) Outcome() Outcome {
	o := Outcome{Trials: len(s.trials)}
	r, ok := s.found()
	switch {
	case s.none && len(s.trials) == 0:
		o.Known, o.Reason = true, fmt.Sprintf("%d of %d single requests at rest took more than %.4g ms", s.Rest.Misses, s.Rest.Count, s.Objective)
	case s.none:
		o.Known, o.Reason = true, fmt.Sprintf("p95 is %.4g ms already at %.4g requests/s", s.trials[len(s.trials)-1].P95, s.trials[len(s.trials)-1].RPS)
	case !ok:
		o.Reason = s.unsettled()
	case s.Precision > 0 && r.half() > 2*s.tolerance(r.at):
		o.Reason = fmt.Sprintf("it is known to ±%.0f%% only after %d trials", 100*r.half()/r.at, len(s.trials))
	default:
		o.Known, o.RPS, o.CI = true, r.at, r.half()
		o.Reason = fmt.Sprintf("p95 is %.4g ms there, by %d trials", s.Objective, len(s.trials))
	}
	return o
}

// unsettled says why nothing is known.
func (s *Search) unsettled() string {
	within, tooHigh := s.known()
	switch {
	case within > 0 && tooHigh > 0 && within >= tooHigh:
		return fmt.Sprintf("%.4g requests/s kept to %.4g ms, %.4g did not", within, s.Objective, tooHigh)
	case within > 0:
		return fmt.Sprintf("no rate was too high, up to %.4g requests/s", within)
	}
	return fmt.Sprintf("no rate tells after %d trials: their requests are too few, or their latencies change", len(s.trials))
}

// span is an estimate of the goodput with its 95% confidence interval.
type span struct{ low, at, high float64 }

func (r span) half() float64 { return max(r.high-r.at, r.at-r.low) }

// found is the goodput as far as it is known; false when the trials do not bound it.
func (s *Search) found() (span, bool) {
	within, tooHigh, ok := s.bracket()
	if !ok {
		return span{}, false
	}
	if r, ok := s.estimate(); ok && r.at >= within && (tooHigh == 0 || r.at <= tooHigh) {
		r.low = max(r.low, within)
		if tooHigh > 0 {
			r.high = min(r.high, tooHigh)
		}
		return r, true
	}
	return span{within, math.Sqrt(within * tooHigh), tooHigh}, within > 0 && tooHigh > 0
}

// propose is the rate to try next.
func (s *Search) propose() float64 {
	return max(s.rate(), smallest*s.Throughput)
}

func (s *Search) rate() float64 {
	if len(s.trials) == 0 {
		slack := s.Objective - s.rest()
		return s.Throughput * max(slack, 0) / (max(slack, 0) + waitOfD1*millis/s.Throughput)
	}
	largest := 0.0
	for _, t := range s.trials {
		largest = max(largest, t.RPS)
	}
	within, tooHigh, _ := s.bracket()
	r, ok := s.estimate()
	last := s.trials[len(s.trials)-1]
	switch {
	case ok && r.at > within && (tooHigh == 0 || r.at < tooHigh):
		return min(r.at, farthest*largest)
	case within > 0 && tooHigh > 0:
		return math.Sqrt(within * tooHigh)
	case within > 0:
		return 1.3 * within
	case tooHigh > 0:
		return tooHigh / 2
	case last.P95 <= s.Objective:
		return 1.3 * last.RPS
	}
	return last.RPS / 2
}

// estimate is the rate at which p95 is the objective, by the model; false where the
// trials are not as those of a queue: near that rate p95 was far beyond.
func (s *Search) estimate() (span, bool) {
	capacity, slack := s.capacity(), s.Objective-s.rest()
	if slack <= 0 {
		return span{}, false
	}
	var l line
	for _, t := range s.trials {
		wait, u := t.P95-s.rest(), t.RPS/capacity
		if wait <= 0 || math.IsInf(wait, 1) || u <= 0 || u >= saturated {
			continue
		}
		l = append(l, point{math.Log(u / (1 - u)), math.Log(wait / slack), s.noise(t)})
	}
	if len(l) == 0 {
		return span{}, false
	}
	x, sd := l.zero()
	u := 1 / (1 + math.Exp(-x))
	for _, t := range s.trials {
		if t.P95-s.rest() > cliff*slack && t.RPS < 1.1*capacity*u {
			return span{}, false
		}
	}
	apart := math.Exp(normal * sd * (1 - u))
	return span{capacity * u / apart, capacity * u, capacity * u * apart}, true
}

// noise is the standard deviation of the wait of a trial, over itself.
func (s *Search) noise(t Trial) float64 {
	u := min(t.RPS/s.capacity(), 1)
	noise := min(spread/(math.Sqrt(float64(t.Count))*(1-u)), widest)
	if wait := t.P95 - s.rest(); wait > 0 {
		noise = max(noise, t.P95CI/wait/normal)
	}
	return noise
}

// rest is the latency at rest in ms: p95 of single requests, less where a trial
// saw less, and the time of one request at the throughput where neither tells.
func (s *Search) rest() float64 {
	rest := math.Inf(1)
	if s.Rest.Count > 0 {
		rest = s.Rest.P95
	}
	for _, t := range s.trials {
		if t.P95 > 0 {
			rest = min(rest, t.P95)
		}
	}
	if math.IsInf(rest, 1) || s.Rest.Count == 0 {
		rest = min(rest, millis/s.Throughput)
	}
	return rest
}

// capacity is the rate, in requests a second, at which the queue would grow for
// ever: the throughput, or more where more was seen to be answered.
func (s *Search) capacity() float64 {
	capacity := s.Throughput
	for _, t := range s.trials {
		capacity = max(capacity, t.Answered)
	}
	return capacity
}

// verdict says what a trial tells about its rate.
type verdict int

const (
	undecided verdict = iota
	inside            // p95 is within the objective
	beyond            // it is not
)

// judge says what a trial tells, with 97.5% confidence. A rate above the
// throughput is beyond the objective, however short the queue still was when the
// trial ended, when the answers did not keep pace with it.
func (s *Search) judge(t Trial) verdict {
	if s.lags(t) {
		return beyond
	}
	if t.P95CI > 0 && !math.IsInf(t.P95, 1) {
		half := max(t.P95CI, normal*s.noise(t)*(t.P95-s.rest()))
		switch {
		case t.P95+half <= s.Objective:
			return inside
		case t.P95-half > s.Objective:
			return beyond
		}
		return undecided
	}
	switch low, high := wilson(t.Misses, t.Count); {
	case high <= missing:
		return inside
	case low > missing:
		return beyond
	}
	return undecided
}

// lags tells whether the answers did not keep pace with arrivals above the
// throughput.
func (s *Search) lags(t Trial) bool { return t.RPS > s.Throughput && t.Answered < keepsPace*t.RPS }

// known are the largest rate known to be within the objective and the smallest
// known not to be; 0 is none.
func (s *Search) known() (within, tooHigh float64) {
	for _, t := range s.trials {
		switch s.judge(t) {
		case inside:
			within = max(within, t.RPS)
		case beyond:
			rps := t.RPS
			if s.lags(t) { // what was answered is all that there is
				rps = min(rps, max(t.Answered, s.Throughput))
			}
			if tooHigh == 0 || rps < tooHigh {
				tooHigh = rps
			}
		}
	}
	return within, tooHigh
}

// bracket is known. Where it is a contradiction, it is the other way round if chance
// explains it, and false if not.
func (s *Search) bracket() (within, tooHigh float64, ok bool) {
	within, tooHigh = s.known()
	switch {
	case tooHigh == 0 || within < tooHigh:
		return within, tooHigh, true
	case within-tooHigh <= s.tolerance(within):
		return tooHigh, within, true
	}
	return 0, 0, false
}

// wilson is the 95% confidence interval of a proportion, k of n (Wilson 1927); all
// of 0 to 1 when n is 0.
func wilson(k, n int64) (low, high float64) {
	if n == 0 {
		return 0, 1
	}
	p, m, z2 := float64(k)/float64(n), float64(n), normal*normal
	center := (p + z2/(2*m)) / (1 + z2/m)
	half := normal / (1 + z2/m) * math.Sqrt(p*(1-p)/m+z2/(4*m*m))
	return max(0, center-half), min(1, center+half)
}
