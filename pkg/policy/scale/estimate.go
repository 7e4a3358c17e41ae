package scale

import (
	"fmt"
	"slices"
)

// Estimator turns the loads seen into the load to provide for. Loads are in
// requests a second, one a second.
type Estimator interface {
	// Observe hears the next load and returns the estimate.
	Observe(rps float64) float64
}

// Last takes each load as it is.
type Last struct{}

// Observe implements Estimator.
func (Last) Observe(rps float64) float64 { return rps }

// window is the largest load of the last size seconds.
type window struct {
	size int
	seen []float64
}

// Observe implements Estimator.
func (w *window) Observe(rps float64) float64 {
	w.seen = append(w.seen, rps)
	if len(w.seen) > w.size {
		w.seen = w.seen[1:]
	}
	return slices.Max(w.seen)
}

// ewma is the mean of all loads, each counting 1 - alpha as much as the next.
type ewma struct {
	alpha   float64 // above 0, at most 1: how much the newest load counts
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

// kalman estimates a load that wanders: each second it moves by a step of
// variance process, and is seen with an error of variance noise.
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

// Estimators returns the names that NewEstimator knows.
func Estimators() (names []string) {
	for _, k := range EstimatorKinds() {
		names = append(names, k.Name)
	}
	return names
}

// EstimatorOptions are the parameters of all estimators.
type EstimatorOptions struct {
	Window         int     // seconds
	Alpha          float64 // how much the newest load counts
	Process, Noise float64 // variances, in (requests a second)²
}

// DefaultEstimator are parameters that forget within some ten seconds.
func DefaultEstimator() EstimatorOptions {
	return EstimatorOptions{Window: 10, Alpha: 0.3, Process: 1, Noise: 10}
}

// NewEstimator makes an estimator by name. The error names a setting that is out of range.
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
