package queue

import (
	"math"
	"slices"
	"time"
)

// bookings holds the bookings of the policy gfaas (R24 to R26): a booked invocation waits for a certain
// busy GPU. bookings also holds the invocations in flight and their expected ends. From these, wait
// computes how long a further booking of a GPU would have to wait.
type bookings struct {
	gpus      []gpuBookings
	booked    [][]booking          // by GPU: its bookings, in the order in which they were added
	runningOn [][]int32            // by function: GPU of each invocation in flight
	bookedOf  []int32              // by function: number of booked invocations
	bookedOn  [][]int32            // by function: GPUs with a booking of it, ascending
	overdue   heap                 // GPUs with bookings, by overdueAt
	changed   []int32              // GPUs with bookings that may be stale
	removed   func(function int32) // called before a booked invocation is removed
}

// gpuBookings holds the invocations in flight on a GPU, and what wait computes from them and from the
// bookings. It fits in a cache line, because a decision compares many GPUs.
type gpuBookings struct {
	running   []runningInvocation
	found     int32         // index in running of the last one that find found
	stale     bool          // running has changed; overdueAt, soonest and lastLate have not been updated
	moved     bool          // while stale: setEnd has changed an expected end
	overdueAt time.Duration // earliest time at which an invocation in running becomes overdue; Never if running is empty
	soonest   time.Duration // earliest expected end of those in running that are not late; Never if there are none
	lastLate  time.Duration // latest start of those in running that are late; -Never if there are none
	backlog   time.Duration // sum of the execution times of all booked invocations
}

// booking stands for count invocations of one function with equal execution times that were booked one
// after another.
type booking struct {
	function, count int32
	warm            time.Duration // execution time of each invocation
}

// runningInvocation is an invocation in flight.
type runningInvocation struct {
	id                   int64
	started, expectedEnd time.Duration
	planned              time.Duration // expected end before extend changed it
	// late is true after extend. From then on, the remaining time is assumed to equal the time since
	// started (R24).
	late bool
}

func (b *bookings) grow(functions, gpus int) {
	b.overdue.grow(gpus)
	b.gpus, b.booked = grown(b.gpus, gpus), grown(b.booked, gpus)
	b.runningOn, b.bookedOn = grown(b.runningOn, functions), grown(b.bookedOn, functions)
	b.bookedOf = grown(b.bookedOf, functions)
}

// addRun records that an invocation of a function is in flight.
func (b *bookings) addRun(f int32, r *run, now time.Duration) {
	m := &b.gpus[r.gpu]
	m.running = append(m.running, runningInvocation{id: r.id, started: now, expectedEnd: r.expectedEnd, planned: r.expectedEnd})
	b.runningOn[f] = append(b.runningOn[f], r.gpu)
	b.change(r.gpu)
}

// removeRun records that an invocation of a function is no longer in flight.
func (b *bookings) removeRun(f int32, r *run) {
	m := &b.gpus[r.gpu]
	m.running = slices.DeleteFunc(m.running, func(u runningInvocation) bool { return u.id == r.id })
	if i := slices.Index(b.runningOn[f], r.gpu); i >= 0 {
		b.runningOn[f] = slices.Delete(b.runningOn[f], i, i+1)
	}
	b.change(r.gpu)
}

// setEnd changes the expected end of an invocation in flight to r.expectedEnd.
func (b *bookings) setEnd(r *run) {
	m := &b.gpus[r.gpu]
	u := m.find(r.id)
	if u == nil || u.planned == r.expectedEnd {
		return
	}
	u.planned, u.expectedEnd, u.late = r.expectedEnd, r.expectedEnd, false
	b.change(r.gpu)
	m.moved = true
}

// find returns an invocation in flight, or nil. Calls for the invocations of an instance, the newest first, take
// constant time each.
func (m *gpuBookings) find(id int64) *runningInvocation {
	for n := len(m.running); n > 0; n-- {
		if m.found--; m.found < 0 || int(m.found) >= len(m.running) {
			m.found = int32(len(m.running) - 1)
		}
		if m.running[m.found].id == id {
			return &m.running[m.found]
		}
	}
	return nil
}

// change records that the invocations in flight on a GPU have changed. wait and wake update the GPU, so that a batch
// whose expected ends all change is examined once.
func (b *bookings) change(gpu int32) {
	m := &b.gpus[gpu]
	if !m.stale && len(b.booked[gpu]) > 0 {
		b.changed = append(b.changed, gpu)
	}
	m.stale = true
}

// update computes overdueAt, soonest and lastLate of a GPU from its invocations in flight.
func (b *bookings) update(gpu int32) {
	m := &b.gpus[gpu]
	m.stale, m.moved, m.overdueAt, m.soonest, m.lastLate = false, false, Never, Never, -Never
	for i := range m.running {
		u := &m.running[i]
		m.overdueAt = min(m.overdueAt, u.overdueAt())
		if u.late {
			m.lastLate = max(m.lastLate, u.started)
		} else {
			m.soonest = min(m.soonest, u.expectedEnd)
		}
	}
	b.updateHeap(gpu)
}

