package queue

// requests is LALB's global queue: in order of arrival, and by model.
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
	models     []line // by model
	marks      int64  // on all that wait
	total      int
	mixed      bool // some came behind one with a higher number, as limits let them
}

// line is the invocations of one model.
type line struct{ head, tail, len int32 }

type request struct {
	member
	function   int32
	model      int32
	prev, next int32 // in order of arrival
	later      int32 // of the same model
	marks      int64
}

func newRequests() *requests { return &requests{freed: none, head: none, tail: none} }

// grow makes queues for that many models.
func (r *requests) grow(models int) {
	for len(r.models) < models {
		r.models = append(r.models, line{head: none, tail: none})
	}
}

func (r *requests) node(it request) int32 {
	n := r.freed
	if n == none {
		n = int32(len(r.nodes))
		r.nodes = append(roomy(r.nodes), request{})
	} else {
		r.freed = r.nodes[n].next
	}
	it.prev, it.next, it.later, it.marks = none, none, none, 0
	r.nodes[n] = it
	r.models[it.model].len++
	r.total++
	return n
}

// push adds the newest invocation.
func (r *requests) push(it request) {
	n := r.node(it)
	r.nodes[n].prev = r.tail
	if r.tail == none {
		r.head, r.mixed = n, false
	} else {
		r.mixed = r.mixed || r.nodes[r.tail].id > it.id
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
}

// putBack gives an invocation the place that its number says, before the first
// with a higher one. It has been visited as often as those behind it.
func (r *requests) putBack(it request) {
	before := r.above(it.id)
	if before == none {
		r.push(it)
		return
	}
	n, after := r.node(it), r.nodes[before].prev
	if after != none {
		r.nodes[after].next = n
	} else {
		r.head = n
	}
	r.nodes[n].prev, r.nodes[n].next = after, before
	r.nodes[before].prev = n
	q, last := &r.models[it.model], after
	for last != none && r.nodes[last].model != it.model {
		last = r.nodes[last].prev
	}
	if last == none {
		r.nodes[n].later, q.head = q.head, n
	} else {
		r.nodes[n].later, r.nodes[last].later = r.nodes[last].later, n
	}
	if r.nodes[n].later == none {
		q.tail = n
	}
}

// above is the first invocation with a higher number, none if there is none.
func (r *requests) above(id int64) int32 {
	if r.mixed { // lower ones may be behind it
		n := r.head
		for n != none && r.nodes[n].id < id {
			n = r.nodes[n].next
		}
		return n
	}
	first := none
	for n := r.tail; n != none && r.nodes[n].id > id; n = r.nodes[n].prev {
		first = n
	}
	return first
}

// find is where an invocation of a model is, which are in order of their numbers
// unless they are mixed; none if it is not there.
func (r *requests) find(model int32, id int64) int32 {
	n := r.models[model].head
	for n != none && r.nodes[n].id != id && (r.mixed || r.nodes[n].id < id) {
		n = r.nodes[n].later
	}
	if n != none && r.nodes[n].id == id {
		return n
	}
	return none
}

// take removes an invocation, the oldest of its model as a rule. It is to be read
// before the next comes.
func (r *requests) take(n int32) *request {
	it := &r.nodes[n]
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
	last := none
	for m := q.head; m != n; m = r.nodes[m].later {
		last = m
	}
	if last == none {
		q.head = it.later
	} else {
		r.nodes[last].later = it.later
	}
	if it.later == none {
		q.tail = last
	}
	q.len--
	r.total--
	it.next, r.freed = r.freed, n
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
