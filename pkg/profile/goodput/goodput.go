// Package goodput searches for the goodput of an instance: the largest rate of Poisson arrivals, in requests per
// second, at which the 95th percentile of the latency stays within an objective. A failed request counts as one
// with infinite latency. It is the metric of the server scenario of MLPerf Inference (Reddi et al. 2020, section
// IV: Poisson arrivals, the largest rate within a bound on a percentile), with p95 as the percentile.
//
// The search does no I/O. Next returns the rate to try, and Record receives the result.
//
// Method. In a queue, waits grow in proportion to u/(1-u), where u is its utilization (Kingman 1961: in heavy traffic,
// waits are distributed exponentially, so each percentile is proportional to the mean). The latency r of single
// requests and the throughput are measured beforehand. Each trial then yields a wait, p95 - r, at a utilization u. A
// line through the points (log u/(1-u), log wait), with a slope of about 1, predicts the rate at which the wait equals
// the objective minus r. The search tries that rate if it lies between the largest rate known to meet the objective and
// the smallest rate known to miss it. Otherwise (for example if an instance refuses requests above some rate) the
// search bisects that interval on a logarithmic scale.
//
// Precision. In a trial of n requests, the relative error of the wait is about 1.8/((1-u) sqrt(n)), and that of the
// rate 1.8/sqrt(n). The factor 1.8 reflects that consecutive waits are correlated; the correlation grows with the
// waits. About 5,000 requests in total therefore determine a goodput to 5%.
package goodput

import (
	"cmp"
	"fmt"
	"math"
)

const (
	maxMissFraction     = 0.05     // fraction of requests that may exceed the objective (p95)
	maxTrials           = 8        // limit on the trials of a search
	minTrials           = 2        // minimum number of trials, unless even the smallest rate misses the objective
	minRateFraction     = 1.0 / 50 // smallest rate tried, as a fraction of the throughput; such a queue is almost empty
	precisionFloor      = 0.2      // below this fraction of the throughput, precision is relative to the fraction
	defaultPrecision    = 0.05     // default precision
	normal              = 1.960    // 97.5% quantile of the normal distribution
	minAnsweredFraction = 0.97     // above the throughput, a rate is sustained if at least this fraction of the arrivals is answered
	saturated           = 0.98     // trials at this utilization or more are ignored, because the capacity is uncertain
	waitOfD1            = 1.5      // mean wait at u = 1/2 with constant service times, divided by the service time
	spread              = 1.8      // factor in the relative error (package comment); theory: 1.6 for constant, 3 for exponential service times
	maxNoise            = 0.4      // upper bound on the relative error as u approaches 1, where trials are too short to show more
	cliff               = 10.0     // a wait of this multiple of the allowed wait, close to the predicted rate, contradicts the model
	maxRateFactor       = 2.0      // limit of a predicted rate, as a multiple of the largest rate tried
	millis              = 1000.0   // per second
)

// Trial is the result of one trial, at one rate.
type Trial struct {
	RPS      float64 // measured arrivals per second
	Answered float64 // answers per second
	// P95 is the 95th percentile of the latency in ms; it is infinite if more than 5% of the requests failed. P95CI is
	// half the width of its 95% confidence interval; 0 means unknown.
	P95, P95CI float64
	Misses     int64 // requests that exceeded the objective or failed
	Count      int64 // all requests
}

// Setting is the input of a search.
type Setting struct {
	Objective  float64 // limit on the p95 latency, in ms
	Throughput float64 // throughput of a closed loop, in requests per second
	Idle       Trial   // of single requests with gaps between them; unknown if Count is 0
	// Precision is the required precision of the goodput: half the width of its 95% confidence interval, relative
	// to the goodput or to a fifth of the throughput, whichever is more. 0 accepts any precision.
	Precision float64
}

// Outcome is the result of a search.
type Outcome struct {
	Known  bool
	RPS    float64 // requests per second; 0 if even the smallest rate misses the objective
	CI     float64 // half the width of the 95% confidence interval, in requests per second
	Trials int
	Reason string // explains the result, or why it is unknown
}

// Search is one search. Its results depend only on its setting and its trials.
type Search struct {
	Setting
	trials       []Trial
	unattainable bool // the smallest rate misses the objective
}