// updateHeap updates the entry of a GPU in overdue.
func (b *bookings) updateHeap(gpu int32) {
	if len(b.booked[gpu]) > 0 {
		b.overdue.set(gpu, key{a: int64(b.gpus[gpu].overdueAt)})
	} else {
		b.overdue.remove(gpu)
	}
}

// extend changes the expected end of each overdue invocation on a GPU: it assumes that the invocation takes twice as long
// as it has run so far. The invocation is late from then on (R26).
func (b *bookings) extend(gpu int32, now time.Duration) {
	running := b.gpus[gpu].running
	for i := range running {
		if u := &running[i]; u.overdueAt() <= now {
			u.expectedEnd, u.late = now+now-u.started, true
		}
	}
	b.update(gpu)
}

// wait returns the expected wait of one more booking of a GPU: the least remaining time of its invocations in flight, plus
// the backlog over their number (R24). Before that, it extends overdue invocations.
func (b *bookings) wait(gpu int32, now time.Duration) time.Duration {
	m := &b.gpus[gpu]
	if m.stale || m.overdueAt <= now {
		b.extend(gpu, now)
	}
	// MaxInt64/4 prevents an overflow if no invocation is late and lastLate is -Never.
	remaining := min(max(m.soonest-now, 0), now-max(m.lastLate, now-math.MaxInt64/4))
	return remaining + m.backlog/time.Duration(max(len(m.running), 1))
}

// add books a GPU for an invocation of a function with the execution time warm.
func (b *bookings) add(gpu, f int32, warm time.Duration) {
	booked := &b.booked[gpu]
	if last := len(*booked) - 1; last >= 0 && (*booked)[last].function == f && (*booked)[last].warm == warm {
		(*booked)[last].count++
	} else {
		*booked = append(*booked, booking{f, 1, warm})
	}
	b.gpus[gpu].backlog += warm
	b.bookedOf[f]++
	b.bookedOn[f] = withMember(b.bookedOn[f], gpu, true)
	b.updateHeap(gpu)
}

// remove removes one invocation from booking i of a GPU.
func (b *bookings) remove(gpu int32, i int) {
	booked := &b.booked[gpu]
	x := &(*booked)[i]
	f := x.function
	b.removed(f)
	b.bookedOf[f]--
	b.gpus[gpu].backlog -= x.warm
	if x.count--; x.count == 0 {
		*booked = slices.Delete(*booked, i, i+1)
		others := slices.ContainsFunc(*booked, func(x booking) bool { return x.function == f })
		b.bookedOn[f] = withMember(b.bookedOn[f], gpu, others)
		b.updateHeap(gpu)
	}
}

// limit removes booked invocations of a function until at most n remain: the last ones of the GPU with the highest number
// first.
func (b *bookings) limit(f, n int32) {
	for b.bookedOf[f] > n {
		gpu := b.bookedOn[f][len(b.bookedOn[f])-1]
		for i := len(b.booked[gpu]) - 1; i >= 0 && b.bookedOf[f] > n; i-- {
			if b.booked[gpu][i].function == f {
				for count := b.booked[gpu][i].count; count > 0 && b.bookedOf[f] > n; count-- {
					b.remove(gpu, i)
				}
			}
		}
	}
}

// gpuRemoved removes all bookings of a GPU. The policy then decides about their invocations again.
func (b *bookings) gpuRemoved(gpu int32) {
	for len(b.booked[gpu]) > 0 {
		b.remove(gpu, len(b.booked[gpu])-1)
	}
}

// removeOverdue finds the GPUs that have bookings and an overdue invocation. It extends the overdue invocations, and
// removes all bookings of these GPUs (R26).
func (b *bookings) removeOverdue(now time.Duration) {
	for b.wake(now) <= now {
		gpu := b.overdue.min().function
		b.extend(gpu, now)
		b.gpuRemoved(gpu)
	}
}

// wake returns the earliest time at which an invocation becomes overdue on a GPU with bookings, or Never. Before that,
// it extends invocations that are overdue by a changed end, so that their GPUs keep their bookings (R26).
func (b *bookings) wake(now time.Duration) time.Duration {
	for _, gpu := range b.changed {
		switch m := &b.gpus[gpu]; {
		case !m.stale || len(b.booked[gpu]) == 0:
		case m.moved:
			b.extend(gpu, now)
		default:
			b.update(gpu)
		}
	}
	b.changed = b.changed[:0]
	if b.overdue.len() == 0 {
		return Never
	}
	return time.Duration(b.overdue.min().key.a)
}

// overdueAt returns the first nanosecond at which an invocation is overdue (R26). A late invocation is overdue again
// when it has run for more than twice as long as when it was extended.
func (u *runningInvocation) overdueAt() time.Duration {
	if u.late {
		return u.expectedEnd + 1
	}
	return overdue(u.started, u.expectedEnd) + 1
}

// overdue returns the time after which work with the given start and expected end is overdue: it then has taken twice its
// expected duration, but at least 1 ms more than that duration.
func overdue(started, expectedEnd time.Duration) time.Duration {
	return expectedEnd + max(expectedEnd-started, time.Millisecond)
}
