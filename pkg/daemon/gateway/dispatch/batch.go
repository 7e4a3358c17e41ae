package dispatch

import (
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/scale"
)

// A batch of calls is one invocation of the policy, with one Attempt. Its calls are admitted to the function's queue
// one by one (Admit) and count there until the batch is sent (Dismiss).

// Admit counts a call that waits for its batch to be sent, with the given number of inferences. It returns the
// largest batch that an instance of the function takes. It returns 0 if the call cannot share a batch, and a refusal
// if the queue is full; in both cases, the call does not count. Otherwise, the caller must call Dismiss later.
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

// Readmit counts n calls again, which wait for another batch.
func (f *Function) Readmit(n int) { f.Dismiss(-n) }

// Dismiss records that n admitted calls no longer wait.
func (f *Function) Dismiss(n int) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.gathered -= n
}

// queueFull reports whether the number of waiting calls has reached its limit. The policy counts a batch as one. Locked.
func (f *Function) queueFull() bool { return f.alone+f.gathered >= f.queue }

// SubmitBatch puts the attempt of a batch into the queue, or refuses it, like Submit. Its calls have been admitted.
// since is the time at which the oldest call began to wait. SubmitBatch accepts batches while the gateway drains,
// because their calls arrived before that.
func (d *Dispatcher) SubmitBatch(a *Attempt, f *Function, owner Owner, since time.Duration) {
	a.batch = 1
	d.submit(a, f, owner, func(now time.Duration) *refusal.Error {
		a.deadline = since + d.cfg.QueueTimeout
		return nil
	})
}

// Overdue returns the time by which a call that began to wait at since has exceeded the limit; it is negative before
// that.
func (d *Dispatcher) Overdue(since time.Duration) time.Duration {
	return d.Now() - since - d.cfg.QueueTimeout
}

// Sent records the number of calls in the attempt's batch. If the batch returns to the queue, they count there again.
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

// MaxBatch returns the largest batch for an instance of the function; 0 means that it forms no batches.
func (f *Function) MaxBatch(r *instance.Record) int {
	b := f.Calls().Batcher
	switch {
	case b == nil:
		return 0
	case r.Batch > 1:
		return r.Batch
	}
	return b.Max
}

// perInvocation returns the number of requests of a plan's rate that an invocation on an instance stands for.
func (f *Function) perInvocation(r *instance.Record) int { return max(f.MaxBatch(r), 1) }

// batchOf returns the batch of an instance's configuration; 0 if there is no configuration or it is 1.
func batchOf(c *scale.Instance) int {
	if c != nil && c.Request.Batch > 1 {
		return c.Request.Batch
	}
	return 0
}

// setMaxBatch updates the largest batch that an instance of the function takes. Without instances, it is that of the
// function. Locked.
func (f *Function) setMaxBatch() {
	b := f.Calls().Batcher
	if b == nil {
		f.maxBatch = 0
		return
	}
	most := 0
	for _, i := range f.d.instances {
		if i.function == f && i.alive() {
			most = max(most, f.MaxBatch(i.record))
		}
	}
	if f.maxBatch = most; most == 0 {
		f.maxBatch = b.Max
	}
}

// callsIn returns the number of calls that attempts stand for.
func callsIn(attempts []*Attempt) (n int) {
	for _, a := range attempts {
		n += max(a.batch, 1)
	}
	return n
}
