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

// Window is the largest load of the last Size seconds.
type Window struct {
	Size int
	seen []float64
}

// Observe implements Estimator.
func (w *Window) Observe(rps float64) float64 {
	w.seen = append(w.seen, rps)
	if len(w.seen) > w.Size {
		w.seen = w.seen[1:]
	}
	return slices.Max(w.seen)
}

// EWMA is the mean of all loads, each counting 1 - Alpha as much as the next.
type EWMA struct {
	Alpha   float64 // above 0, at most 1: how much the newest load counts
	mean    float64
	started bool
}

// Observe implements Estimator.
func (e *EWMA) Observe(rps float64) float64 {
	if !e.started {
		e.mean, e.started = rps, true
	}
	e.mean += e.Alpha * (rps - e.mean)
	return e.mean
}

// Kalman estimates a load that wanders: each second it moves by a step of
// variance Process, and is seen with an error of variance Noise.
type Kalman struct {
	Process, Noise float64
	mean, variance float64
	started        bool
}

// Observe implements Estimator.
func (k *Kalman) Observe(rps float64) float64 {
	if !k.started {
		k.mean, k.variance, k.started = rps, k.Noise, true
		return rps
	}
	k.variance += k.Process
	gain := k.variance / (k.variance + k.Noise)
	k.mean += gain * (rps - k.mean)
	k.variance *= 1 - gain
	return max(0, k.mean)
}

// Estimators are the names that NewEstimator knows.
func Estimators() []string { return []string{"last", "window", "ewma", "kalman"} }

// EstimatorOptions are the parameters of all estimators.
type EstimatorOptions struct {
	Window         int
	Alpha          float64
	Process, Noise float64
}

// DefaultEstimator are parameters that forget within some ten seconds.
func DefaultEstimator() EstimatorOptions {
	return EstimatorOptions{Window: 10, Alpha: 0.3, Process: 1, Noise: 10}
}

// NewEstimator makes an estimator by name.
func NewEstimator(name string, o EstimatorOptions) (Estimator, error) {
	switch {
	case name == "last":
		return Last{}, nil
	case name == "window" && (o.Window < 1 || o.Window > 1e6):
		return nil, fmt.Errorf("window %d: expected a number from 1 to 1000000", o.Window)
	case name == "window":
		return &Window{Size: o.Window}, nil
	case name == "ewma" && !(o.Alpha > 0 && o.Alpha <= 1):
		return nil, fmt.Errorf("alpha %g: expected more than 0 and at most 1", o.Alpha)
	case name == "ewma":
		return &EWMA{Alpha: o.Alpha}, nil
	case name == "kalman" && !(o.Process > 0 && o.Noise > 0 && o.Process <= 1e12 && o.Noise <= 1e12):
		return nil, fmt.Errorf("process %g, noise %g: expected variances more than 0", o.Process, o.Noise)
	case name == "kalman":
		return &Kalman{Process: o.Process, Noise: o.Noise}, nil
	}
	return nil, fmt.Errorf("no estimator %q", name)
}
