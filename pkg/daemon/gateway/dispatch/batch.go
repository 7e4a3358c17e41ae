package dispatch

import (
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/scale"
)

// For the policy, a batch of calls is one invocation: it has one Attempt. For the limit on queued calls (Function.queue),
// each call of the batch counts, from Admit until Dismiss. Function.gathered is the number of these calls.

// Admit adds a call to the queued calls of the function, while the call waits for its batch to be sent. It returns the
// number of inferences in the largest batch that an instance of the function takes. It returns 0 if a call with this
// number of inferences cannot share a batch, and a refusal if the queue is full. In these two cases, it does not add the
// call. Otherwise, the caller must call Dismiss when the wait ends.
func (f *Function) Admit(inferences int) (maxBatch int, e *refusal.Error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.maxBatch <= 1 || inferences > f.maxBatch {
		return 0, nil
	}
	if f.queueFull() {
		return 0, f.refusal(queue.QueueFull)
	}
	f.gathered++
	if f.scaling != nil {
		f.scaling.calls += inferences
	}
	return f.maxBatch, nil
}

// Readmit adds n dismissed calls to the queued calls again, because they wait for another batch. It does not check the
// limit.
func (f *Function) Readmit(n int) { f.Dismiss(-n) }

// Dismiss removes n admitted calls from the queued calls, because they no longer wait.
func (f *Function) Dismiss(n int) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.gathered -= n
}

// queueFull reports whether the number of queued calls has reached the limit: attempts that are not batches, and calls
// that wait for their batch. The policy cannot check this, because it counts a batch as one invocation. Locked.
func (f *Function) queueFull() bool { return f.alone+f.gathered >= f.queue }

// SubmitBatch puts the attempt of a batch into the queue, or refuses it, like Submit. The calls of the batch must have
// been admitted. since is the time at which the oldest of them began to wait: the queue timeout counts from then.
// SubmitBatch also accepts batches while the gateway drains, because their calls arrived before that.
func (d *Dispatcher) SubmitBatch(a *Attempt, f *Function, owner Owner, since time.Duration) {
	a.batch, a.accepted = 1, true
	d.submit(a, f, owner, func(now time.Duration) *refusal.Error {
		a.deadline = since + d.cfg.QueueTimeout
		return nil
	})
}

// Accepted records that the attempt's call was accepted before, as a member of a batch. Submit then does not refuse it
// because the gateway drains. The caller must call it before Submit.
func (a *Attempt) Accepted() { a.accepted = true }

// Overdue returns by how much a call that began to wait at since has exceeded the queue timeout. The result is negative
// before the timeout.
func (d *Dispatcher) Overdue(since time.Duration) time.Duration {
	return d.Now() - since - d.cfg.QueueTimeout
}

// Sent records that the attempt's batch was sent, with the given number of calls. If the attempt returns to the queue,
// each of these calls counts as queued again.
func (a *Attempt) Sent(calls int) {
	a.d.mu.Lock()
	defer a.d.mu.Unlock()
	a.batch, a.sentBefore = calls, true
}

// Transfer makes another call the owner of an attempt.
func (a *Attempt) Transfer(owner Owner) {
	a.d.mu.Lock()
	defer a.d.mu.Unlock()
	a.owner = owner
}

// MaxBatch returns the number of inferences in the largest batch for an instance: the batch of its record or, if that has
// none, the limit in the function's definition. It returns 0 if the function forms no batches.
func (l *CallLimits) MaxBatch(r *instance.Record) int {
	b := l.Batcher
	switch {
	case b == nil:
		return 0
	case r.Batch > 1:
		return r.Batch
	}
	return b.Max
}

// planRate returns the rate, in requests per second, that the plan states for an instance of fn; 0 means that it states
// none. The plan may assume batches that the function does not form, so that each request reaches the instance alone. A
// single request takes at most as long as a whole batch. planRate then returns the number of batches per second, which
// is a lower bound: 10 for a plan with 40 requests/s in batches of 4.
func planRate(fn *function.Function, r *instance.Record) float64 {
	if r.Batch > 1 && !fn.Batches() {
		return r.RPS / float64(r.Batch)
	}
	return r.RPS
}

// batchOf returns the batch of an instance's configuration. It returns 0 if there is no configuration (nil), or if the
// batch is 1.
func batchOf(c *scale.Instance) int {
	if c != nil && c.Request.Batch > 1 {
		return c.Request.Batch
	}
	return 0
}

// setMaxBatch sets f.maxBatch to the largest MaxBatch of the function's live instances. If there are none, it sets
// f.maxBatch to the limit in the function's definition. Locked.
func (f *Function) setMaxBatch() {
	limits := f.Calls()
	f.maxBatch = 0
	for _, i := range f.instances {
		if i.alive() {
			f.maxBatch = max(f.maxBatch, limits.MaxBatch(i.record))
		}
	}
	if b := limits.Batcher; b != nil && f.maxBatch == 0 {
		f.maxBatch = b.Max
	}
}

// callsIn returns the number of calls that the attempts contain: the calls of a batch that was sent, and 1 for
// any other attempt.
func callsIn(attempts []*Attempt) (n int) {
	for _, a := range attempts {
		n += max(a.batch, 1)
	}
	return n
}
