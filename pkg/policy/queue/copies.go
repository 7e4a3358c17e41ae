package queue

import "slices"

// copies tracks which GPUs have cached which models. For each model, one heap finds the idle GPU
// with the fewest dispatches, and another the busy GPU that is expected to be idle first, without
// a scan of all GPUs that have the model.
//
// The heaps are updated lazily. A GPU that becomes busy stays in the idle heaps of its models;
// find moves it to the busy heap when it reaches the root. A GPU that becomes idle moves back at
// once from all busy heaps. A key in a heap is therefore a lower bound, and find corrects it at
// the root.
type copies struct {
	gpuQueues  *gpuQueues
	cached     sets // by model: the GPUs that have it
	models     []modelCopies
	on         [][]int32 // by GPU: its copies
	notIdle    [][]int32 // by GPU: its copies outside the idle heaps
	entries    []modelCopy
	vacant     []int32 // free indices of entries
	place      []int32 // by copy: its index in its heap, as in heap
	unsuitable []int32 // scratch: copies on idle GPUs that cannot run the invocation
	visits     int64   // copies and idle GPUs examined, for tests
}

// modelCopies holds the copies of one model.
type modelCopies struct {
	idle, busy heap // of copies
	n          int
}

// modelCopy is a copy of a model on a GPU.
type modelCopy struct {
	model, gpu int32
	busy       bool // it is in the busy heap
}

func (c *copies) grow(models, gpus int) {
	c.cached.grow(models, gpus)
	c.models, c.on, c.notIdle = grown(c.models, models), grown(c.on, gpus), grown(c.notIdle, gpus)
}

// heap returns the idle or the busy heap of a model.
func (c *copies) heap(model int32, busy bool) *heap {
	h := &c.models[model].idle
	if busy {
		h = &c.models[model].busy
	}
	h.place = c.place
	return h
}

func (c *copies) idleKey(g int32) key { return c.gpuQueues.gpus[g].key(g) }
func (c *copies) busyKey(g int32) key {
	return key{a: int64(c.gpuQueues.gpus[g].free()), c: int64(g)}
}

// set adds or removes the copy of a model on a GPU.
func (c *copies) set(model, g int32, cached bool) {
	if c.cached.has(model, g) == cached {
		return
	}
	c.cached.set(model, g, cached)
	if !cached {
		i := slices.IndexFunc(c.on[g], func(n int32) bool { return c.entries[n].model == model })
		n := c.on[g][i]
		c.heap(model, c.entries[n].busy).remove(n)
		c.on[g] = slices.Delete(c.on[g], i, i+1)
		c.notIdle[g] = without(c.notIdle[g], n)
		c.vacant = append(c.vacant, n)
		c.models[model].n--
		return
	}
	n := int32(len(c.entries))
	if last := len(c.vacant) - 1; last >= 0 {
		n, c.vacant = c.vacant[last], c.vacant[:last]
		c.entries[n] = modelCopy{model: model, gpu: g}
	} else {
		c.entries, c.place = append(roomy(c.entries), modelCopy{model: model, gpu: g}), append(roomy(c.place), 0)
	}
	c.on[g] = append(c.on[g], n)
	c.models[model].n++
	c.heap(model, false).set(n, c.idleKey(g))
}

// moveToIdle moves the copies of a GPU that became idle, or was opened again, to the idle heaps.
func (c *copies) moveToIdle(g int32) {
	for _, n := range c.notIdle[g] {
		m := &c.entries[n]
		c.heap(m.model, true).remove(n)
		c.heap(m.model, false).set(n, c.idleKey(g))
		m.busy = false
		c.visits++
	}
	c.notIdle[g] = c.notIdle[g][:0]
}

// updateBusyKeys updates the keys of a busy GPU that may become idle earlier than expected before.
func (c *copies) updateBusyKeys(g int32) {
	for _, n := range c.notIdle[g] {
		if m := &c.entries[n]; m.busy {
			c.heap(m.model, true).set(n, c.busyKey(g))
		}
	}
}

// find returns, among the open GPUs with a model, the idle GPU with the fewest dispatches that
// can run the invocation, or else the busy GPU that is expected to be idle first. A result is
// none if there is no such GPU. Ties go to the lowest number.
func (c *copies) find(model int32, can func(g int32) bool) (idle, busy int32) {
	idle, busy = none, none
	if m := &c.models[model]; m.idle.len()+m.busy.len() <= fewCopies {
		idle, busy = c.scan(&m.idle, can, idle, busy)
		return c.scan(&m.busy, can, idle, busy)
	}
	for h := c.heap(model, false); h.len() > 0 && idle == none; {
		first := h.min()
		n := first.function
		g := c.entries[n].gpu
		w := &c.gpuQueues.gpus[g]
		c.visits++
		switch {
		case w.busy || !w.open:
			h.remove(n)
			c.notIdle[g] = append(c.notIdle[g], n)
			if c.entries[n].busy = w.open; w.open {
				c.heap(model, true).set(n, c.busyKey(g))
			}
		case first.key.a < w.dispatches:
			h.set(n, c.idleKey(g))
		case can(g):
			idle = g
		default:
			h.remove(n)
			c.unsuitable = append(c.unsuitable, n)
		}
	}
	for _, n := range c.unsuitable {
		c.heap(model, false).set(n, c.idleKey(c.entries[n].gpu))
	}
	c.unsuitable = c.unsuitable[:0]
	for h := c.heap(model, true); h.len() > 0 && idle == none && busy == none; {
		first := h.min()
		n := first.function
		g := c.entries[n].gpu
		w := &c.gpuQueues.gpus[g]
		c.visits++
		switch {
		case !w.open:
			h.remove(n)
			c.entries[n].busy = false
		case first.key.a < int64(w.free()):
			h.set(n, c.busyKey(g))
		default:
			busy = g
		}
	}
	return idle, busy
}

// fewCopies is the number of copies up to which a scan is faster than the heaps.
const fewCopies = 16

// scan examines each copy in a heap and returns better GPUs than idle and busy, by the rules of
// find.
func (c *copies) scan(h *heap, can func(g int32) bool, idle, busy int32) (int32, int32) {
	gpus := c.gpuQueues.gpus
	for i := range h.items {
		g := c.entries[h.items[i].function].gpu
		w := &gpus[g]
		c.visits++
		switch {
		case !w.open:
		case w.busy:
			if busy == none || w.free() < gpus[busy].free() || w.free() == gpus[busy].free() && g < busy {
				busy = g
			}
		case idle == none || w.dispatches < gpus[idle].dispatches || w.dispatches == gpus[idle].dispatches && g < idle:
			if can(g) {
				idle = g
			}
		}
	}
	return idle, busy
}