// New returns a search. Objective and Throughput must be above 0.
func New(s Setting) *Search {
	low, _ := wilson(s.Idle.Misses, s.Idle.Count)
	return &Search{Setting: s, unattainable: low > maxMissFraction && s.Idle.Misses > 1}
}

// Next returns the rate to try, or false when the search has ended.
func (s *Search) Next() (rps float64, ok bool) {
	if s.done() {
		return 0, false
	}
	return s.propose(), true
}

// Record reports the result at the rate that Next returned.
func (s *Search) Record(t Trial) {
	rate, ok := s.Next()
	if !ok {
		return
	}
	s.unattainable = rate <= minRateFraction*s.Throughput && s.judge(t) == misses
	s.trials = append(s.trials, t)
}

// done reports whether the search has ended: another trial is not allowed or would not change the outcome.
func (s *Search) done() bool {
	if s.unattainable || len(s.trials) >= maxTrials {
		return true
	}
	r, ok := s.result()
	return ok && len(s.trials) >= minTrials && r.half() <= s.tolerance(r.at)
}

// tolerance returns the half width of the interval, in requests per second, at which the goodput counts as known.
func (s *Search) tolerance(rps float64) float64 {
	return cmp.Or(s.Precision, defaultPrecision) * max(rps, precisionFloor*s.Throughput)
}

// Outcome returns the result of the search so far. After the last trial, an interval of up to twice the required
// precision counts as known.
func (s *Search) Outcome() Outcome {
	o := Outcome{Trials: len(s.trials)}
	r, ok := s.result()
	switch {
	case s.unattainable && len(s.trials) == 0:
		o.Known, o.Reason = true, fmt.Sprintf("%d of %d single requests at rest took more than %.4g ms", s.Idle.Misses, s.Idle.Count, s.Objective)
	case s.unattainable:
		o.Known, o.Reason = true, fmt.Sprintf("p95 is %.4g ms at only %.4g requests/s", s.trials[len(s.trials)-1].P95, s.trials[len(s.trials)-1].RPS)
	case !ok:
		o.Reason = s.unsettled()
	case s.Precision > 0 && r.half() > 2*s.tolerance(r.at):
		o.Reason = fmt.Sprintf("its precision is only ±%.0f%% after %d trials", 100*r.half()/r.at, len(s.trials))
	default:
		o.Known, o.RPS, o.CI = true, r.at, r.half()
		o.Reason = fmt.Sprintf("p95 is %.4g ms at this rate, according to %d trials", s.Objective, len(s.trials))
	}
	return o
}

// unsettled explains why the goodput is unknown.
func (s *Search) unsettled() string {
	within, tooHigh := s.bounds()
	switch {
	case within > 0 && tooHigh > 0 && within >= tooHigh:
		return fmt.Sprintf("%.4g requests/s met %.4g ms, but %.4g requests/s did not", within, s.Objective, tooHigh)
	case within > 0:
		return fmt.Sprintf("no rate up to %.4g requests/s was too high", within)
	}
	return fmt.Sprintf("no rate was conclusive after %d trials: they have too few requests, or the latencies keep changing", len(s.trials))
}

// span is an estimate of the goodput with its 95% confidence interval.
type span struct{ low, at, high float64 }

func (r span) half() float64 { return max(r.high-r.at, r.at-r.low) }

