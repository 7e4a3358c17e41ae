package arrivals

import "math"

// sliced is an instance with a quota below 1: it works in one turn of each window and pauses in the rest
// of the window. Times are in windows.
type sliced struct {
	quota     float64 // fraction of the window that is the turn, less than 1
	work      float64 // working time of a batch
	batch     float64 // largest number of requests in a batch
	objective float64 // limit on the latency of a request
}

// phases is the number of arrival times within the window for which lateFraction computes the latency.
const phases = 40

// maxLoad returns the largest load, from 0 to 1, at which a requiredFraction of the requests is in time.
func (s sliced) maxLoad() float64 {
	return largestLoad(func(load, rate float64) bool { return s.lateFraction(load, rate) <= 1-requiredFraction })
}

// lateFraction returns the fraction of the requests that are answered too late at a load: the mean over
// their arrival times within the window. rate is the rate at which waiting times decay at that load (see
// loadOf). lateFraction stops early once the fraction is too large.
//
//  1. A request is in time if the turns between its arrival and the objective suffice for its own
//     work and all work before it. That is the backlog at the end of the last turn, plus later
//     arrivals, minus the work done since.
//  2. The backlog at the end of turns is a random walk that cannot fall below 0. Its steps are the
//     arrivals in a window minus the work of a turn. Its tail decays exponentially, like that of an
//     M/D/1 queue of that load, per request.
//  3. The constant factor of the tail is that of a walk observed at discrete times (Siegmund 1979:
//     0.583 standard deviations of a step, here of the arrivals in a pause), with steps of whole
//     requests, which overshoot by a third of a request.
//  4. Within its turn, an instance may have been idle and then received too many requests at once,
//     which the walk ignores. That is an M/D/1 queue of the arrivals in the turn. It is assumed to be
//     independent.
func (s sliced) lateFraction(load, rate float64) float64 {
	perWindow := load * s.quota / s.work * s.batch                                 // requests that arrive in a window
	constant := math.Exp(-rate * (0.583*math.Sqrt(perWindow*(1-s.quota)) + 1.0/3)) // constant factor of the backlog's tail
	turnLoad := load * s.quota                                                     // load of the queue within a turn
	turnRate := rateOf(turnLoad)
	late := 0.0
	for i := 0; i < phases && late <= 1-requiredFraction; i++ {
		arrival := (float64(i) + 0.5) / phases                  // time since the end of the last turn
		worked := max(0, arrival-(1-s.quota))                   // time in the current turn before the arrival
		ahead := (s.turnTime(arrival)+worked)/s.work - 1 + 1e-9 // batches that may precede the request's own
		if s.batch > 1 {
			ahead = math.Floor(ahead) - 1 // less one that has begun without the request
		}
		inTime := 0.0
		if ahead >= 0 {
			inTime = atMostProbability(ahead*s.batch+s.batch-1, perWindow*arrival, rate, constant)
		}
		if worked > 0 && inTime > 0 {
			inTime *= inTimeFraction(turnLoad, turnRate, max(0, ahead-worked/s.work))
		}
		late += (1 - inTime) / phases
	}
	return late
}

// turnTime returns how much time is in turns between an arrival and the end of its objective. The arrival
// is a time since the end of the last turn.
func (s sliced) turnTime(arrival float64) float64 {
	return s.turnTimeUntil(arrival+s.objective) - s.turnTimeUntil(arrival)
}

// turnTimeUntil returns how much of the time t since the end of a turn is in later turns.
func (s sliced) turnTimeUntil(t float64) float64 {
	windows := math.Floor(t)
	return windows*s.quota + max(0, t-windows-(1-s.quota))
}

// atMostProbability returns the probability that at most limit requests are in the queue: the backlog at
// the end of the last turn and the later arrivals. The number of arrivals has a Poisson distribution with
// the given mean. The backlog exceeds x with probability constant × e^(−rate x).
func atMostProbability(limit, mean, rate, constant float64) float64 {
	sum := 0.0
	first := math.Floor(max(0, mean-10*math.Sqrt(mean))) // the probability of smaller numbers is negligible
	logFactorial, _ := math.Lgamma(first + 1)
	probability := math.Exp(first*math.Log(mean) - mean - logFactorial)
	for k := first; k <= limit; k++ {
		sum += probability
		if exponent := rate * (limit - k); exponent < 40 {
			sum -= probability * constant * math.Exp(-exponent)
		}
		if probability *= mean / (k + 1); k > mean && probability < 1e-9 {
			break
		}
	}
	return min(1, sum)
}
