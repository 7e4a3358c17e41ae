// Package heap implements the event queue of a virtual clock: Heap returns values in order of time,
// and items of equal time in order of a second number. pkg/sim and pkg/sim/planned use it.
package heap

import (
	"iter"
	"time"
)

// Heap is a binary heap of items, ordered by time. The zero value is empty and ready to use.
type Heap[T any] struct{ items []item[T] }

type item[T any] struct {
	at    time.Duration
	tie   int64
	value T
}

// before compares items by time, then by tie. As a method of T, it would be called instead of
// being inlined into the loops.
func before[T any](a, b *item[T]) bool { return a.at < b.at || a.at == b.at && a.tie < b.tie }

// Len returns the number of items.
func (h *Heap[T]) Len() int { return len(h.items) }

// At returns the time of the first item. The heap must not be empty.
func (h *Heap[T]) At() time.Duration { return h.items[0].at }

// First returns the first item. The heap must not be empty.
func (h *Heap[T]) First() T { return h.items[0].value }

// Push adds an item at a time. Items at the same time are ordered by tie, so no two items may
// have the same time and tie.
func (h *Heap[T]) Push(at time.Duration, tie int64, value T) {
	it := item[T]{at, tie, value}
	i := len(h.items)
	h.items = append(h.items, it)
	for ; i > 0 && before(&it, &h.items[(i-1)/2]); i = (i - 1) / 2 {
		h.items[i] = h.items[(i-1)/2]
	}
	h.items[i] = it
}

// Pop removes and returns the first item. The heap must not be empty.
func (h *Heap[T]) Pop() T {
	first, last := h.items[0].value, h.items[len(h.items)-1]
	h.items = h.items[:len(h.items)-1]
	items := h.items
	if len(items) == 0 {
		return first
	}
	i := 0
	for child := 1; child < len(items); child = 2*i + 1 {
		if child+1 < len(items) && before(&items[child+1], &items[child]) {
			child++
		}
		if !before(&items[child], &last) {
			break
		}
		items[i] = items[child]
		i = child
	}
	items[i] = last
	return first
}

// All iterates over the items, in no particular order.
func (h *Heap[T]) All() iter.Seq[T] {
	return func(yield func(T) bool) {
		for i := range h.items {
			if !yield(h.items[i].value) {
				return
			}
		}
	}
}
