package queue

import "slices"

// key orders functions by a, then b, then c, in ascending order.
type key struct {
	a int64
	b float64
	c int64
}

func (k *key) less(o *key) bool {
	switch {
	case k.a != o.a:
		return k.a < o.a
	case k.b < o.b:
		return true
	case k.b > o.b:
		return false
	}
	return k.c < o.c
}

// heap is a priority queue of functions with the least key at the root. It finds a function's
// item by number. Each node has four children: that halves the depth of a binary heap, and the
// children of a node share their cache lines.
type heap struct {
	items []item
	place []int32 // by function: its index in items, plus 1
}

type item struct {
	key      key
	function int32
}

// grow makes room for functions 0 to functions-1.
func (h *heap) grow(functions int) { h.place = grown(h.place, functions) }

// grown returns s, extended with zero values to at least length n.
func grown[T any](s []T, n int) []T {
	return append(s, make([]T, max(n-len(s), 0))...)
}

// roomy returns s with capacity for one more element. It doubles long slices: growing an arena by
// a quarter at a time would copy each element about four times.
func roomy[T any](s []T) []T {
	if len(s) == cap(s) {
		s = slices.Grow(s, len(s)+1)
	}
	return s
}

func (h *heap) len() int { return len(h.items) }

func (h *heap) has(function int32) bool { return h.place[function] > 0 }

func (h *heap) min() item { return h.items[0] }

// first returns the least item whose function passes, and false if there is none. It prunes the
// search below an item that passes, because all items below it are larger. It appends the items
// it tried that do not pass to failed: these include all that precede the result.
func (h *heap) first(passes func(function int32) bool, failed []item) (least item, found bool, _ []item) {
	failed = h.search(0, passes, &least, &found, failed)
	return least, found, failed
}

// search applies first to the subtree at index i.
func (h *heap) search(i int, passes func(function int32) bool, least *item, found *bool, failed []item) []item {
	if i >= len(h.items) || *found && !h.items[i].key.less(&least.key) {
		return failed
	}
	if passes(h.items[i].function) {
		*least, *found = h.items[i], true
		return failed
	}
	failed = append(failed, h.items[i])
	for child := 4*i + 1; child <= 4*i+4; child++ {
		failed = h.search(child, passes, least, found, failed)
	}
	return failed
}

// before appends the functions in the subtree at a place whose key has an a below the given one,
// in no particular order.
func (h *heap) before(a int64, place int, functions []int32) []int32 {
	if place >= len(h.items) || h.items[place].key.a >= a {
		return functions
	}
	functions = append(functions, h.items[place].function)
	for child := 4*place + 1; child <= 4*place+4; child++ {
		functions = h.before(a, child, functions)
	}
	return functions
}

// set adds a function or changes its key.
func (h *heap) set(function int32, k key) {
	i := int(h.place[function]) - 1
	if i < 0 {
		i = len(h.items)
		h.items = append(h.items, item{})
		h.up(i, item{k, function})
		return
	}
	switch {
	case k == h.items[i].key:
	case k.less(&h.items[i].key):
		h.up(i, item{k, function})
	default:
		h.down(i, item{k, function})
	}
}

// lower adds a function, or lowers its key. It keeps a key that is smaller already.
func (h *heap) lower(function int32, k key) {
	if i := h.place[function]; i == 0 || k.less(&h.items[i-1].key) {
		h.set(function, k)
	}
}

// remove removes a function, if the heap contains it.
func (h *heap) remove(function int32) {
	i := int(h.place[function]) - 1
	if i < 0 {
		return
	}
	h.place[function] = 0
	last := len(h.items) - 1
	moved := h.items[last]
	h.items = h.items[:last]
	if i == last {
		return
	}
	if i > 0 && moved.key.less(&h.items[(i-1)/4].key) {
		h.up(i, moved)
	} else {
		h.down(i, moved)
	}
}

func (h *heap) up(i int, it item) {
	for i > 0 {
		parent := (i - 1) / 4
		if !it.key.less(&h.items[parent].key) {
			break
		}
		h.put(i, h.items[parent])
		i = parent
	}
	h.put(i, it)
}

func (h *heap) down(i int, it item) {
	items := h.items
	for first := 4*i + 1; first < len(items); first = 4*i + 1 {
		children := items[first:min(first+4, len(items))]
		least, at := &children[0], first
		for c := 1; c < len(children); c++ {
			if children[c].key.less(&least.key) {
				least, at = &children[c], first+c
			}
		}
		if !least.key.less(&it.key) {
			break
		}
		h.put(i, *least)
		i = at
	}
	h.put(i, it)
}

func (h *heap) put(i int, it item) {
	h.items[i] = it
	h.place[it.function] = int32(i) + 1
}
