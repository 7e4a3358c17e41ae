package goodput

import "math"

const (
	slope     = 1.0  // expected slope of a line
	slopeSD   = 0.5  // standard deviation of that expectation
	minSlope  = 0.2  // minimum slope of a fitted line
	curvature = 0.25 // the points lie on a curve: y of a point is off the line by this times y²
)

// point is a measurement; sd is the standard deviation of y.
type point struct{ x, y, sd float64 }

// line has points that lie approximately on a line, with a better fit near y = 0.
type line []point

// zero returns the x at which y is 0, with its standard deviation. It uses least squares with the slope as an additional
// measurement (ridge regression), so one point is enough. If the points differ from the line by more than their standard
// deviations, the result's is larger (the scale factor of the Particle Data Group).
func (l line) zero() (x, sd float64) {
	weights := make([]float64, len(l))
	var weight, mx, my float64
	for i, p := range l {
		sd := math.Hypot(p.sd, curvature*p.y*p.y)
		weights[i] = 1 / (sd * sd)
		weight += weights[i]
		mx += weights[i] * p.x
		my += weights[i] * p.y
	}
	mx, my = mx/weight, my/weight
	prior := 1 / (slopeSD * slopeSD)
	xx, xy := prior, prior*slope
	for i, p := range l {
		xx += weights[i] * (p.x - mx) * (p.x - mx)
		xy += weights[i] * (p.x - mx) * (p.y - my)
	}
	b := max(xy/xx, minSlope)
	x = mx - my/b
	sd = math.Sqrt(1/weight+(my/b)*(my/b)/xx) / b
	var scatter float64
	for i, p := range l {
		off := p.y - my - b*(p.x-mx)
		scatter += weights[i] * off * off
	}
	if n := len(l); n > 1 {
		sd *= math.Sqrt(max(1, scatter/float64(n-1)))
	}
	return x, sd
}
