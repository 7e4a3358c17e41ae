package measure

import "time"

// startTime is roughly how long an instance takes to start and stop.
const startTime = 3 * time.Second

// A run that measures the goodput takes roughly this many times as long as one
// that does not.
const (
	LeastGoodputFactor = 8
	MostGoodputFactor  = 11
)

// Estimate is roughly how long a run takes.
type Estimate struct {
	Least, Most time.Duration // with the starts of instances
	Loaded      time.Duration // the part of Least under load
}

// TimePerPoint returns how long one configuration is under load, at least.
func (j Job) TimePerPoint() time.Duration { return j.Load.Warmup + j.Load.Duration }

// Estimate returns how long it takes to measure that many points on so many
// testbeds.
func (j Job) Estimate(points, testbeds int) Estimate {
	rounds := time.Duration((points + testbeds - 1) / testbeds)
	e := Estimate{Loaded: rounds * j.TimePerPoint()}
	e.Least = e.Loaded + rounds*startTime
	e.Most = e.Least
	if j.Form().Goodput {
		e.Least, e.Most, e.Loaded = LeastGoodputFactor*e.Least, MostGoodputFactor*e.Most, LeastGoodputFactor*e.Loaded
	}
	return e
}
