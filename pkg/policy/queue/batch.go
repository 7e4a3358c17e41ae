package queue

import "slices"

// batches holds the invocations that each instance still has to run one after another (R12). A
// batch takes the whole queue of the function whose invocation is the oldest. Orders do not see
// the members of a batch, because they left the queue together.
type batches struct {
	queues     []batch // by the index of the instance
	continuing []int32 // instances that continue with their batch at this instant
}

type batch struct {
	function, gpu int32
	remaining     []member
}

// scheduleNext reports whether the batch of an instance continues after an invocation has ended, and
// schedules the instance for dispatcher.continueBatches. It returns false if the instance is lost.
func (b *batches) scheduleNext(instance int32, lost bool) bool {
	if lost || int(instance) >= len(b.queues) || len(b.queues[instance].remaining) == 0 {
		return false
	}
	b.continuing = append(b.continuing, instance)
	return true
}

// fill moves the remaining queue of a function into the batch of an instance.
func (b *batches) fill(instance, function, gpu int32, queues *waiting) {
	b.queues = grown(b.queues, int(instance)+1)
	q := &b.queues[instance]
	q.function, q.gpu, q.remaining = function, gpu, q.remaining[:0]
	for queues.queues[function].len > 0 {
		q.remaining = append(q.remaining, queues.pop(function))
	}
}

// of returns the invocations of a function that wait in batches.
func (b *batches) of(f int32) (members []member) {
	for i := range b.queues {
		if b.queues[i].function == f {
			members = append(members, b.queues[i].remaining...)
		}
	}
	return members
}

// drop removes an invocation from its batch, and reports whether it was in one.
func (b *batches) drop(f int32, id int64) bool {
	for i := range b.queues {
		q := &b.queues[i]
		if at := slices.IndexFunc(q.remaining, func(m member) bool { return m.id == id }); q.function == f && at >= 0 {
			q.remaining = slices.Delete(q.remaining, at, at+1)
			return true
		}
	}
	return false
}
