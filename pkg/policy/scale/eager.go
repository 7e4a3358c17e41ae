package scale

import (
	"fmt"

	"github.com/gfaas/gfaas/pkg/number"
)

// eager keeps as many instances as the estimated load needs, at once and both
// ways.
type eager struct {
	unit Instance
	load Estimator
	last float64 // estimate
}

// NewEager makes a Scaler that keeps as many instances of unit as the estimated
// load needs, at once and both ways; they never rise above their request.
func NewEager(unit Instance, load Estimator, b Bounds) *Scaler {
	unit.Limit = unit.Request
	return newScaler(&eager{unit: unit, load: load}, b)
}

func (e *eager) observe(rps float64)                       { e.last = e.load.Observe(rps) }
func (e *eager) acted()                                    {}
func (e *eager) spare(deployed []Instance, n int) []string { return newest(deployed, n) }
func (e *eager) another() (Instance, bool)                 { return e.unit, true }

func (e *eager) decide(deployed []Instance) decision {
	wanted, n := need(e.last, e.unit.Request.ThroughputRPS), len(deployed)
	d := decision{why: fmt.Sprintf("%s rps need %d", num(e.last), wanted)}
	switch {
	case wanted > n:
		d.start = []Start{{Count: wanted - n, Like: e.unit}}
	case wanted < n:
		d.stop = newest(deployed, n-wanted)
	}
	return d
}

// num prints a rate to four digits.
func num(v float64) string { return number.Significant(v, 4) }
