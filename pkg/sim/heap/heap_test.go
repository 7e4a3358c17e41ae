package heap

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestOrder compares the heap with a list that is sorted before each removal.
func TestOrder(t *testing.T) {
	type entry struct {
		at  time.Duration
		tie int64
	}
	rapid.Check(t, func(t *rapid.T) {
		var h Heap[entry]
		var twin []entry
		for n := range rapid.IntRange(1, 200).Draw(t, "steps") {
			if len(twin) > 0 && rapid.Bool().Draw(t, "take") {
				slices.SortFunc(twin, func(a, b entry) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.tie, b.tie)) })
				at := h.At()
				if got := h.Pop(); got != twin[0] || at != got.at {
					t.Fatalf("first entry: got %v at %v, want %v", got, at, twin[0])
				}
				twin = twin[1:]
			} else {
				e := entry{time.Duration(rapid.IntRange(0, 9).Draw(t, "at")), int64(rapid.IntRange(0, 9).Draw(t, "tie"))<<32 + int64(n)}
				h.Push(e.at, e.tie, e)
				twin = append(twin, e)
			}
			if h.Len() != len(twin) {
				t.Fatalf("entries in the heap: got %d, want %d", h.Len(), len(twin))
			}
			for e := range h.All() {
				if !slices.Contains(twin, e) {
					t.Fatalf("entries in the heap: got %v, want one of %v", e, twin)
				}
			}
		}
	})
}
