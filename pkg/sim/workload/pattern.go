package workload

import (
	"fmt"
	"math"
)

// Pattern describes the rate of arrivals over time and their variation. Times are in seconds. The
// mean rate over a long time does not depend on the shape.
type Pattern struct {
	Shape  string
	CV     float64 // gamma: standard deviation of the gaps over their mean
	Period float64 // bursty, periodic, sporadic: duration of a cycle
	Burst  float64 // bursty, sporadic: duration of a burst
	Factor float64 // bursty: rate in a burst over the rate outside
}

// Shapes returns the possible shapes.
func Shapes() []string { return []string{"poisson", "gamma", "bursty", "periodic", "sporadic"} }

// Defaults returns the default parameters.
func Defaults() Pattern { return Pattern{CV: 4, Period: 120, Burst: 10, Factor: 5} }

// swing is the amplitude of a periodic rate, as a fraction of its mean.
const swing = 0.8

// Check returns an error if a parameter is out of range.
func (p Pattern) Check() error {
	switch {
	case !within(p.CV, 0.01, 100):
		return fmt.Errorf("coefficient of variation %g, expected 0.01 to 100", p.CV)
	case !within(p.Period, 1e-3, 1e7):
		return fmt.Errorf("period %g s, expected 0.001 to 10000000", p.Period)
	case !within(p.Burst, 1e-3, p.Period):
		return fmt.Errorf("burst %g s, expected 0.001 to the period, %g", p.Burst, p.Period)
	case !within(p.Factor, 1, 1e6):
		return fmt.Errorf("factor %g, expected 1 to 1000000", p.Factor)
	}
	return nil
}

func within(v, low, high float64) bool { return v >= low && v <= high }

// arrivals draws times from 0 to duration, ascending, at a mean rate per second.
func (p Pattern) arrivals(r random, rate, duration float64) []float64 {
	switch p.Shape {
	case "gamma":
		shape := 1 / (p.CV * p.CV)
		return gaps(duration, func() float64 { return r.gamma(shape) / (shape * rate) })
	case "bursty":
		between := rate * p.Period / (p.Burst*p.Factor + p.Period - p.Burst)
		return thinned(r, duration, between*p.Factor, inBursts(p.bursts(r, duration), between, between*p.Factor))
	case "periodic":
		return thinned(r, duration, rate*(1+swing), func(t float64) float64 {
			return rate * (1 + swing*math.Sin(2*math.Pi*t/p.Period))
		})
	case "sporadic":
		peak := rate * p.Period / p.Burst
		return thinned(r, duration, peak, inBursts(p.visits(r, duration), 0, peak))
	}
	return gaps(duration, func() float64 { return r.exponential(1 / rate) })
}

func gaps(duration float64, gap func() float64) []float64 {
	var times []float64
	for t := gap(); t < duration; t += gap() {
		times = append(times, t)
	}
	return times
}

// thinned draws arrivals with a variable rate of at most peak: it draws arrivals at the constant
// rate peak and keeps each with probability rate(t)/peak.
func thinned(r random, duration, peak float64, rate func(float64) float64) []float64 {
	var times []float64
	for t := r.exponential(1 / peak); t < duration; t += r.exponential(1 / peak) {
		if r.uniform()*peak < rate(t) {
			times = append(times, t)
		}
	}
	return times
}

// bursts draws one burst in each period, at a random time within it.
func (p Pattern) bursts(r random, duration float64) (spans [][2]float64) {
	for t := 0.0; t < duration; t += p.Period {
		start := t + r.uniform()*(p.Period-p.Burst)
		spans = append(spans, [2]float64{start, start + p.Burst})
	}
	return spans
}

// visits draws bursts after pauses of random length.
func (p Pattern) visits(r random, duration float64) (spans [][2]float64) {
	for t := r.exponential(p.Period - p.Burst); t < duration; t += p.Burst + r.exponential(p.Period-p.Burst) {
		spans = append(spans, [2]float64{t, t + p.Burst})
	}
	return spans
}

// inBursts returns a rate that is high within the spans and low outside. The spans must be
// ascending, and so must the times of the calls.
func inBursts(spans [][2]float64, low, high float64) func(float64) float64 {
	return func(t float64) float64 {
		for len(spans) > 0 && t >= spans[0][1] {
			spans = spans[1:]
		}
		if len(spans) > 0 && t >= spans[0][0] {
			return high
		}
		return low
	}
}

// Series returns the number of arrivals of a pattern in each second.
func (p Pattern) Series(rate float64, seconds int, seed uint64) []float64 {
	counts := make([]float64, seconds)
	for _, t := range p.arrivals(newRandom(seed, 0), rate, float64(seconds)) {
		counts[int(t)]++
	}
	return counts
}

// Arrivals draws the times of requests, in seconds from 0 to duration, ascending, at a mean rate
// per second. Each stream of a seed draws its own times.
func (p Pattern) Arrivals(rate, duration float64, seed, stream uint64) []float64 {
	return p.arrivals(newRandom(seed, stream), rate, duration)
}
