// Package arrivals computes how many requests per second an instance can serve if requests arrive at
// random: the highest rate at which 95% of the requests are answered within an objective (Worth).
// The throughput of a profile is measured in a closed loop instead, where each request waits for the
// answer to the one before. Packages place and verify use it for plans.
//
//   - Requests are distributed at random among instances, in proportion to their worth, so each
//     instance has Poisson arrivals. It answers batches in about constant time. It is therefore an
//     M/D/1 queue (Erlang 1909).
//   - The distribution of waiting times of that queue is known exactly (Crommelin 1932). Its tail
//     decreases exponentially (Cramér 1930).
//   - An instance with a quota below 1 runs only in the first part of each window. This is modelled
//     as a server with a latency and a rate (Stiliadis and Varma 1998): after the longest pause,
//     it is equivalent to a slower server that always runs. File sliced.go has the details.
package arrivals

import (
	"math"
	"time"

	"github.com/gfaas/gfaas/pkg/profile"
)

// Window is the scheduling window of plans in ms, the default of gfaas-tokend.
const Window = 100

// HandOver is the approximate time for which an instance that accepts one request at a time is idle
// after an answer, until the gateway has sent the next request.
const HandOver = 500 * time.Microsecond

// minLoad is the load below which an instance is worth 0. Such rare requests meet the objective only
// because they hardly ever meet another request.
const minLoad = 1e-3

// requiredFraction is the fraction of the requests that must be answered in time.
const requiredFraction = 0.95

// Worth returns the highest rate of Poisson requests, per second, at which the 95th percentile of an
// instance's latencies is within the objective, in ms. It returns 0 if requests to an idle instance take
// about as long or longer, and never more than the throughput. If the row has a measured goodput for
// this objective, that is the result. A goodput for a tighter objective is a lower bound, and one
// for a looser objective an upper bound.
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

// HandedOver returns the row of an instance that is idle for ms milliseconds between two batches, because
// it receives each batch only after it has answered the previous one. The idle time is part of its turns.
func HandedOver(r profile.Row, ms float64) profile.Row {
	service := ServiceTime(r)
	if ms <= 0 || service <= 0 {
		return r
	}
	ms /= r.Quota
	slower := service / (service + ms)
	r.ThroughputRPS = min(r.ThroughputRPS, 1000*float64(max(1, r.Batch))/(service+ms))
	r.GoodputRPS *= slower
	if r.P95MS > 0 {
		r.P95MS = max(r.P95MS, service+ms) // because ServiceTime returns the smaller time
	}
	if r.IdleP95MS > 0 {
		r.IdleP95MS += ms
	}
	return r
}

// derated computes the worth of a row that was measured in a closed loop. If a request to an idle
// instance took longer than its computed time, derated subtracts the difference from the objective.
func derated(r profile.Row, sloMS float64) float64 {
	service := ServiceTime(r)
	sloMS -= max(0, r.IdleP95MS-pausedIdleLatency(r))
	if service <= 0 || sloMS < service*r.Quota {
		return 0
	}
	batch := float64(max(1, r.Batch))
	wait := sloMS/service - 1
	load := max(singleMaxLoad(wait)/batch, batchMaxLoad(wait, r.Batch))
	if r.Quota < 1 {
		s := sliced{quota: r.Quota, work: service * r.Quota / Window, batch: 1, objective: sloMS / Window}
		load = s.maxLoad() / batch
		if s.batch = batch; batch > 1 {
			load = max(load, s.maxLoad())
		}
	}
	if load < minLoad {
		return 0
	}
	return roundedRate(load * batch * 1000 / service)
}

// roundedRate rounds a rate down to thousandths, except for rates below ten thousandths.
func roundedRate(rps float64) float64 {
	if rps < 0.01 {
		return rps
	}
	return math.Floor(rps*1000) / 1000
}

// IdleLatency returns the time in ms of a request to an idle instance: the measured time or, if there
// is none, an upper bound from its own work and the pauses of the quota.
func IdleLatency(r profile.Row) float64 {
	if r.IdleP95MS > 0 {
		return r.IdleP95MS
	}
	return pausedIdleLatency(r)
}

// pausedIdleLatency returns the time in ms of a request to an idle instance that arrives at the beginning
// of a pause.
func pausedIdleLatency(r profile.Row) float64 {
	work, pause := ServiceTime(r)*r.Quota, (1-r.Quota)*Window
	turns := math.Ceil(work/(r.Quota*Window) - 1e-9)
	return work + pause*turns
}

// ServiceTime returns how long an instance takes for a batch, in ms: the time between the ends of two
// batches if it always has work, or the measured latency of a batch if that is less (because the
// instance was not saturated when it was measured). It returns 0 if the row has no throughput.
func ServiceTime(r profile.Row) float64 {
	if r.ThroughputRPS <= 0 {
		return 0
	}
	full := 1000 * float64(max(1, r.Batch)) / r.ThroughputRPS
	if r.P95MS > 0 {
		return min(full, r.P95MS)
	}
	return full
}

// singleMaxLoad returns the load, from 0 to 1, of an M/D/1 queue at which 95% of the requests wait at
// most wait service times.
func singleMaxLoad(wait float64) float64 {
	return largestLoad(func(load, rate float64) bool { return inTimeFraction(load, rate, wait) >= requiredFraction })
}

// batchMaxLoad returns the same load for a server that serves up to batch requests at once, in the
// time of one. The tail of its waiting times is shorter by the factor batch. Each request also waits
// for the batch that is running. The remaining time of that batch is unknown, so batchMaxLoad assumes
// a whole service time.
func batchMaxLoad(wait float64, batch int) float64 {
	if batch <= 1 || wait <= 1 {
		return 0
	}
	return loadOf(-math.Log(1-requiredFraction) / (wait - 1) / float64(batch))
}

// largestLoad returns the largest load for which ok returns true, or 0 if there is none. The function
// ok must be true below that load and false above. It searches by the rate at which waiting times
// decay.
func largestLoad(ok func(load, rate float64) bool) float64 {
	const maxRate = 40.0 // corresponds to a load of 2e-16
	low, high := 0.0, maxRate
	for range 20 {
		if mid := (low + high) / 2; ok(loadOf(mid), mid) {
			high = mid
		} else {
			low = mid
		}
	}
	if high == maxRate {
		return 0
	}
	return loadOf(high)
}

// exactWaits is the largest waiting time, in service times, for which inTimeFraction uses the exact
// sum. Its terms alternate and grow; for longer times, the exponential tail is indistinguishable from
// it.
const exactWaits = 12

// inTimeFraction returns the fraction of the requests of an M/D/1 queue that wait at most wait
// service times, at a load whose waiting times decay at the given rate.
func inTimeFraction(load, rate, wait float64) float64 {
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

// loadOf returns the load of the M/D/1 queue whose waiting times decay at the given rate per service
// time: load × (e^rate − 1) = rate.
func loadOf(rate float64) float64 { return rate / math.Expm1(rate) }

// rateOf returns the rate at which waiting times decay at a load, the inverse of loadOf.
func rateOf(load float64) float64 {
	low, high := 0.0, 40.0
	for range 30 {
		if mid := (low + high) / 2; loadOf(mid) >= load {
			low = mid
		} else {
			high = mid
		}
	}
	return high
}
