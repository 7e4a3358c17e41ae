package measure

import (
	"time"

	"github.com/gfaas/gfaas/pkg/policy/search"
)

// startTime is the rough time that an instance takes to start and stop.
const startTime = 3 * time.Second

// A run that measures the goodput takes roughly this many times as long as one
// that does not.
const (
	LeastGoodputFactor = 8
	MostGoodputFactor  = 11
)

// Estimate is a rough estimate of the duration of a run.
type Estimate struct {
	Min, Max time.Duration // including the starts of instances
	Loaded   time.Duration // the part of Min under load
}

// TimePerPoint returns how long one configuration is under load, at least.
func (j Job) TimePerPoint() time.Duration { return j.Load.Warmup + j.Load.Duration }

// Extent is the amount of work of a run. Points and Rounds have one entry, or two for a
// search that may end early: the first assumes that an early configuration is good
// enough, the second that none is.
type Extent struct {
	Points   []int // number of configurations; for a search, an upper bound
	Rounds   []int // largest number of configurations that one testbed measures, for each of Points
	Testbeds int   // number of testbeds that are used at once
}

// Extent returns the amount of work of the job on the given number of testbeds, if the given
// number of configurations was measured before. A search for one function stays on one
// testbed. The name of the search must be known.
func (j Job) Extent(measured, testbeds int) Extent {
	remaining, functions := j.Size()-measured, len(j.Functions)
	if !j.Chooses() {
		return Extent{[]int{remaining}, []int{divideUp(remaining, testbeds)}, testbeds}
	}
	e := Extent{Testbeds: min(testbeds, functions)}
	early, most := search.MaxTrials(j.Search, j.Space, j.Goal)
	for _, each := range []int{early, most} {
		points := min(remaining, functions*each)
		if len(e.Points) > 0 && e.Points[0] >= points {
			break
		}
		e.Points = append(e.Points, points)
		e.Rounds = append(e.Rounds, min(remaining, each*divideUp(functions, testbeds)))
	}
	return e
}

func divideUp(n, by int) int { return (n + by - 1) / by }

// Estimate returns how long the given number of rounds takes (see Extent.Rounds).
func (j Job) Estimate(rounds int) Estimate {
	e := Estimate{Loaded: time.Duration(rounds) * j.TimePerPoint()}
	e.Min = e.Loaded + time.Duration(rounds)*startTime
	e.Max = e.Min
	if j.Form().Goodput {
		e.Min, e.Max, e.Loaded = LeastGoodputFactor*e.Min, MostGoodputFactor*e.Max, LeastGoodputFactor*e.Loaded
	}
	return e
}
