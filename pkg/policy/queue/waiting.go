package queue

import (
	"slices"
	"time"
)

// waiting stores the waiting invocations in one arena, with a queue for each function. Its size
// follows the largest number of invocations that waited at once, plus a few words per function. A
// queue is a list of chunks, so that reading a long queue accesses memory in order.
type waiting struct {
	chunks     [][chunkSize]member
	nextChunk  []int32 // by chunk: the next one in its queue, or in the list of free chunks
	freeChunks int32   // head of the list of free chunks
	queues     []functionQueue
	total      int // invocations in all queues
}

// chunkSize makes a chunk two cache lines.
const chunkSize = 8

// member is a waiting invocation.
type member struct {
	id int64
	at time.Duration
}

type functionQueue struct {
	head, tail  int32 // chunks, or none
	first, last int8  // index of the oldest in head; index after the newest in tail
	known       bool  // the function accepts invocations
	excluded    bool  // the backlog keeps the function out of the order
	len         int32
	inFlight    int32
	limit       int32 // limit on waiting invocations; 0 means no limit
	oldest      int64 // ID of the oldest
}

const none = int32(-1)

func newWaiting(functions int) *waiting {
	w := &waiting{freeChunks: none}
	w.grow(functions)
	return w
}

// grow adds queues up to that number of functions.
func (w *waiting) grow(functions int) {
	w.queues = slices.Grow(w.queues, max(functions-len(w.queues), 0))
	for len(w.queues) < functions {
		w.queues = append(w.queues, functionQueue{head: none, tail: none})
	}
}

// push appends an invocation to its function's queue.
func (w *waiting) push(function int32, m member) {
	q := &w.queues[function]
	if q.tail == none || q.last == chunkSize {
		w.extend(q)
	}
	w.chunks[q.tail][q.last] = m
	q.last++
	if q.len == 0 {
		q.oldest = m.id
	}
	q.len++
	w.total++
}

// extend appends an empty chunk to a queue.
func (w *waiting) extend(q *functionQueue) {
	n := w.freeChunks
	if n == none {
		n = int32(len(w.chunks))
		w.chunks, w.nextChunk = append(roomy(w.chunks), [chunkSize]member{}), append(roomy(w.nextChunk), none)
	} else {
		w.freeChunks = w.nextChunk[n]
	}
	w.nextChunk[n] = none
	if q.tail == none {
		q.head, q.first = n, 0
	} else {
		w.nextChunk[q.tail] = n
	}
	q.tail, q.last = n, 0
}

// pop removes and returns the oldest invocation of a function.
func (w *waiting) pop(function int32) member {
	q := &w.queues[function]
	n := q.head
	popped := w.chunks[n][q.first]
	q.first++
	q.len--
	w.total--
	if q.first == chunkSize || q.len == 0 {
		q.head, q.first = w.nextChunk[n], 0
		if q.head == none {
			q.tail = none
		}
		w.nextChunk[n], w.freeChunks = w.freeChunks, n
	}
	if q.len > 0 {
		q.oldest = w.chunks[q.head][q.first].id
	}
	return popped
}

// oldest returns the ID of the first invocation in a function's queue. IDs ascend in order of
// arrival.
func (w *waiting) oldest(function int32) int64 { return w.queues[function].oldest }

// since returns the arrival time of the first invocation in a function's queue.
func (w *waiting) since(function int32) time.Duration {
	q := &w.queues[function]
	return w.chunks[q.head][q.first].at
}

// drop removes an invocation from a function's queue, and reports whether it was there. Unless
// the invocation is the first, drop rewrites the queue; callers rarely disconnect.
func (w *waiting) drop(function int32, id int64) (found bool) {
	switch q := &w.queues[function]; {
	case q.len == 0 || id < q.oldest:
		return false
	case id == q.oldest:
		w.pop(function)
		return true
	}
	for range w.queues[function].len {
		if m := w.pop(function); m.id == id {
			found = true
		} else {
			w.push(function, m)
		}
	}
	return found
}

// requeue inserts an invocation at its place in its function's queue.
func (w *waiting) requeue(function int32, m member) {
	for range w.queues[function].len {
		first := w.pop(function)
		if m.id >= 0 && m.id < first.id {
			w.push(function, m)
			m.id = -1
		}
		w.push(function, first)
	}
	if m.id >= 0 {
		w.push(function, m)
	}
}

// list returns a function's queue, oldest first.
func (w *waiting) list(function int32) (members []member) {
	q := &w.queues[function]
	for c, i := q.head, int(q.first); len(members) < int(q.len); c, i = w.nextChunk[c], 0 {
		for ; i < chunkSize && len(members) < int(q.len); i++ {
			members = append(members, w.chunks[c][i])
		}
	}
	return members
}
