package workload

import (
	"fmt"
	"math"
)

// Pattern is how the rate of arrivals goes over time, and how they scatter
// about it. Times are in seconds. Whatever the shape, the mean rate over a
// long time is that asked for.
type Pattern struct {
	Shape  string
	CV     float64 // gamma: standard deviation of the gaps over their mean
	Period float64 // bursty, periodic, sporadic: from one to the next
	Burst  float64 // bursty, sporadic: how long one lasts
	Factor float64 // bursty: the rate in a burst over that between
}

// Shapes are the shapes a pattern may have.
func Shapes() []string { return []string{"poisson", "gamma", "bursty", "periodic", "sporadic"} }

// Defaults are a pattern's parameters unless told otherwise.
func Defaults() Pattern { return Pattern{CV: 4, Period: 120, Burst: 10, Factor: 5} }

// swing is how far a periodic rate goes from its mean, as a part of it.
const swing = 0.8

// Check says what is wrong with the parameters.
func (p Pattern) Check() error {
	switch {
	case !within(p.CV, 0.01, 100):
		return fmt.Errorf("a coefficient of variation of %g, expected 0.01 to 100", p.CV)
	case !within(p.Period, 1e-3, 1e7):
		return fmt.Errorf("a period of %g s, expected 0.001 to 10000000", p.Period)
	case !within(p.Burst, 1e-3, p.Period):
		return fmt.Errorf("bursts of %g s, expected 0.001 to the period, %g", p.Burst, p.Period)
	case !within(p.Factor, 1, 1e6):
		return fmt.Errorf("a factor of %g, expected 1 to 1000000", p.Factor)
	}
	return nil
}

func within(v, low, high float64) bool { return v >= low && v <= high }

// arrivals are times from 0 to duration, in order, at a mean rate a second.
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
		most := rate * p.Period / p.Burst
		return thinned(r, duration, most, inBursts(p.visits(r, duration), 0, most))
	}
	return gaps(duration, func() float64 { return r.exponential(1 / rate) })
}

func gaps(duration float64, gap func() float64) []float64 {
	var out []float64
	for t := gap(); t < duration; t += gap() {
		out = append(out, t)
	}
	return out
}

// thinned are arrivals whose rate goes as a function of time, most at most:
// those of the constant rate most, each kept with the odds of the rate there.
func thinned(r random, duration, most float64, rate func(float64) float64) []float64 {
	var out []float64
	for t := r.exponential(1 / most); t < duration; t += r.exponential(1 / most) {
		if r.uniform()*most < rate(t) {
			out = append(out, t)
		}
	}
	return out
}

// bursts begin anywhere within each period.
func (p Pattern) bursts(r random, duration float64) (out [][2]float64) {
	for t := 0.0; t < duration; t += p.Period {
		begin := t + r.uniform()*(p.Period-p.Burst)
		out = append(out, [2]float64{begin, begin + p.Burst})
	}
	return out
}

// visits begin after pauses of random length.
func (p Pattern) visits(r random, duration float64) (out [][2]float64) {
	for t := r.exponential(p.Period - p.Burst); t < duration; t += p.Burst + r.exponential(p.Period-p.Burst) {
		out = append(out, [2]float64{t, t + p.Burst})
	}
	return out
}

// inBursts is a rate that is high within spans, which are in order, and low
// outside. Times are asked in order.
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

// Series counts the arrivals of a pattern in each second.
func (p Pattern) Series(rate float64, seconds int, seed uint64) []float64 {
	out := make([]float64, seconds)
	for _, t := range p.arrivals(newRandom(seed, 0), rate, float64(seconds)) {
		out[int(t)]++
	}
	return out
}

// Arrivals are the moments, in seconds from 0 to duration and in order, at which
// requests come at a mean rate a second. Each stream of a seed has its own.
func (p Pattern) Arrivals(rate, duration float64, seed, stream uint64) []float64 {
	return p.arrivals(newRandom(seed, stream), rate, duration)
}
