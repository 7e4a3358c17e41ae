package queue

import "time"

// waiting is the invocations that wait, a queue a function, all in one arena:
// memory is what waits at most, plus a few words a function. A queue is a list
// of chunks, so that a long one is read from memory in order.
type waiting struct {
	chunks [][chunkSize]member
	after  []int32 // by chunk: the one after it in its queue, or in the list of free ones
	freed  int32   // head of that list
	queues []fifo
	total  int // waiting in all queues
}

// chunkSize makes a chunk two cache lines.
const chunkSize = 8

// member is one invocation that waits.
type member struct {
	id int64
	at time.Duration
}

type fifo struct {
	head, tail  int32 // chunks
	first, last int8  // the oldest in the head; behind the newest in the tail
	known       bool  // the function takes invocations
	out         bool  // it waits, but not in the order: see engine.review
	len         int32
	inFlight    int32
	most        int32 // may wait; 0 is no limit
	oldest      int64 // number of the oldest
}

const none = int32(-1)

func newWaiting(functions int) *waiting {
	w := &waiting{freed: none}
	w.grow(functions)
	return w
}

// grow makes queues for that many functions.
func (w *waiting) grow(functions int) {
	for len(w.queues) < functions {
		w.queues = append(w.queues, fifo{head: none, tail: none})
	}
}

// push adds an invocation at the end of its function's queue.
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

// extend puts an empty chunk at the end of a queue.
func (w *waiting) extend(q *fifo) {
	n := w.freed
	if n == none {
		n = int32(len(w.chunks))
		w.chunks, w.after = append(roomy(w.chunks), [chunkSize]member{}), append(roomy(w.after), none)
	} else {
		w.freed = w.after[n]
	}
	w.after[n] = none
	if q.tail == none {
		q.head, q.first = n, 0
	} else {
		w.after[q.tail] = n
	}
	q.tail, q.last = n, 0
}

// pop takes the oldest invocation of a function.
func (w *waiting) pop(function int32) member {
	q := &w.queues[function]
	n := q.head
	taken := w.chunks[n][q.first]
	q.first++
	q.len--
	w.total--
	if q.first == chunkSize || q.len == 0 {
		q.head, q.first = w.after[n], 0
		if q.head == none {
			q.tail = none
		}
		w.after[n], w.freed = w.freed, n
	}
	if q.len > 0 {
		q.oldest = w.chunks[q.head][q.first].id
	}
	return taken
}

// oldest is the invocation at the head of a function's queue. Invocations are
// numbered as they come, so that the least number is the oldest.
func (w *waiting) oldest(function int32) int64 { return w.queues[function].oldest }

// since is when the invocation at the head of a function's queue came.
func (w *waiting) since(function int32) time.Duration {
	q := &w.queues[function]
	return w.chunks[q.head][q.first].at
}

// drop takes an invocation out of a function's queue, if it is there. Unless it is
// the oldest it goes through the queue: callers that leave are few.
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

// putBack gives an invocation the place that it had in its function's queue.
func (w *waiting) putBack(function int32, m member) {
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

// list is a function's queue, oldest first.
func (w *waiting) list(function int32) (out []member) {
	q := &w.queues[function]
	for c, i := q.head, int(q.first); len(out) < int(q.len); c, i = w.after[c], 0 {
		for ; i < chunkSize && len(out) < int(q.len); i++ {
			out = append(out, w.chunks[c][i])
		}
	}
	return out
}
