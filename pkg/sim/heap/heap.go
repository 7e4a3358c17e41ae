// Package heap keeps what is to happen on a virtual clock, and gives it out as it
// comes.
package heap

import (
	"iter"
	"time"
)

// Heap is a binary heap by time. Its zero value is empty.
type Heap[T any] struct{ items []item[T] }

type item[T any] struct {
	at   time.Duration
	tie  int64
	what T
}

// before is no method of T's, which would be called and not be compiled into the loops.
func before[T any](a, b *item[T]) bool { return a.at < b.at || a.at == b.at && a.tie < b.tie }

// Len is how much there is.
func (h *Heap[T]) Len() int { return len(h.items) }

// At is when the first happens, of which there must be one.
func (h *Heap[T]) At() time.Duration { return h.items[0].at }

// Push adds what happens at a time, of what happens then the least tie first. No two
// may have both in common.
func (h *Heap[T]) Push(at time.Duration, tie int64, what T) {
	it := item[T]{at, tie, what}
	i := len(h.items)
	h.items = append(h.items, it)
	for ; i > 0 && before(&it, &h.items[(i-1)/2]); i = (i - 1) / 2 {
		h.items[i] = h.items[(i-1)/2]
	}
	h.items[i] = it
}

// Pop takes the first, of which there must be one.
func (h *Heap[T]) Pop() T {
	first, last := h.items[0].what, h.items[len(h.items)-1]
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

// All is what there is, in no order.
func (h *Heap[T]) All() iter.Seq[T] {
	return func(yield func(T) bool) {
		for i := range h.items {
			if !yield(h.items[i].what) {
				return
			}
		}
	}
}
