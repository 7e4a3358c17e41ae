package scale

import "github.com/gfaas/gfaas/pkg/reason"

// eager runs as many instances as the estimated load needs, and follows it at once in both
// directions.
type eager struct {
	unit Instance
	load Estimator
	last float64 // estimate
}

// NewEager returns a Scaler that runs as many instances of unit as the estimated load needs, and
// follows it at once in both directions. The instances never use more than their request.
func NewEager(unit Instance, load Estimator, b Bounds) *Scaler {
	unit.Limit = unit.Request
	return newScaler(&eager{unit: unit, load: load}, b)
}

func (e *eager) observe(rps float64)                       { e.last = e.load.Observe(rps) }
func (e *eager) acted()                                    {}
func (e *eager) spare(deployed []Instance, n int) []string { return newest(deployed, n) }
func (e *eager) template() (Instance, bool)                { return e.unit, true }

func (e *eager) decide(deployed []Instance) decision {
	target, n := instancesFor(e.last, e.unit.Request.ThroughputRPS), len(deployed)
	d := decision{reason: reason.New(loadNeeds, reason.Number("rps", e.last), reason.Number("instances", target))}
	switch {
	case target > n:
		d.start = []Start{{Count: target - n, Like: e.unit}}
	case target < n:
		d.stop = newest(deployed, n-target)
	}
	return d
}
