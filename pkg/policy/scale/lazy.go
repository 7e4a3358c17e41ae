package scale

import (
	"fmt"
	"slices"

	"github.com/gfaas/gfaas/pkg/reason"
)

// LazyOptions has the parameters of lazy scaling. The scaler receives one value of the load per second.
type LazyOptions struct {
	Window int // number of values kept
	Out    int // scale out if at least this many values exceed the throughput of all instances
	In     int // scale in if more than this many values are below the throughput of fewer instances
	// Surge is the number of consecutive values above the throughput of all instances at their limits after which the
	// scaler scales out at once; 0 means never, as in the paper.
	Surge int
}

// DefaultLazy returns the published parameters, with a Surge of 1: no waiting for a load that the
// instances cannot reach at their limits.
func DefaultLazy() LazyOptions { return LazyOptions{Window: 40, Out: 20, In: 30, Surge: 1} }

// Check returns an error if a parameter is out of range.
func (o LazyOptions) Check() error {
	switch {
	case o.Window < 1 || o.Window > 1e6:
		return fmt.Errorf("window %d: expected a number from 1 to 1000000", o.Window)
	case o.Out < 1 || o.Out > o.Window:
		return fmt.Errorf("out %d: expected a number from 1 to the window, %d", o.Out, o.Window)
	case o.In < 0 || o.In >= o.Window:
		return fmt.Errorf("in %d: expected a number from 0 to less than the window, %d", o.In, o.Window)
	case o.Surge < 0 || o.Surge > 1e6:
		return fmt.Errorf("surge %d: expected a number from 0 to 1000000", o.Surge)
	}
	return nil
}

// lazy implements Dilu's lazy scaling.
type lazy struct {
	uniform
	options   LazyOptions
	window    []float64
	lastLoad  float64 // the last value, also after the window was emptied
	overLimit int     // consecutive values beyond the limits
}

// NewLazy returns a Scaler with Dilu's lazy scaling (section 3.4.2). Instances like unit scale
// vertically between request and limit within milliseconds. Their number changes only after the load
// was out of the range of their requests for most of a window. Each action empties the window.
//
// The paper leaves two points open. First, an action starts the fewest instances that end its
// condition, or stops the most that its condition allows. Second, waiting gains nothing if the load
// exceeds the limits of all instances (see LazyOptions.Surge); the scaler then starts enough instances
// to serve the load at their limits. If no instance is deployed, the first load starts enough for it.
func NewLazy(unit Instance, options LazyOptions, b Bounds) *Scaler {
	return newScaler(&lazy{uniform: uniform{unit}, options: options}, b)
}

func (l *lazy) observe(rps float64) {
	l.lastLoad = rps
	l.window = append(l.window, rps)
	if len(l.window) > l.options.Window {
		l.window = l.window[1:]
	}
}

// acted empties the window.
func (l *lazy) acted() { l.window, l.overLimit = nil, 0 }

func (l *lazy) decide(deployed []Instance) decision {
	perInstance, n := l.unit.Request.ThroughputRPS, len(deployed)
	if n == 0 {
		return l.scaleTo(instancesFor(l.lastLoad, perInstance), deployed, reason.New(noInstance, reason.Number("rps", l.lastLoad)))
	}
	if target := l.scaleOutTarget(perInstance); target > n {
		return l.scaleTo(target, deployed, l.aboveReason(perInstance*float64(n)))
	}
	if target := l.surge(n); target > n {
		return l.scaleTo(target, deployed, reason.New(beyondLimits, reason.Number("rps", l.lastLoad), reason.Number("instances", n)))
	}
	if target := l.scaleInTarget(perInstance, n); target < n {
		rps := perInstance * float64(target)
		return l.scaleTo(target, deployed, l.windowReason(loadBelow, l.below(rps), rps))
	}
	return decision{reason: l.aboveReason(perInstance * float64(n))}
}

func (l *lazy) aboveReason(rps float64) reason.Reason {
	return l.windowReason(loadAbove, l.above(rps), rps)
}

func (l *lazy) windowReason(code reason.Code, values int, rps float64) reason.Reason {
	return reason.New(code, reason.Number("values", values), reason.Number("window", len(l.window)), reason.Number("rps", rps))
}

// surge returns the number of instances that serve the load at their limits, if the load has been
// beyond the limits of n instances for Surge values, else n.
func (l *lazy) surge(n int) int {
	target := instancesFor(l.lastLoad, l.unit.Limit.ThroughputRPS)
	if target <= n {
		l.overLimit = 0
		return n
	}
	if l.overLimit++; l.options.Surge == 0 || l.overLimit < l.options.Surge {
		return n
	}
	return target
}

// scaleOutTarget returns the least number of instances for which fewer than Out values exceed what
// they sustain: they must sustain the Out-th largest value.
func (l *lazy) scaleOutTarget(perInstance float64) int {
	if len(l.window) < l.options.Out {
		return 0
	}
	sorted := slices.Sorted(slices.Values(l.window))
	return instancesFor(sorted[len(sorted)-l.options.Out], perInstance)
}

// scaleInTarget returns the least number of instances, at most n, for which more than In values stay
// below what they sustain.
func (l *lazy) scaleInTarget(perInstance float64, n int) int {
	for n > 1 && l.below(perInstance*float64(n-1)) > l.options.In {
		n--
	}
	return n
}

func (l *lazy) above(level float64) int {
	return count(l.window, func(v float64) bool { return v*(1-slack) > level })
}

func (l *lazy) below(level float64) int {
	return count(l.window, func(v float64) bool { return v < level })
}

func count(values []float64, is func(float64) bool) int {
	n := 0
	for _, v := range values {
		if is(v) {
			n++
		}
	}
	return n
}
