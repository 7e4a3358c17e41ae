package goodput

import "math"

const (
	slope     = 1.0 // that a line is expected to have,
	slopeSD   = 0.5 // give or take
	flattest  = 0.2
	curvature = 0.25 // of what is taken for a line: the error of a point at y is this times y²
)

// point is a measurement; sd is the standard deviation of y.
type point struct{ x, y, sd float64 }

// line is points that lie on one, about: the closer to y = 0, the better.
type line []point

// zero is where y is 0, with its standard deviation. It is least squares with the
// slope as one more measurement (ridge regression), so that one point is enough.
// Where the points differ from the line by more than they should, the deviation is
// larger (the scale factor of the Particle Data Group).
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
	b := max(xy/xx, flattest)
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
