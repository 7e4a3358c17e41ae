package planned

import (
	"math"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/token"
)

// Under the policies introspective and TGS, all instances with work have leases and run at the same time, and a
// budget limits the blocks that each may launch. An instance whose budget is used up keeps its lease and
// waits. A GPU shared in this way is a device with metered set. Its instances run at their speed alone on
// the GPU while their SM shares sum to at most 100%, and otherwise slower in proportion, as under MPS.
//
// The work of a batch is divided into kernels of kernelTime and blocks of blockTime, in time alone on the
// GPU. No work is in flight: a revoked lease is returned at once.
const (
	kernelTime = 100 * time.Microsecond
	blockTime  = 10 * time.Microsecond
	// roundingError is the amount of work up to which a rest counts as none.
	roundingError = 10 * time.Nanosecond
	// endlessWork is the remaining work of an endless instance.
	endlessWork = time.Duration(math.MaxInt64 / 4)
)

// isMetered reports whether instances run at the same time under a policy, with budgets.
func isMetered(policy string) bool { return policy == token.Introspection || policy == TGS }

// allowance is the work that an instance may do in all, in time alone on the GPU.
func allowance(budget uint64) time.Duration {
	if budget >= uint64(endlessWork/blockTime) {
		return endlessWork
	}
	return time.Duration(budget) * blockTime
}

// settle counts the work since the last change of the instance's speed.
func (i *instance) settle() {
	now := i.device.world.now
	if i.phase != working || now == i.since {
		return
	}
	did := max(0, min(time.Duration(float64(now-i.since)*i.speed), i.remaining, i.allowed-i.done))
	if i.remaining-did <= roundingError {
		did = i.remaining
	}
	i.done += did
	if i.remaining -= did; i.endless {
		i.remaining = endlessWork
	}
	i.since, i.last = now, now
}

// sample returns the counters of the instance's launches.
func (i *instance) sample() token.Sample {
	return token.Sample{Client: i.client, Launches: uint64(i.done / kernelTime), Blocks: uint64(i.done / blockTime)}
}

// revokeMetered returns the revoked lease.
func (i *instance) revokeMetered() {
	i.settle()
	if i.phase != working && i.phase != blocked {
		i.returnLease(wantsNoMore)
		return
	}
	i.phase = waiting
	i.returnLease(wantsMore)
}

// onBudget changes the instance's budget.
func (i *instance) onBudget(blocks uint64) {
	i.settle()
	i.allowed = allowance(blocks)
	i.device.changed = true
}

// wakeMetered reports a Wake to the policy, after samples of the instances with a lease.
func (d *device) wakeMetered() {
	events := d.samples[:0]
	for _, i := range d.instances {
		if i.lease != 0 {
			i.settle()
			events = append(events, i.sample())
		}
	}
	d.samples = append(events, token.Wake{})
	d.reporting = true
	d.step(d.samples)
	d.flush()
}

// retimeSoon calls retime, now or after the events that are being reported.
func (d *device) retimeSoon() {
	d.changed = true
	if !d.reporting {
		d.reporting = true
		d.flush()
	}
}

// retime completes finished batches, and computes the speeds of the others and when each stops next.
func (d *device) retime() {
	d.changed = false
	for _, i := range d.instances {
		i.settle()
	}
	smPct := 0.0
	for _, i := range d.instances {
		switch allowed := i.allowed-i.done > roundingError; {
		case i.phase == working && i.remaining == 0:
			i.complete()
		case i.phase == working && !allowed:
			i.phase = blocked
			i.step++ // it does not stop
		case i.phase == blocked && allowed:
			i.phase, i.since = working, d.world.now
		}
		if i.phase == working {
			smPct += i.smPct
		}
	}
	for _, i := range d.instances {
		if i.phase != working {
			continue
		}
		i.speed = 100 / max(100, smPct)
		if stop := min(i.remaining, i.allowed-i.done); stop < endlessWork/2 {
			i.stopAt(d.world.now + time.Duration(math.Ceil(float64(stop)/i.speed)))
		}
	}
}
