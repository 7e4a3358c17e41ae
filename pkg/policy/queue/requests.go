package queue

import "time"

// requests is LALB's global queue: in order of arrival, and by model. An
// invocation is only ever taken as the oldest of its model.
//
// Passing over invocations counts a visit of each. Since that happens to a
// prefix of the queue every time, a mark on the last invocation of the prefix
// is enough: the visits of one are the marks on it and on all behind it, and
// those of the first are all marks there are (section VI: a decision costs the
// models on the GPU, not the queue).
type requests struct {
	nodes      []request
	freed      int32
	head, tail int32
	models     []fifo // by model
	marks      int64  // on all that wait
	total      int
}

type request struct {
	id         int64
	at         time.Duration
	function   int32
	model      int32
	prev, next int32 // in order of arrival
	later      int32 // of the same model
	marks      int64
}

func newRequests(models int) *requests {
	r := &requests{freed: none, head: none, tail: none, models: make([]fifo, models)}
	for i := range r.models {
		r.models[i] = fifo{head: none, tail: none}
	}
	return r
}

func (r *requests) push(it request) {
	n := r.freed
	if n == none {
		n = int32(len(r.nodes))
		r.nodes = append(r.nodes, request{})
	} else {
		r.freed = r.nodes[n].next
	}
	it.prev, it.next, it.later, it.marks = r.tail, none, none, 0
	r.nodes[n] = it
	if r.tail == none {
		r.head = n
	} else {
		r.nodes[r.tail].next = n
	}
	r.tail = n
	q := &r.models[it.model]
	if q.tail == none {
		q.head = n
	} else {
		r.nodes[q.tail].later = n
	}
	q.tail = n
	q.len++
	r.total++
}

// take removes the oldest invocation of its model.
func (r *requests) take(n int32) request {
	it := r.nodes[n]
	if it.prev == none {
		r.head = it.next
		r.marks -= it.marks
	} else {
		r.nodes[it.prev].next = it.next
		r.nodes[it.prev].marks += it.marks
	}
	if it.next == none {
		r.tail = it.prev
	} else {
		r.nodes[it.next].prev = it.prev
	}
	q := &r.models[it.model]
	q.head = it.later
	if q.head == none {
		q.tail = none
	}
	q.len--
	r.total--
	r.nodes[n].next = r.freed
	r.freed = n
	return it
}

// visit counts a visit of all before n, of all there are if n is none.
func (r *requests) visit(n int32) {
	last := r.tail
	if n != none {
		last = r.nodes[n].prev
	}
	if last != none {
		r.nodes[last].marks++
		r.marks++
	}
}
