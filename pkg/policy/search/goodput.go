package search

import "math"

// waitAtHalf is the mean wait in a queue with constant service times at a utilization of 1/2, divided by
// the service time (see package goodput).
const waitAtHalf = 1.5

// sustainableFraction returns the fraction of the throughput at which a queue still meets the objective:
// the utilization u at which the wait, which grows like u/(1-u), equals the objective minus the latency of
// a single request (idle). Times are in ms. It is 0 if idle exceeds the objective.
func sustainableFraction(slo, idle, service float64) float64 {
	if idle >= slo {
		return 0
	}
	return (slo - idle) / (slo - idle + waitAtHalf*service)
}

// shift returns the log of the mean ratio of measured goodputs to the ones that sustainableFraction
// predicts. It counts one more row with a ratio of 1.
func (b *book) shift() float64 {
	sum, n := 0.0, 1.0
	for _, r := range b.rows {
		rps, _, known := r.Goodput(b.goal.SLOMS)
		if !known || rps <= 0 || r.IdleP95MS <= 0 || r.ThroughputRPS <= 0 {
			continue
		}
		if expected := sustainableFraction(b.goal.SLOMS, r.IdleP95MS, 1000*float64(r.Batch)/r.ThroughputRPS); expected > 0 {
			sum += math.Log(rps / r.ThroughputRPS / expected)
			n++
		}
	}
	return sum / n
}

// steps are the points, in standard deviations of the log time, over which an expected gain is summed, with
// their weights.
var steps = func() (out []struct{ z, weight float64 }) {
	const widest = 3
	sum := 0.0
	for z := -widest; z <= widest; z++ {
		w := math.Exp(-float64(z*z) / 2)
		sum += w
		out = append(out, struct{ z, weight float64 }{float64(z), w})
	}
	for i := range out {
		out[i].weight /= sum
	}
	return out
}()

// firstLogFraction is the log of the fraction of the throughput that a first configuration is expected to
// exceed.
const firstLogFraction = -2

// gainUnderLoad returns the log goodput per GPU that a candidate is expected to add to the incumbent's (a
// log). mean and sd describe the candidate's log time at full quota.
func (b *belief) gainUnderLoad(c candidate, mean, sd, incumbent float64) float64 {
	// A queue leaves at most the whole throughput, so points without a gain even then are omitted.
	var buffer [8]struct{ time, gain, weight float64 }
	hopeful := buffer[:0]
	for _, s := range steps {
		log := mean + s.z*sd
		if gain := c.offset - log; gain+b.shift-incumbent > 0 {
			hopeful = append(hopeful, struct{ time, gain, weight float64 }{math.Exp(log), gain, s.weight})
		}
	}
	if len(hopeful) == 0 {
		return 0
	}
	slo := math.Exp(b.slo)
	at := func(x float64) (gain float64) {
		idle := math.Exp(c.tail.mean + x*c.tail.sd)
		for _, s := range hopeful {
			if u := sustainableFraction(slo, s.time*idle, s.time/c.config.Quota); u > 0 {
				gain += s.weight * max(0, s.gain+math.Log(u)+b.shift-incumbent)
			}
		}
		return gain
	}
	return c.runProbability * (at(0)*2/3 + (at(math.Sqrt(3))+at(-math.Sqrt(3)))/6)
}
