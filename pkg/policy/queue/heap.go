package queue

import "slices"

// key orders functions: by A, then B, then C, least first.
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

// heap is functions by key, the least at the root, each to be found by its
// number. Four children a node: half the depth, and the comparisons of one
// level share their cache lines.
type heap struct {
	items []item
	place []int32 // by function: where it is in items, plus 1
}

type item struct {
	key      key
	function int32
}

// grow makes places for that many functions.
func (h *heap) grow(functions int) { h.place = grown(h.place, functions) }

// grown is a slice of at least that length.
func grown[T any](s []T, n int) []T {
	for len(s) < n {
		var zero T
		s = append(s, zero)
	}
	return s
}

// roomy is a slice with room for one more. Long ones double: an arena that grew
// by a quarter at a time would be copied four times over.
func roomy[T any](s []T) []T {
	if len(s) == cap(s) {
		s = slices.Grow(s, len(s)+1)
	}
	return s
}

func (h *heap) len() int { return len(h.items) }

func (h *heap) has(function int32) bool { return h.place[function] > 0 }

func (h *heap) min() item { return h.items[0] }

// first is the least of those that pass; false if none does. Below one that does
// there is none that is less. Among those in failed are all that do not pass and
// come before it.
func (h *heap) first(passes func(function int32) bool, failed []item) (least item, found bool, _ []item) {
	failed = h.search(0, passes, &least, &found, failed)
	return least, found, failed
}

// search looks at a place of the heap and at those below it.
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

// lower adds a function, or brings it forward: a key that is less already stays.
func (h *heap) lower(function int32, k key) {
	if i := h.place[function]; i == 0 || k.less(&h.items[i-1].key) {
		h.set(function, k)
	}
}

// remove takes a function out, if it is in.
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