// result returns the goodput, or false if the trials do not bound it.
func (s *Search) result() (span, bool) {
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

// propose returns the rate to try next.
func (s *Search) propose() float64 {
	return max(s.rate(), minRateFraction*s.Throughput)
}

func (s *Search) rate() float64 {
	if len(s.trials) == 0 {
		slack := s.Objective - s.idleLatency()
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
		return min(r.at, maxRateFactor*largest)
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

// estimate returns the rate at which the model predicts a p95 equal to the objective. It returns false if the trials
// contradict the model: near or below that rate, p95 was far beyond the objective.
func (s *Search) estimate() (span, bool) {
	capacity, slack := s.capacity(), s.Objective-s.idleLatency()
	if slack <= 0 {
		return span{}, false
	}
	var l line
	for _, t := range s.trials {
		wait, u := t.P95-s.idleLatency(), t.RPS/capacity
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
		if t.P95-s.idleLatency() > cliff*slack && t.RPS < 1.1*capacity*u {
			return span{}, false
		}
	}
	factor := math.Exp(normal * sd * (1 - u))
	return span{capacity * u / factor, capacity * u, capacity * u * factor}, true
}

// noise returns the relative standard deviation of the wait in a trial.
func (s *Search) noise(t Trial) float64 {
	u := min(t.RPS/s.capacity(), 1)
	noise := min(spread/(math.Sqrt(float64(t.Count))*(1-u)), maxNoise)
	if wait := t.P95 - s.idleLatency(); wait > 0 {
		noise = max(noise, t.P95CI/wait/normal)
	}
	return noise
}

// idleLatency returns the latency of single requests in ms: their p95, or less if a trial had less. If neither is
// known, it is the time of one request at the throughput.
func (s *Search) idleLatency() float64 {
	latency := math.Inf(1)
	if s.Idle.Count > 0 {
		latency = s.Idle.P95
	}
	for _, t := range s.trials {
		if t.P95 > 0 {
			latency = min(latency, t.P95)
		}
	}
	if math.IsInf(latency, 1) || s.Idle.Count == 0 {
		latency = min(latency, millis/s.Throughput)
	}
	return latency
}

// capacity returns the rate, in requests per second, at which the queue would grow without bound: the throughput, or
// the highest rate of answers in a trial.
func (s *Search) capacity() float64 {
	capacity := s.Throughput
	for _, t := range s.trials {
		capacity = max(capacity, t.Answered)
	}
	return capacity
}

// verdict is the conclusion from a trial.
type verdict int

const (
	undecided verdict = iota
	meets             // p95 is within the objective
	misses            // p95 exceeds the objective
)

// judge returns the conclusion from a trial, with 97.5% confidence. A rate above the throughput is beyond the
// objective if the answers did not keep pace with it, however short the queue was at the end of the trial.
func (s *Search) judge(t Trial) verdict {
	if s.lags(t) {
		return misses
	}
	if t.P95CI > 0 && !math.IsInf(t.P95, 1) {
		half := max(t.P95CI, normal*s.noise(t)*(t.P95-s.idleLatency()))
		switch {
		case t.P95+half <= s.Objective:
			return meets
		case t.P95-half > s.Objective:
			return misses
		}
		return undecided
	}
	switch low, high := wilson(t.Misses, t.Count); {
	case high <= maxMissFraction:
		return meets
	case low > maxMissFraction:
		return misses
	}
	return undecided
}

// lags reports whether the answers did not keep pace with arrivals above the throughput.
func (s *Search) lags(t Trial) bool {
	return t.RPS > s.Throughput && t.Answered < minAnsweredFraction*t.RPS
}

// bounds returns the largest rate known to meet the objective and the smallest rate known to miss it, or 0 for each if
// there is none.
func (s *Search) bounds() (within, tooHigh float64) {
	for _, t := range s.trials {
		switch s.judge(t) {
		case meets:
			within = max(within, t.RPS)
		case misses:
			rps := t.RPS
			if s.lags(t) { // the instance sustains no more than it answered
				rps = min(rps, max(t.Answered, s.Throughput))
			}
			if tooHigh == 0 || rps < tooHigh {
				tooHigh = rps
			}
		}
	}
	return within, tooHigh
}

// bracket returns the result of bounds. If the two contradict each other, it swaps them if chance explains that, and
// otherwise returns false.
func (s *Search) bracket() (within, tooHigh float64, ok bool) {
	within, tooHigh = s.bounds()
	switch {
	case tooHigh == 0 || within < tooHigh:
		return within, tooHigh, true
	case within-tooHigh <= s.tolerance(within):
		return tooHigh, within, true
	}
	return 0, 0, false
}

// wilson returns the 95% confidence interval of a proportion, k of n (Wilson 1927); 0 to 1 if n is 0.
func wilson(k, n int64) (low, high float64) {
	if n == 0 {
		return 0, 1
	}
	p, m, z2 := float64(k)/float64(n), float64(n), normal*normal
	center := (p + z2/(2*m)) / (1 + z2/m)
	half := normal / (1 + z2/m) * math.Sqrt(p*(1-p)/m+z2/(4*m*m))
	return max(0, center-half), min(1, center+half)
}
