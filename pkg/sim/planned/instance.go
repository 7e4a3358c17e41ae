package planned

import (
	"time"

	"github.com/gfaas/gfaas/pkg/policy/token"
)

const (
	// inFlight is the approximate amount of work that the preload library lets a program queue on
	// the GPU. An instance still completes that much of a batch after its lease was revoked.
	inFlight = 12 * time.Millisecond
	// timetableHold is the idle time after which the preload library returns a lease, on a GPU with
	// a timetable.
	timetableHold = 2 * time.Millisecond
	// averageWindow is the weight of the gateway's moving average, in batches.
	averageWindow = 32
)

// instance is an Instance in operation: a client of its GPU's policy.
type instance struct {
	device     *device
	client     token.ClientID
	work       time.Duration // of a batch
	answerTime time.Duration
	batch      int
	rps        float64
	endless    bool
	smPct      float64

	queue        *requestQueue
	requests     []time.Duration // arrival times of the requests in its batch
	batchStart   time.Duration   // when it took the first of them
	meanDuration time.Duration   // moving average of the duration of a batch
	batches      int             // number of batches in that average, up to averageWindow

	phase      phase
	lease      uint32        // the lease that it holds; 0 means none
	leaseValid bool          // the lease was not revoked
	granted    time.Duration // when the lease was granted
	last       time.Duration // when work last ended
	remaining  time.Duration // remaining work of the batch at since; 0 if it has not begun
	since      time.Duration // when work last began or resumed
	stopTime   time.Duration // when it is scheduled to stop
	step       int           // the current activity: scheduled stops of earlier steps are void

	// On a metered GPU:
	speed   float64       // of the work, 1 alone on the GPU
	done    time.Duration // all its work so far, in time alone on the GPU
	allowed time.Duration // limit of done
}

// phase is the activity of an instance.
type phase int

const (
	idle      phase = iota // idle, perhaps with a lease
	waiting                // waiting for a lease with a batch
	working                // working on the batch
	blocked                // on a metered GPU: waiting, with a lease, for a budget
	answering              // handing over the answer
)

func newInstance(d *device, in Instance, client token.ClientID) *instance {
	inst := &instance{
		device: d, client: client, work: max(fromMS(in.WorkMS), 1), answerTime: fromMS(in.AnswerMS),
		batch: max(1, in.Batch), rps: in.RPS, endless: in.Endless,
		smPct: in.Slice.LargestSMPct(),
	}
	if inst.meanDuration = inst.work + inst.answerTime; in.RPS > 0 {
		inst.meanDuration = max(fromMS(1000/in.RPS), 1)
	}
	return inst
}

// hasRoom reports whether a request may join the instance's batch.
func (i *instance) hasRoom() bool {
	return (i.phase == idle || i.phase == waiting && i.remaining == 0) && len(i.requests) < i.batch
}

// addRequest adds a request with that arrival time to the batch.
func (i *instance) addRequest(at time.Duration) {
	if len(i.requests) == 0 {
		i.batchStart = i.device.world.now
	}
	i.requests = append(i.requests, at)
}

// start begins the batch, or requests a lease for it.
func (i *instance) start() {
	switch {
	case i.phase != idle || len(i.requests) == 0:
	case i.leaseValid:
		i.resume()
	default:
		i.phase = waiting
		i.device.report(token.Request{Client: i.client})
	}
}

func (i *instance) onGranted(lease uint32) {
	i.lease, i.leaseValid, i.granted = lease, true, i.device.world.now
	i.resume()
}

// resume begins or resumes work on the batch.
func (i *instance) resume() {
	i.phase, i.since = working, i.device.world.now
	if i.remaining == 0 {
		i.remaining = i.work
	}
	switch {
	case i.device.metered:
		i.device.retimeSoon()
	case !i.endless:
		i.stopAt(i.since + i.remaining)
	}
}

// stopAt schedules the end of the current activity, including idleness.
func (i *instance) stopAt(at time.Duration) {
	i.step++
	i.stopTime = at
	step := i.step
	i.device.world.schedule(at, func() {
		if i.step == step {
			i.onStopped()
		}
	})
}

// onRevoked handles the revocation of the lease.
func (i *instance) onRevoked() {
	i.leaseValid = false
	switch now := i.device.world.now; {
	case i.device.metered:
		i.revokeMetered()
	case i.endless:
		i.last = now
		i.returnLease(wantsMore)
	case i.phase == working:
		i.stopAt(min(i.stopTime, now+inFlight))
	default:
		i.returnLease(wantsNoMore)
	}
}

// onStopped ends an activity: the instance completed its batch, or the work that was queued on the
// GPU when the lease was revoked, or was idle for the time after which it
// returns its lease.
func (i *instance) onStopped() {
	if i.phase != working {
		i.returnLease(wantsNoMore)
		return
	}
	if i.device.metered {
		i.device.retimeSoon()
		return
	}
	i.last = i.device.world.now
	if i.remaining -= i.last - i.since; i.remaining > 0 {
		i.phase = waiting
		i.returnLease(wantsMore)
		return
	}
	i.complete()
}

// complete hands over the answer to the batch, whose work has ended.
func (i *instance) complete() {
	i.phase = answering
	i.device.world.schedule(i.last+i.answerTime, i.onAnswered)
	if i.leaseValid {
		i.stopAt(i.last + i.device.idleHold)
	} else {
		i.returnLease(wantsNoMore)
	}
}

// Values of the argument of returnLease.
const (
	wantsMore   = true
	wantsNoMore = false
)

// returnLease returns the lease. The instance is charged from the grant to the end of its last
// work.
func (i *instance) returnLease(wantsMore bool) {
	i.step++
	lease := i.lease
	i.lease, i.leaseValid = 0, false
	if i.device.metered {
		i.device.report(i.sample())
		i.device.changed = true
	}
	i.device.report(token.Return{Client: i.client, Lease: lease, Used: i.last - i.granted, WantsMore: wantsMore})
}

// onAnswered completes the requests of the batch and makes room for the next one.
func (i *instance) onAnswered() {
	now := i.device.world.now
	i.queue.recordLatencies(i.requests, now)
	i.batches = min(i.batches+1, averageWindow)
	i.meanDuration = max(i.meanDuration+(now-i.batchStart-i.meanDuration)/time.Duration(i.batches), 1)
	i.requests, i.phase = i.requests[:0], idle
	i.queue.serve()
}
