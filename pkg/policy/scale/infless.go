package scale

import (
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/reason"
)

// The constants of infless that its paper leaves to the operator: the number of recent pauses, the percentile
// of the pauses, and the seconds for which an instance stays before there was a pause.
const (
	recentPauses    = 10
	pausePercentile = 0.99
	firstStay       = 60
)

// infless implements the scaling of INFless (ASPLOS 2022): instances follow the load up at once, and down
// after a time from the pauses in which earlier instances were not needed.
type infless struct {
	uniform
	pause  []int // for each instance of the largest load so far: seconds for which the load has not needed it
	pauses []int // completed pauses in seconds, in order of time
	load   float64
}

// NewINFless returns a Scaler with the scaling of INFless, to which the Dilu paper compares its own (table 3).
// The instance number n is needed while the load exceeds what n - 1 sustain. After that, it stays for the
// 99th percentile of all pauses that ended, averaged with that of the last 10 (the paper's long-term and
// short-term histograms with a weight of 0.5). INFless also starts instances before a pause is likely to end;
// this scaler does not.
func NewINFless(unit Instance, b Bounds) *Scaler {
	unit.Limit = unit.Request
	return newScaler(&infless{uniform: uniform{unit}}, b)
}

func (s *infless) observe(rps float64) {
	s.load = rps
	needed := instancesFor(rps, s.unit.Request.ThroughputRPS)
	for len(s.pause) < needed {
		s.pause = append(s.pause, 0)
	}
	for n := range s.pause {
		switch {
		case n >= needed:
			s.pause[n]++
		case s.pause[n] > 0:
			s.pauses = append(s.pauses, s.pause[n])
			s.pause[n] = 0
		}
	}
}

// stay returns for how many seconds an instance stays that the load does not need.
func (s *infless) stay() float64 {
	if len(s.pauses) == 0 {
		return firstStay
	}
	return (percentile(s.pauses) + percentile(s.pauses[max(0, len(s.pauses)-recentPauses):])) / 2
}

func percentile(values []int) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return float64(sorted[int(math.Ceil(pausePercentile*float64(len(sorted))))-1])
}

func (s *infless) decide(deployed []Instance) decision {
	target, stay := 0, s.stay()
	for target < len(s.pause) && float64(s.pause[target]) <= stay { // the pauses of further instances are not shorter
		target++
	}
	r := reason.New(loadMayNeed,
		reason.Number("rps", s.load), reason.Number("instances", target), reason.Number("seconds", stay))
	return s.scaleTo(target, deployed, r)
}
