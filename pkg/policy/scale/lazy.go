package scale

import (
	"fmt"
	"slices"
)

// LazyOptions are the parameters of lazy scaling, in seconds (one value each).
type LazyOptions struct {
	Window int // values that are kept
	Out    int // at least so many above what is sustained: scale out
	In     int // more than so many below what fewer would sustain: scale in
	// Surge is how many values in a row beyond what even the limits sustain
	// scale out at once; 0 is never, as in the paper.
	Surge int
}

// DefaultLazy are the published parameters, and no waiting for what instances
// cannot rise to.
func DefaultLazy() LazyOptions { return LazyOptions{Window: 40, Out: 20, In: 30, Surge: 1} }

// Check says what is wrong with the parameters.
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

// lazy is Dilu's lazy scaling.
type lazy struct {
	unit    Instance
	options LazyOptions
	window  []float64
	last    float64 // of the window, also once it is emptied
	beyond  int     // values in a row beyond the limits
}

// NewLazy makes a Scaler by Dilu's lazy scaling (section 3.4.2): instances like
// unit rise and fall fast between request and limit, and their number changes
// only when the load has been out of what their requests sustain for most of a
// window. The window is emptied after each action.
//
// The paper does not say how many instances an action starts or stops: as few
// as end the condition, and as many as the condition allows. Nor what happens
// to a load beyond all limits, which nothing can rise to: waiting gains nothing
// then, and as many are started as serve it at their limits. When none is
// deployed the first load starts what it needs.
func NewLazy(unit Instance, options LazyOptions, b Bounds) *Scaler {
	return newScaler(&lazy{unit: unit, options: options}, b)
}

func (l *lazy) observe(rps float64) {
	l.last = rps
	l.window = append(l.window, rps)
	if len(l.window) > l.options.Window {
		l.window = l.window[1:]
	}
}

// acted empties the window.
func (l *lazy) acted()                                    { l.window, l.beyond = nil, 0 }
func (l *lazy) spare(deployed []Instance, n int) []string { return newest(deployed, n) }
func (l *lazy) another() (Instance, bool)                 { return l.unit, true }

func (l *lazy) decide(deployed []Instance) decision {
	one, n := l.unit.Request.ThroughputRPS, len(deployed)
	start := func(wanted int, why string) decision {
		return decision{start: []Start{{Count: wanted - n, Like: l.unit}}, why: why}
	}
	if n == 0 {
		why := num(l.last) + " rps and no instance"
		if l.last <= 0 {
			return decision{why: why}
		}
		return start(need(l.last, one), why)
	}
	if wanted := l.out(one); wanted > n {
		return start(wanted, l.exceed(one*float64(n)))
	}
	if wanted := l.surge(n); wanted > n {
		return start(wanted, fmt.Sprintf("%s rps are beyond the limits of %d", num(l.last), n))
	}
	if wanted := l.in(one, n); wanted < n {
		why := fmt.Sprintf("%d of the last %d values are below %s rps", l.below(one*float64(wanted)), len(l.window), num(one*float64(wanted)))
		return decision{stop: newest(deployed, n-wanted), why: why}
	}
	return decision{why: l.exceed(one * float64(n))}
}

func (l *lazy) exceed(rps float64) string {
	return fmt.Sprintf("%d of the last %d values exceed %s rps", l.above(rps), len(l.window), num(rps))
}

// surge is the number of instances that serve the load at their limits, if it
// has been beyond those of n for long enough.
func (l *lazy) surge(n int) int {
	wanted := need(l.last, l.unit.Limit.ThroughputRPS)
	if wanted <= n {
		l.beyond = 0
		return n
	}
	if l.beyond++; l.options.Surge == 0 || l.beyond < l.options.Surge {
		return n
	}
	return wanted
}

// out is the least number of instances that fewer than Out values exceed: it
// must sustain the Out-th largest.
func (l *lazy) out(one float64) int {
	if len(l.window) < l.options.Out {
		return 0
	}
	sorted := slices.Sorted(slices.Values(l.window))
	return need(sorted[len(sorted)-l.options.Out], one)
}

// in is the least number of instances, n at most, that more than In values
// stay below.
func (l *lazy) in(one float64, n int) int {
	for n > 1 && l.below(one*float64(n-1)) > l.options.In {
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
