package dispatch

import (
	"math"
	"time"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// execution returns the attempt's execution on its instance, for an event of its end. Locked.
func (a *Attempt) execution(executed time.Duration) queue.Execution {
	return queue.Execution{ID: a.id, Function: a.function.number, Instance: a.on.id, Executed: executed}
}

func functionSet(f *Function, spec queue.Function, renew bool) queue.Event {
	return &queue.FunctionSet{Function: f.number, Spec: spec, Renew: renew}
}

// Values of the argument short of lost: whether the GPU had too little memory.
const (
	memoryShort    = true
	memorySufficed = false
)

// lost returns the event of the end of an instance.
func lost(i *Instance, short bool) queue.Event {
	return &queue.Lost{Instance: i.id, Function: i.function.number, OutOfMemory: short}
}

// adopted returns the event of an instance that another process started or is starting, with
// its memory at to. warm is the expected duration of a call on it; 0 means the function's
// usual one.
func adopted(i *Instance, to residency.Start, warm time.Duration) queue.Event {
	ev := &queue.Adopted{
		Instance: i.id, Function: i.function.number, GPU: i.gpu, To: to, Pinned: !i.own,
		Starting: i.state == instanceStarts, Warm: warm,
	}
	if !i.own {
		ev.Mem, ev.Batch = int64(i.record.Slice.Mem), planBatch(i.record)
	}
	return ev
}

// planBatch returns the batch of a plan's instance, for an event.
func planBatch(r *instance.Record) int32 { return int32(min(r.Batch, math.MaxInt32)) }

// moved returns the event of an instance whose memory has moved, or with fault has failed
// to.
func moved(i *Instance, to residency.Start, fault bool) queue.Event {
	return &queue.Moved{Instance: i.id, Function: i.function.number, To: to, Failed: fault}
}

// do carries out an action of the policy. Locked.
func (d *Dispatcher) do(now time.Duration, a *queue.Action) {
	i := d.Instances.byID[a.Instance]
	switch a.Kind {
	case queue.Run:
		if d.Instances.missesFalsely(a) {
			d.functions[a.Function].falseMisses++
		}
		if i == nil {
			i = d.Instances.start(now, a.Function, a.GPU, a.Instance)
		}
		d.attempts[a.ID].run(now, i, a.Start, a.Reason)
	case queue.Reject:
		if at := d.attempts[a.ID]; at != nil {
			at.reject(now, a.Reason.Code)
		}
	case queue.Start:
		d.Instances.start(now, a.Function, a.GPU, a.Instance)
	case queue.Remove:
		if i != nil {
			i.remove(now)
		}
	case queue.Offload:
		if i != nil && i.state == instanceReady {
			i.offload()
		}
	case queue.Prefetch:
		if i != nil && i.state == instanceReady {
			i.prefetch()
		}
	case queue.Wake:
		d.policy.wake(now, a.At)
	case queue.Forget:
		d.forget(a.Function)
	case queue.Assign: // the attempt stays queued
	}
}
