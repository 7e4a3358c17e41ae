package queue

import (
	"math"
	"slices"
	"time"
)

// bookings holds the invocations of gfaas that wait for a busy GPU, and those in flight, from which
// follows when a GPU will be free.
type bookings struct {
	gpus      []gpuBookings
	runningOn [][]int32   // by function: GPU of each invocation in flight
	booked    []int32     // by function: number of booked invocations
	bookedOn  [][]int32   // by function: GPUs with a booking of it, ascending
	overdue   heap        // GPUs with bookings, by the time at which their work becomes overdue
	removed   func(int32) // called when a booking of a function is removed
}

// gpuBookings is the state of a GPU for bookings.
type gpuBookings struct {
	running   []runningInvocation
	overdueAt time.Duration // when the first of running becomes overdue
	soonest   time.Duration // when the first of running is expected to end
	backlog   time.Duration // total execution time of booked
	booked    []booking     // invocations that wait for this GPU, in order
}

// booking describes consecutive booked invocations of one function.
type booking struct {
	function, count int32
	warm            time.Duration // execution time of each
}

// runningInvocation is an invocation in flight.
type runningInvocation struct {
	id                   int64
	started, expectedEnd time.Duration
}

func (b *bookings) grow(functions, gpus int) {
	b.overdue.grow(gpus)
	b.gpus = grown(b.gpus, gpus)
	b.runningOn, b.booked, b.bookedOn = grown(b.runningOn, functions), grown(b.booked, functions), grown(b.bookedOn, functions)
}

// addRun records that an invocation of a function is in flight.
func (b *bookings) addRun(f int32, r *run, now time.Duration) {
	m := &b.gpus[r.gpu]
	m.running = append(m.running, runningInvocation{id: r.id, started: now, expectedEnd: r.expectedEnd})
	b.runningOn[f] = append(b.runningOn[f], r.gpu)
	b.update(r.gpu)
}

// removeRun records that an invocation of a function is no longer in flight.
func (b *bookings) removeRun(f int32, r *run) {
	m := &b.gpus[r.gpu]
	m.running = slices.DeleteFunc(m.running, func(u runningInvocation) bool { return u.id == r.id })
	if i := slices.Index(b.runningOn[f], r.gpu); i >= 0 {
		b.runningOn[f] = slices.Delete(b.runningOn[f], i, i+1)
	}
	b.update(r.gpu)
}

// update updates the times at which the first work on a GPU ends and becomes overdue.
func (b *bookings) update(gpu int32) {
	m := &b.gpus[gpu]
	m.overdueAt, m.soonest = Never, Never
	for i := range m.running {
		u := &m.running[i]
		m.overdueAt, m.soonest = min(m.overdueAt, u.overdueAt()), min(m.soonest, u.expectedEnd)
	}
	b.updateHeap(gpu)
}

// updateHeap updates the heap of GPUs with bookings.
func (b *bookings) updateHeap(gpu int32) {
	if m := &b.gpus[gpu]; len(m.booked) > 0 {
		b.overdue.set(gpu, key{a: int64(m.overdueAt)})
	} else {
		b.overdue.remove(gpu)
	}
}

// extend expects overdue work on a GPU to take twice as long as it has taken so far.
func (b *bookings) extend(gpu int32, now time.Duration) {
	running := b.gpus[gpu].running
	for i := range running {
		if u := &running[i]; u.overdueAt() <= now {
			u.expectedEnd = now + now - u.started
		}
	}
	b.update(gpu)
}

// wait returns the expected time until a GPU can run one more booking.
func (b *bookings) wait(gpu int32, now time.Duration) time.Duration {
	m := &b.gpus[gpu]
	if m.overdueAt <= now {
		b.extend(gpu, now)
	}
	soonest := min(max(m.soonest-now, 0), math.MaxInt64/4)
	return soonest + m.backlog/time.Duration(max(len(m.running), 1))
}

// add books an invocation of a function that takes warm.
func (b *bookings) add(gpu, f int32, warm time.Duration) {
	m := &b.gpus[gpu]
	if last := len(m.booked) - 1; last >= 0 && m.booked[last].function == f && m.booked[last].warm == warm {
		m.booked[last].count++
	} else {
		m.booked = append(m.booked, booking{f, 1, warm})
	}
	m.backlog += warm
	b.booked[f]++
	b.bookedOn[f] = withMember(b.bookedOn[f], gpu, true)
	b.updateHeap(gpu)
}

// remove removes one invocation from booking i of a GPU.
func (b *bookings) remove(gpu int32, i int) {
	m := &b.gpus[gpu]
	x := &m.booked[i]
	f := x.function
	b.removed(f)
	b.booked[f]--
	m.backlog -= x.warm
	if x.count--; x.count == 0 {
		m.booked = slices.Delete(m.booked, i, i+1)
		b.bookedOn[f] = withMember(b.bookedOn[f], gpu, slices.ContainsFunc(m.booked, func(x booking) bool { return x.function == f }))
		b.updateHeap(gpu)
	}
}

// limit removes bookings of a function until at most n remain.
func (b *bookings) limit(f, n int32) {
	for b.booked[f] > n {
		gpu := b.bookedOn[f][len(b.bookedOn[f])-1]
		m := &b.gpus[gpu]
		for i := len(m.booked) - 1; i >= 0 && b.booked[f] > n; i-- {
			if m.booked[i].function == f {
				for count := m.booked[i].count; count > 0 && b.booked[f] > n; count-- {
					b.remove(gpu, i)
				}
			}
		}
	}
}

// gpuRemoved removes all bookings of a GPU, so that their invocations are placed again.
func (b *bookings) gpuRemoved(gpu int32) {
	for m := &b.gpus[gpu]; len(m.booked) > 0; {
		b.remove(gpu, len(m.booked)-1)
	}
}

// removeOverdue extends overdue work on GPUs with bookings, and removes these bookings (R26).
func (b *bookings) removeOverdue(now time.Duration) {
	for b.wake() <= now {
		gpu := b.overdue.min().function
		b.extend(gpu, now)
		b.gpuRemoved(gpu)
	}
}

// wake returns the time at which the first GPU with bookings becomes overdue.
func (b *bookings) wake() time.Duration {
	if b.overdue.len() == 0 {
		return Never
	}
	return time.Duration(b.overdue.min().key.a)
}

func (u *runningInvocation) overdueAt() time.Duration { return overdue(u.started, u.expectedEnd) + 1 }

// overdue returns the time at which work with the given start and expected end becomes overdue:
// after twice its expected duration, and at least 1 ms after the expected end.
func overdue(started, expectedEnd time.Duration) time.Duration {
	return expectedEnd + max(expectedEnd-started, time.Millisecond)
}
