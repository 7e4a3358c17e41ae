package queue

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/reason"
)

// lalbQueue holds the waiting invocations of lalb: in the global queue, in the queue of a busy GPU
// or, until the next step, among those that no GPU can run now.
type lalbQueue struct {
	gpuQueues
	engine      *view
	models      models
	copies      copies
	global      *requests
	unplaceable []request
	chosen      request // the request that pop returns next, if its function is not none
}

// addWaiting updates the number of waiting invocations in the engine.
func (q *lalbQueue) addWaiting(f, by int32) {
	q.engine.queues.queues[f].len += by
	q.engine.queues.total += int(by)
}

func (q *lalbQueue) request(f int32, m member) request {
	q.addWaiting(f, 1)
	return request{member: m, function: f, model: q.models.of[f]}
}

func (q *lalbQueue) push(_ time.Duration, f int32, m member) { q.global.push(q.request(f, m)) }

func (q *lalbQueue) requeue(f int32, m member) { q.global.requeue(q.request(f, m)) }

// pop returns the chosen request, or else the function's oldest invocation.
func (q *lalbQueue) pop(f int32) member {
	if q.chosen.function == f {
		q.chosen.function = none
		q.addWaiting(f, -1)
		return q.chosen.member
	}
	m := q.oldest(f)
	q.drop(f, m.id)
	return m
}

func (q *lalbQueue) drop(f int32, id int64) bool {
	if n := q.global.find(q.models.of[f], id); n != none {
		q.global.pop(n)
	} else if g, i := q.find(id); g != none {
		q.leaveLocal(g, i)
		q.copies.updateBusyKeys(g)
	} else if i := slices.IndexFunc(q.unplaceable, func(it request) bool { return it.id == id }); i >= 0 {
		q.unplaceable = slices.Delete(q.unplaceable, i, i+1)
	} else {
		return false
	}
	q.addWaiting(f, -1)
	return true
}

func (q *lalbQueue) list(f int32) (members []member) {
	add := func(it request) {
		if it.function == f {
			members = append(members, it.member)
		}
	}
	for n := q.global.models[q.models.of[f]].head; n != none; n = q.global.nodes[n].nextOfModel {
		add(q.global.nodes[n])
	}
	for _, g := range q.queued {
		for _, it := range q.gpus[g].local {
			add(it)
		}
	}
	for _, it := range q.unplaceable {
		add(it)
	}
	slices.SortFunc(members, func(a, b member) int { return cmp.Compare(a.id, b.id) })
	return members
}

// oldest returns the oldest invocation of a function.
func (q *lalbQueue) oldest(f int32) member {
	first := member{id: math.MaxInt64}
	consider := func(it *request) bool {
		if it.function == f && it.id < first.id {
			first = it.member
		}
		return it.function == f
	}
	for n := q.global.models[q.models.of[f]].head; n != none && !consider(&q.global.nodes[n]); n = q.global.nodes[n].nextOfModel {
	}
	for _, g := range q.queued {
		for i := range q.gpus[g].local {
			consider(&q.gpus[g].local[i])
		}
	}
	for i := range q.unplaceable {
		consider(&q.unplaceable[i])
	}
	return first
}

// joinLocal appends an invocation to the local queue of a GPU.
func (q *lalbQueue) joinLocal(g int32, it request) {
	q.gpuQueues.push(g, it, q.adds(g, it.function, q.gpus[g].local))
}

// leaveLocal removes the invocation at index i from the local queue of a GPU.
func (q *lalbQueue) leaveLocal(g int32, i int) {
	f := q.gpus[g].local[i].function
	q.gpuQueues.remove(g, i)
	q.gpus[g].backlog -= q.adds(g, f, q.gpus[g].local)
}

// adds returns the expected execution time that one more invocation of a function adds to those in the
// local queue of a GPU. Invocations of one function execute in batches.
func (q *lalbQueue) adds(g, f int32, local []request) time.Duration {
	n := 0
	if q.engine.batches(f) {
		for i := range local {
			if local[i].function == f {
				n++
			}
		}
	}
	return q.engine.backlogOn(f, g, n+1) - q.engine.backlogOn(f, g, n)
}

// release moves the local queue of a GPU back to the global queue.
func (q *lalbQueue) release(g int32) {
	for _, it := range q.clear(g) {
		q.global.requeue(it)
	}
	q.copies.updateBusyKeys(g)
}

// updateBacklogs recomputes the backlog of each GPU.
func (q *lalbQueue) updateBacklogs() {
	for _, g := range q.queued {
		w := &q.gpus[g]
		w.backlog = 0
		for i := range w.local {
			w.backlog += q.adds(g, w.local[i].function, w.local[:i])
		}
		q.copies.updateBusyKeys(g)
	}
}

// growModels makes room for that many models.
func (q *lalbQueue) growModels(models int) {
	models = max(models, len(q.copies.models))
	q.copies.grow(models, len(q.gpus))
	q.global.grow(models)
}

// foremost returns the oldest invocation in the global queue whose model the GPU has, or none. It
// iterates over the GPU's models or over the models with waiting invocations, whichever are fewer.
func (q *lalbQueue) foremost(g int32) int32 {
	r, oldest := q.global, none
	consider := func(model int32) {
		if n := r.models[model].head; n != none && (oldest == none || r.nodes[n].id < r.nodes[oldest].id) {
			oldest = n
		}
	}
	if on := q.copies.on[g]; len(on) <= len(r.waiting) {
		for _, n := range on {
			consider(q.copies.entries[n].model)
		}
		return oldest
	}
	for _, model := range r.waiting {
		if q.copies.cached.has(model, g) {
			consider(model)
		}
	}
	return oldest
}

func (q *lalbQueue) since(f int32) time.Duration { return q.oldest(f).at }

func (q *lalbQueue) prefers() bool          { return false }
func (q *lalbQueue) isThrottled(int32) bool { return false }

func (q *lalbQueue) reason(f int32) reason.Reason {
	for _, g := range q.queued {
		for _, it := range q.gpus[g].local {
			if it.function == f {
				return reason.New(waitingForModel)
			}
		}
	}
	return reason.Reason{}
}
