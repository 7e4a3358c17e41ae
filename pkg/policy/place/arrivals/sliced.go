package arrivals

import "math"

// sliced is an instance that works in the first part of each window only. Times
// are in windows.
type sliced struct {
	quota  float64 // part of the window it works in, less than 1
	work   float64 // that a batch takes
	batch  float64 // requests at most in a batch
	within float64 // the objective
}

// phases is at how many moments of the window the latency of a request is looked
// at.
const phases = 40

// load is the largest load, 0 to 1, at which enough requests are in time.
func (s sliced) load() float64 {
	return largest(func(load, rate float64) bool { return s.late(load, rate) <= 1-within })
}

// late is the part of the requests that are answered too late at a load: the mean
// over the moments of the window at which they come, or of as many of these as it
// takes to be too much.
//
// A request is in time when the turns from then until the objective hold its own
// work and all that is before it: what was left at the end of the last turn, and
// what has come since then less what was done. What is left at the end of turns
// is a random walk that cannot fall below 0, by what comes in a window less what
// is done in its turn; far out it falls off exponentially as an M/D/1 queue of
// that load does, by so much for each batch. The constant before that is of walks
// looked at now and then (Siegmund 1979: 0.583 standard deviations of a step, here
// of what comes in a pause), and of steps of whole requests, which overshoot by a
// third of one. In its turn an instance may also have been idle and then found
// too much at once, which the walk does not see: that is the M/D/1 queue of what
// comes then, taken to be independent.
func (s sliced) late(load, rate float64) float64 {
	arriving := load * s.quota / s.work * s.batch // requests a window
	constant := math.Exp(-rate * (0.583*math.Sqrt(arriving*(1-s.quota)) + 1.0/3))
	inTurn := load * s.quota // what a queue that is never paused has
	inTurnRate := rateOf(inTurn)
	late := 0.0
	for i := 0; i < phases && late <= 1-within; i++ {
		at := (float64(i) + 0.5) / phases // since the end of the last turn
		done := max(0, at-(1-s.quota))
		room := (s.turns(at)+done)/s.work - 1 + 1e-9 // batches besides its own
		if s.batch > 1 {
			room = math.Floor(room) - 1 // one that was begun without it
		}
		likely := 0.0
		if room >= 0 {
			likely = before(room*s.batch+s.batch-1, arriving*at, rate, constant)
		}
		if done > 0 && likely > 0 {
			likely *= inTime(inTurn, inTurnRate, max(0, room-done/s.work))
		}
		late += (1 - likely) / phases
	}
	return late
}

// turns is how much of the objective, from this long after a turn's end on, is in
// turns.
func (s sliced) turns(at float64) float64 {
	until := at + s.within
	return s.sum(until) - s.sum(at)
}

// sum is how much of the time since a turn's end is in turns.
func (s sliced) sum(until float64) float64 {
	whole := math.Floor(until)
	return whole*s.quota + max(0, until-whole-(1-s.quota))
}

// before is how likely it is that at most so many requests are there, where a
// Poisson number of this mean came in and more than x were left before with the
// probability constant × e^(−rate x).
func before(most, mean, rate, constant float64) float64 {
	sum := 0.0
	first := math.Floor(max(0, mean-10*math.Sqrt(mean))) // before it is nothing
	logFactorial, _ := math.Lgamma(first + 1)
	came := math.Exp(first*math.Log(mean) - mean - logFactorial)
	for k := first; k <= most; k++ {
		sum += came
		if left := rate * (most - k); left < 40 {
			sum -= came * constant * math.Exp(-left)
		}
		if came *= mean / (k + 1); k > mean && came < 1e-9 {
			break
		}
	}
	return min(1, sum)
}
