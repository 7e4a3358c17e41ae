package dispatch

import (
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
)

// driver runs a policy: it passes events to the policy and the resulting actions to do,
// until no event remains. Dispatcher.mu guards it.
type driver struct {
	policy queue.Policy
	now    func() time.Duration
	do     func(now time.Duration, a *queue.Action)

	events   []queue.Event // of the current step
	pending  []queue.Event // of the next step
	actions  []queue.Action
	stepping bool
	closed   bool
	recorder *recorder // nil if there is no recording
	name     func(function int32) string

	timer  *time.Timer
	wakeAt time.Duration // when the policy wants its next Woke event
	set    time.Duration // when the timer fires, possibly before wakeAt
}

// init prepares the driver; its timer calls woke.
func (d *driver) init(policy queue.Policy, now func() time.Duration, do func(time.Duration, *queue.Action), woke func()) {
	*d = driver{policy: policy, now: now, do: do, wakeAt: queue.Never, set: queue.Never, timer: time.AfterFunc(time.Hour, woke)}
	d.timer.Stop()
}

// close stops the policy and the timer.
func (d *driver) close() {
	d.closed = true
	d.timer.Stop()
}

// add queues events for the next step.
func (d *driver) add(events ...queue.Event) { d.pending = append(d.pending, events...) }

// step passes the queued events and the given ones to the policy. Events that its actions
// cause are passed in further steps.
func (d *driver) step(events ...queue.Event) {
	d.pending = append(d.pending, events...)
	if d.stepping || d.closed {
		return
	}
	d.stepping = true
	for len(d.pending) > 0 {
		d.events, d.pending = d.pending, d.events[:0]
		now := d.now()
		d.actions = d.policy.Step(now, d.events, d.actions[:0])
		if d.recorder != nil {
			d.recorder.step(now, d.events, d.actions, d.name)
		}
		for i := range d.actions {
			d.do(now, &d.actions[i])
		}
		clear(d.events)
	}
	d.stepping = false
}

// wake schedules the policy's next Woke event at the given time, or sends it now if that
// time has passed.
func (d *driver) wake(now, at time.Duration) {
	if d.wakeAt = at; at <= now {
		d.wakeAt = queue.Never
		d.step(&queue.Woke{})
	}
	d.setTimer(now)
}

// setTimer makes the timer fire at wakeAt or earlier. Most calls postpone wakeAt and then
// leave the timer unchanged.
func (d *driver) setTimer(now time.Duration) {
	if d.wakeAt < d.set {
		d.set = d.wakeAt
		d.timer.Reset(max(d.wakeAt-now, 0))
	}
}

// woke sends the Woke event if its time has come, and otherwise sets the timer again.
func (d *driver) woke() {
	d.set = queue.Never
	if now := d.now(); d.wakeAt > now {
		d.setTimer(now)
		return
	}
	d.wakeAt = queue.Never
	d.step(&queue.Woke{})
}
