package scaling

import (
	"math"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/scale"
	"github.com/gfaas/gfaas/pkg/profile"
)

// NewOptions returns the options of a run with a scaler of that kind. rows are the profile rows
// of a function, each with a throughput, and slo is its latency objective (0: none); the scaler uses
// only rows that meet it. The run begins with the instances that the load first requires, regardless of
// the estimator. With byCall, it begins with the one instance that the first call starts in the gateway:
// for a scaler that chooses among rows, one with the most efficient row.
func NewOptions(kind scale.Kind, rows []profile.Row, slo time.Duration, estimator string, settings scale.Options, first float64, byCall bool) (o Options, err error) {
	unit, err := scale.Unit(rows, slo)
	if err != nil {
		return o, err
	}
	load, err := scale.NewEstimator(estimator, settings.Estimate)
	if err != nil {
		return o, err
	}
	setup := scale.Setup{Rows: scale.Meeting(rows, slo), Unit: unit, Load: load, Options: settings}
	o.Scaler, o.Cold = kind.New(setup), coldStart(rows)
	if byCall {
		if !kind.Uniform {
			unit.Request = scale.MostEfficient(setup.Rows)
		}
		if !kind.Rises {
			unit.Limit = unit.Request
		}
		o.First = []scale.Instance{unit}
		return o, nil
	}
	setup.Load = scale.Last{}
	o.First, err = First(kind.New(setup), first)
	return o, err
}

// coldStart returns a function for the cold-start time of an instance: the cold_ms of its row, or
// the largest cold_ms of all rows if that is missing.
func coldStart(rows []profile.Row) func(profile.Row) time.Duration {
	maxMS := 0.0
	for _, r := range rows {
		maxMS = max(maxMS, r.ColdMS)
	}
	return func(r profile.Row) time.Duration {
		if r.ColdMS == 0 {
			r.ColdMS = maxMS
		}
		return time.Duration(math.Round(r.ColdMS * float64(time.Millisecond)))
	}
}
