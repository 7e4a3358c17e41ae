package queue

// requests is LALB's global queue, in order of arrival and by model.
//
// Passing over invocations visits each of them, and the number of visits is limited. Every such
// visit concerns a prefix of the queue, so it only marks the last invocation of the prefix. The
// visits of an invocation are the marks on it and on all behind it; those of the first are all
// marks. A decision therefore costs time proportional to the models on the GPU, not to the length
// of the queue (section VI).
type requests struct {
	nodes      []request
	freeNodes  int32
	head, tail int32
	models     []modelQueue // by model
	waiting    []int32      // models with waiting invocations, in no particular order
	marks      int64        // sum over all waiting invocations
	total      int
	mixed      bool // an invocation was pushed behind one with a higher ID, as limits may do
}

// modelQueue is the queue of one model.
type modelQueue struct {
	head, tail, len int32
	waitingIndex    int32 // index in requests.waiting, if len > 0
}

type request struct {
	member
	function    int32
	model       int32
	prev, next  int32 // neighbours in order of arrival
	nextOfModel int32 // next of the same model
	marks       int64
}

func newRequests() *requests { return &requests{freeNodes: none, head: none, tail: none} }

// grow adds models up to that number.
func (r *requests) grow(models int) {
	for len(r.models) < models {
		r.models = append(r.models, modelQueue{head: none, tail: none})
	}
}

func (r *requests) node(it request) int32 {
	n := r.freeNodes
	if n == none {
		n = int32(len(r.nodes))
		r.nodes = append(roomy(r.nodes), request{})
	} else {
		r.freeNodes = r.nodes[n].next
	}
	it.prev, it.next, it.nextOfModel, it.marks = none, none, none, 0
	r.nodes[n] = it
	q := &r.models[it.model]
	if q.len == 0 {
		q.waitingIndex = int32(len(r.waiting))
		r.waiting = append(r.waiting, it.model)
	}
	q.len++
	r.total++
	return n
}

// push appends an invocation.
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
		r.nodes[q.tail].nextOfModel = n
	}
	q.tail = n
}

// requeue inserts an invocation before the first with a higher ID. It counts as visited as often
// as the invocations behind it.
func (r *requests) requeue(it request) {
	before := r.firstAbove(it.id)
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
		r.nodes[n].nextOfModel, q.head = q.head, n
	} else {
		r.nodes[n].nextOfModel, r.nodes[last].nextOfModel = r.nodes[last].nextOfModel, n
	}
	if r.nodes[n].nextOfModel == none {
		q.tail = n
	}
}

// firstAbove returns the first invocation with a higher ID, or none.
func (r *requests) firstAbove(id int64) int32 {
	if r.mixed { // lower IDs may be behind a higher one
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

// find returns the node of an invocation, or none. Within a model IDs ascend, unless mixed is
// set.
func (r *requests) find(model int32, id int64) int32 {
	n := r.models[model].head
	for n != none && r.nodes[n].id != id && (r.mixed || r.nodes[n].id < id) {
		n = r.nodes[n].nextOfModel
	}
	if n != none && r.nodes[n].id == id {
		return n
	}
	return none
}

// pop removes an invocation, usually the oldest of its model. The result is valid until the next
// push or requeue.
func (r *requests) pop(n int32) *request {
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
	for m := q.head; m != n; m = r.nodes[m].nextOfModel {
		last = m
	}
	if last == none {
		q.head = it.nextOfModel
	} else {
		r.nodes[last].nextOfModel = it.nextOfModel
	}
	if it.nextOfModel == none {
		q.tail = last
	}
	if q.len--; q.len == 0 {
		last := r.waiting[len(r.waiting)-1]
		r.waiting[q.waitingIndex], r.models[last].waitingIndex = last, q.waitingIndex
		r.waiting = r.waiting[:len(r.waiting)-1]
	}
	r.total--
	it.next, r.freeNodes = r.freeNodes, n
	return it
}

// visit counts a visit of all invocations before n, or of all if n is none.
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
