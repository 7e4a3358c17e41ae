package scale

import "github.com/gfaas/gfaas/pkg/reason"

// eager runs as many instances as the estimated load needs, and follows it at once in both
// directions.
type eager struct {
	uniform
	load Estimator
	last float64 // estimate
}

// NewEager returns a Scaler that runs as many instances of unit as the estimated load needs, and
// follows it at once in both directions. The instances never use more than their request.
func NewEager(unit Instance, load Estimator, b Bounds) *Scaler {
	unit.Limit = unit.Request
	return newScaler(&eager{uniform: uniform{unit}, load: load}, b)
}

func (e *eager) observe(rps float64) { e.last = e.load.Observe(rps) }

func (e *eager) decide(deployed []Instance) decision {
	target := instancesFor(e.last, e.unit.Request.ThroughputRPS)
	r := reason.New(loadNeeds, reason.Number("rps", e.last), reason.Number("instances", target))
	return e.scaleTo(target, deployed, r)
}
