package search

import "math"

// waitAtHalf is the wait at a utilization of 1/2, of a queue with constant service
// times, over the service time (see package goodput).
const waitAtHalf = 1.5

// part is what of the throughput a queue leaves within the objective: the
// utilization at which the wait, which grows as u/(1-u), is what the latency at rest
// leaves of it. Times are in ms; 0 where nothing is left.
func part(slo, rest, service float64) float64 {
	if rest >= slo {
		return 0
	}
	return (slo - rest) / (slo - rest + waitAtHalf*service)
}

// shift is the log of how much more of the throughput the rows' goodputs are than
// that, at the mean of them and of a row of which nothing is known.
func (b *book) shift() float64 {
	sum, n := 0.0, 1.0
	for _, r := range b.rows {
		rps, _, known := r.Goodput(b.goal.SLOMS)
		if !known || rps <= 0 || r.IdleP95MS <= 0 || r.ThroughputRPS <= 0 {
			continue
		}
		if expected := part(b.goal.SLOMS, r.IdleP95MS, 1000*float64(r.Batch)/r.ThroughputRPS); expected > 0 {
			sum += math.Log(rps / r.ThroughputRPS / expected)
			n++
		}
	}
	return sum / n
}

// steps are those of the log time, in standard deviations, over which a gain is
// summed, and their weights.
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

// modest is the log of the part of the throughput that a first configuration is
// expected to beat.
const modest = -2

// gainUnderLoad is how much log goodput per GPU a candidate, of whose log time at
// full quota the mean and deviation are given, is expected to add to the incumbent's,
// which is a log of that.
func (b *belief) gainUnderLoad(c candidate, mean, sd, incumbent float64) float64 {
	// A queue leaves the whole throughput at most, so that steps which add nothing
	// even then are left out.
	var buffer [8]struct{ time, gain, weight float64 }
	hopeful := buffer[:0]
	for _, s := range steps {
		log := mean + s.z*sd
		if gain := c.unit - log; gain+b.shift-incumbent > 0 {
			hopeful = append(hopeful, struct{ time, gain, weight float64 }{math.Exp(log), gain, s.weight})
		}
	}
	if len(hopeful) == 0 {
		return 0
	}
	slo := math.Exp(b.slo)
	at := func(x float64) (gain float64) {
		rest := math.Exp(c.tail.mean + x*c.tail.sd)
		for _, s := range hopeful {
			if u := part(slo, s.time*rest, s.time/c.config.Quota); u > 0 {
				gain += s.weight * max(0, s.gain+math.Log(u)+b.shift-incumbent)
			}
		}
		return gain
	}
	return c.runs * (at(0)*2/3 + (at(math.Sqrt(3))+at(-math.Sqrt(3)))/6)
}
