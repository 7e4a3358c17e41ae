package dispatch

import (
	"math"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/profile"
)

// How long a call takes depends on the inferences that execute with it: those of its batch or, with inflight above
// 1, the other calls on its instance. Both are expected to take 1 + slope × others times as long as one inference
// alone. The slope comes from the profile, or else from a line through the measured durations.

// line holds the means from which slope fits a line to the durations of warm calls. Like durations.warm, they are
// dominated by about the last `few` values.
type line struct {
	others   float64 // mean of the number of further inferences
	squares  float64 // mean of its square
	products float64 // mean of its product with the duration, in ns
}

// addWarm adds the duration of a warm call that executed with others, on average.
func (d *durations) addWarm(took time.Duration, others float64) {
	d.warm.add(took)
	n := float64(d.warm.n)
	d.line.others += (others - d.line.others) / n
	d.line.squares += (others*others - d.line.squares) / n
	d.line.products += (others*float64(took) - d.line.products) / n
}

// slope returns the slope of the durations. It returns false if there are too few, or if the numbers of inferences were about
// the same.
func (d *durations) slope() (slope float64, known bool) {
	variance := d.line.squares - d.line.others*d.line.others
	if d.warm.n < few/2 || variance < leastVariance {
		return 0, false
	}
	each := (d.line.products - d.line.others*float64(d.warm.value)) / variance
	return profile.SlopeOf(float64(d.warm.value)-each*d.line.others, each), true
}

// leastVariance is the least variance of the numbers of inferences from which slope fits a line.
const leastVariance = 0.25

// usual returns the mean duration of the measured calls as a multiple of that of one inference alone.
func (d *durations) usual(slope float64) float64 { return 1 + slope*d.line.others }

// batchSlope returns the slope of the first GPU whose rows in the profile have several batch sizes, or nil.
func (c chooser) batchSlope() *float64 {
	for number := range c.gpus {
		slice, _ := c.slice(number)
		if slope, ok := profile.BatchSlope(c.rowsOn(number), slice.SMPct, slice.QuotaRequest); ok {
			return &slope
		}
	}
	return nil
}

// Inferences records the number of inferences in the attempt's batch, which is about to be sent, and reports to the
// policy how long the batch should take.
func (a *Attempt) Inferences(n int) {
	a.d.mu.Lock()
	defer a.d.mu.Unlock()
	a.inferences = n
	f := a.function
	c := f.forecast()
	slope := c.slope()
	if slope == 0 || a.state != attemptRuns {
		return
	}
	times := 1 + slope*float64(n-1)
	if !c.fixed {
		times /= f.costs.usual(slope)
	}
	if math.Abs(times-1) > 0.1 {
		a.d.policy.step(&queue.Sized{Function: f.number, Instance: a.on.id, ID: a.id, Times: times})
	}
}

// startExecuting records that the attempt begins to execute. Locked.
func (a *Attempt) startExecuting() {
	a.on.countCalls()
	a.began, a.callsBefore = a.on.counted, a.on.calls
}

// others returns the number of inferences that executed with that of an attempt, on average, before it leaves its
// instance. Locked.
func (a *Attempt) others() float64 {
	switch {
	case a.inferences > 1:
		return float64(a.inferences - 1)
	case !a.function.forecast().shares:
		return 0
	}
	a.on.countCalls()
	took := a.on.counted - a.began
	if took <= 0 {
		return 0
	}
	return max(float64(a.on.calls-a.callsBefore)/float64(took)-1, 0)
}

// countCalls updates the sum of the times of the instance's calls. It is called before their number changes. Locked.
func (i *Instance) countCalls() {
	now := i.d.policy.now()
	i.calls += time.Duration(len(i.attempts)) * (now - i.counted)
	i.counted = now
}
