// Package arrivals says what an instance is worth when requests come at random:
// the most requests a second of which 95% are answered within an objective. What
// a profile calls throughput was measured in a closed loop, where the next
// request waits for the answer before; nobody sends so.
//
// An instance that gets its part of the requests by chance, in proportion to
// what it is worth, sees Poisson arrivals, and answers one batch after another
// in about the same time: it is an M/D/1 queue (Erlang 1909). The distribution
// of its waiting time is known exactly (Crommelin 1932) and far out falls off
// exponentially (Cramér 1930). Time that a quota takes from it is added as for a
// server of a latency and a rate (Stiliadis and Varma 1998): what runs for a part
// of each window is as good as what runs all the time, so much slower, after the
// longest pause.
package arrivals

import (
	"math"
	"time"

	"github.com/gfaas/gfaas/pkg/profile"
)

// Window is the scheduling window that plans are made for, in ms: the default of
// gfaas-tokend.
const Window = 100

// HandOver is about how long an instance that takes one request at a time has nothing to
// do, after an answer, until the gateway has sent it the next.
const HandOver = 500 * time.Microsecond

// least is the load below which an instance is worth nothing: so few requests keep
// the promise only because they hardly ever come.
const least = 1e-3

// within is the part of the requests that are to be answered in time.
const within = 0.95

// Worth is the most Poisson requests a second that an instance answers with a
// 95th percentile within the objective, in ms; 0 where requests at rest already
// take longer, or all but. It is never more than the throughput. A goodput that was
// measured for this objective is the answer; one for another bounds it, from below
// where that is tighter and from above where it is looser.
func Worth(r profile.Row, sloMS float64) float64 {
	if goodput, _, measured := r.Goodput(sloMS); measured {
		return min(goodput, r.ThroughputRPS)
	}
	worth := derated(r, sloMS)
	if goodput, _, measured := r.Goodput(r.SLOMS); measured && r.SLOMS < sloMS {
		worth = max(worth, goodput)
	} else if measured && r.SLOMS > sloMS {
		worth = min(worth, goodput)
	}
	return min(worth, r.ThroughputRPS)
}

// HandedOver is a row of an instance that has nothing to do for so many ms between two
// batches, since the next one is sent to it when it has answered the one before. That
// is time of its turns.
func HandedOver(r profile.Row, ms float64) profile.Row {
	service := Service(r)
	if ms <= 0 || service <= 0 {
		return r
	}
	ms /= r.Quota
	slower := service / (service + ms)
	r.ThroughputRPS = min(r.ThroughputRPS, 1000*float64(max(1, r.Batch))/(service+ms))
	r.GoodputRPS *= slower
	if r.P95MS > 0 {
		r.P95MS = max(r.P95MS, service+ms) // which Service goes by where it is less
	}
	if r.IdleP95MS > 0 {
		r.IdleP95MS += ms
	}
	return r
}

// derated is what queueing makes of a row that was measured in a closed loop. What
// a request at rest was seen to take longer than the rule says, all do.
func derated(r profile.Row, sloMS float64) float64 {
	service := Service(r)
	sloMS -= max(0, r.IdleP95MS-pausedRest(r))
	if service <= 0 || sloMS < service*r.Quota {
		return 0
	}
	batch := float64(max(1, r.Batch))
	wait := sloMS/service - 1
	load := max(single(wait)/batch, bulk(wait, r.Batch))
	if r.Quota < 1 {
		s := sliced{quota: r.Quota, work: service * r.Quota / Window, batch: 1, within: sloMS / Window}
		load = s.load() / batch
		if s.batch = batch; batch > 1 {
			load = max(load, s.load())
		}
	}
	if load < least {
		return 0
	}
	return readable(load * batch * 1000 / service)
}

// readable rounds a rate down to thousandths, and what is less than ten of these
// not at all.
func readable(rps float64) float64 {
	if rps < 0.01 {
		return rps
	}
	return math.Floor(rps*1000) / 1000
}

// Rest is how long a request takes that finds nothing before it, in ms: as was
// measured, else at most its own work and the pauses of the quota that it meets.
func Rest(r profile.Row) float64 {
	if r.IdleP95MS > 0 {
		return r.IdleP95MS
	}
	return pausedRest(r)
}

func pausedRest(r profile.Row) float64 {
	work, pause := Service(r)*r.Quota, (1-r.Quota)*Window
	turns := math.Ceil(work/(r.Quota*Window) - 1e-9)
	return work + pause*turns
}

// Service is the time between the ends of two batches of an instance that always
// has work, in ms, or what a batch was seen to take where that is less: an
// instance measured with less than it can do.
func Service(r profile.Row) float64 {
	if r.ThroughputRPS <= 0 {
		return 0
	}
	full := 1000 * float64(max(1, r.Batch)) / r.ThroughputRPS
	if r.P95MS > 0 {
		return min(full, r.P95MS)
	}
	return full
}

// single is the load, 0 to 1, of an M/D/1 queue at which 95% of the requests wait
// at most so many service times.
func single(wait float64) float64 {
	return largest(func(load, rate float64) bool { return inTime(load, rate, wait) >= within })
}

// bulk is the same of a queue whose server takes up to so many requests at once,
// in as long as it takes for one; what is waiting then is, far out, so many times
// shorter. A request waits for the end of the batch that runs, which the load
// does not tell, so the whole of one is counted.
func bulk(wait float64, batch int) float64 {
	if batch <= 1 || wait <= 1 {
		return 0
	}
	return decay(-math.Log(1-within) / (wait - 1) / float64(batch))
}

// largest is the largest load at which ok still holds, which it does below and
// not above; 0 where it never does. It is looked for by the rate at which waiting times fall off.
func largest(ok func(load, rate float64) bool) float64 {
	const never = 40.0 // a load of 2e-16
	low, high := 0.0, never
	for range 20 {
		if mid := (low + high) / 2; ok(decay(mid), mid) {
			high = mid
		} else {
			low = mid
		}
	}
	if high == never {
		return 0
	}
	return decay(high)
}

// exactWaits is up to how many service times the exact sum is used, whose terms
// alternate and grow; farther out nothing tells the two apart.
const exactWaits = 12

// inTime is the part of the requests of an M/D/1 queue that wait at most so many
// service times, at a load whose waiting times fall off by this rate.
func inTime(load, rate, wait float64) float64 {
	if wait > exactWaits {
		return 1 - (1-load)/(load*math.Exp(rate)-1)*math.Exp(-rate*wait)
	}
	sum, factorial := 0.0, 1.0
	for k := 0.0; k <= wait; k++ {
		if k > 0 {
			factorial *= k
		}
		x := load * (wait - k)
		sum += math.Pow(-x, k) / factorial * math.Exp(x)
	}
	return (1 - load) * sum
}

// decay is the load of the M/D/1 queue whose waiting times fall off by this rate
// a service time: load × (e^rate − 1) = rate.
func decay(rate float64) float64 { return rate / math.Expm1(rate) }

// rateOf is the rate by which waiting times fall off at a load: what decay undoes.
func rateOf(load float64) float64 {
	low, high := 0.0, 40.0
	for range 30 {
		if mid := (low + high) / 2; decay(mid) >= load {
			low = mid
		} else {
			high = mid
		}
	}
	return high
}
