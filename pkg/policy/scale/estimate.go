package scale

import (
	"fmt"
	"slices"
)

// Estimator turns observed loads into the load to provide for. It receives one load per second,
// in requests per second.
type Estimator interface {
	// Observe receives the next load and returns the estimate.
	Observe(rps float64) float64
}

// Last estimates each load by itself.
type Last struct{}

// Observe implements Estimator.
func (Last) Observe(rps float64) float64 { return rps }

// window estimates the largest load of the last size seconds.
type window struct {
	size  int
	loads []float64
}

// Observe implements Estimator.
func (w *window) Observe(rps float64) float64 {
	w.loads = append(w.loads, rps)
	if len(w.loads) > w.size {
		w.loads = w.loads[1:]
	}
	return slices.Max(w.loads)
}

// ewma estimates an exponential moving average: each load weighs 1 - alpha times the next.
type ewma struct {
	alpha   float64 // above 0, at most 1: the weight of the newest load
	mean    float64
	started bool
}

// Observe implements Estimator.
func (e *ewma) Observe(rps float64) float64 {
	if !e.started {
		e.mean, e.started = rps, true
	}
	e.mean += e.alpha * (rps - e.mean)
	return e.mean
}

// kalman is a Kalman filter for a random walk: each second the load changes by a step of variance
// process, and is observed with an error of variance noise.
type kalman struct {
	process, noise float64
	mean, variance float64
	started        bool
}

// Observe implements Estimator.
func (k *kalman) Observe(rps float64) float64 {
	if !k.started {
		k.mean, k.variance, k.started = rps, k.noise, true
		return rps
	}
	k.variance += k.process
	gain := k.variance / (k.variance + k.noise)
	k.mean += gain * (rps - k.mean)
	k.variance *= 1 - gain
	return max(0, k.mean)
}

// Estimators returns the names of EstimatorKinds.
func Estimators() (names []string) {
	for _, k := range EstimatorKinds() {
		names = append(names, k.Name)
	}
	return names
}

// EstimatorOptions has the parameters of all estimators.
type EstimatorOptions struct {
	Window         int     // seconds
	Alpha          float64 // weight of the newest load
	Process, Noise float64 // variances, in (requests per second)²
}

// DefaultEstimator returns parameters that forget a load within about ten seconds.
func DefaultEstimator() EstimatorOptions {
	return EstimatorOptions{Window: 10, Alpha: 0.3, Process: 1, Noise: 10}
}

// NewEstimator returns the estimator with that name. It fails if there is none, or if a parameter is
// out of range.
func NewEstimator(name string, o EstimatorOptions) (Estimator, error) {
	kind, err := estimatorKind(name)
	if err != nil {
		return nil, err
	}
	return kind.New(o)
}

func newWindow(o EstimatorOptions) (Estimator, error) {
	if o.Window < 1 || o.Window > 1e6 {
		return nil, fmt.Errorf("window %d: expected a number from 1 to 1000000", o.Window)
	}
	return &window{size: o.Window}, nil
}

func newEWMA(o EstimatorOptions) (Estimator, error) {
	if !(o.Alpha > 0 && o.Alpha <= 1) {
		return nil, fmt.Errorf("alpha %g: expected more than 0 and at most 1", o.Alpha)
	}
	return &ewma{alpha: o.Alpha}, nil
}

func newKalman(o EstimatorOptions) (Estimator, error) {
	if !(o.Process > 0 && o.Noise > 0 && o.Process <= 1e12 && o.Noise <= 1e12) {
		return nil, fmt.Errorf("process %g, noise %g: expected variances more than 0", o.Process, o.Noise)
	}
	return &kalman{process: o.Process, noise: o.Noise}, nil
}
