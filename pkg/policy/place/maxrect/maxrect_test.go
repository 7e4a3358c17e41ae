package maxrect

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// maximal is a simple twin: it returns every free rectangle of a small grid that no other free rectangle
// contains.
func maximal(w, h int64, used []Rect) []Rect {
	var free []Rect
	for x := int64(0); x < w; x++ {
		for y := int64(0); y < h; y++ {
			for rw := int64(1); x+rw <= w; rw++ {
				for rh := int64(1); y+rh <= h; rh++ {
					r := Rect{x, y, rw, rh}
					if !slices.ContainsFunc(used, r.Meets) {
						free = append(free, r)
					}
				}
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(free), func(r Rect) bool { return strictlyInside(r, free) })
}

func sorted(rects []Rect) []Rect {
	out := slices.Clone(rects)
	slices.SortFunc(out, func(a, b Rect) int {
		return slices.Compare([]int64{a.X, a.Y, a.W, a.H}, []int64{b.X, b.Y, b.W, b.H})
	})
	return out
}

func TestListIsTheMaximalFreeRectangles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, h := rapid.Int64Range(1, 8).Draw(t, "w"), rapid.Int64Range(1, 8).Draw(t, "h")
		s := New(w, h, 0)
		for range rapid.IntRange(0, 12).Draw(t, "steps") {
			if used := s.Used(); len(used) > 0 && rapid.Bool().Draw(t, "release") {
				s.Release(rapid.SampledFrom(used).Draw(t, "which"))
			} else if at, _, ok := s.Best(rapid.Int64Range(1, w).Draw(t, "rw"), rapid.Int64Range(1, h).Draw(t, "rh")); ok {
				s.Place(at)
			}
			if got, want := sorted(s.Free()), sorted(maximal(w, h, s.Used())); !slices.Equal(got, want) {
				t.Fatalf("used %v: free %v, want %v", s.Used(), got, want)
			}
		}
	})
}

// With a threshold, the list may lack rectangles. The listed rectangles are free, together cover all
// free space, and none contains another.
func TestKeptListsAreSound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const w, h = 7, 6
		s := New(w, h, rapid.IntRange(0, 9).Draw(t, "threshold"))
		for range rapid.IntRange(0, 25).Draw(t, "steps") {
			if used := s.Used(); len(used) > 0 && rapid.Bool().Draw(t, "release") {
				s.Release(rapid.SampledFrom(used).Draw(t, "which"))
			} else if at, _, ok := s.Best(rapid.Int64Range(1, w).Draw(t, "rw"), rapid.Int64Range(1, h).Draw(t, "rh")); ok {
				s.Place(at)
			}
			checkCover(t, s, w, h)
		}
	})
}

func checkCover(t *rapid.T, s *Space, w, h int64) {
	for x := range w {
		for y := range h {
			cell := Rect{x, y, 1, 1}
			used := 0
			for _, r := range s.Used() {
				if r.Meets(cell) {
					used++
				}
			}
			if listed := slices.ContainsFunc(s.Free(), cell.Meets); used > 1 || listed == (used == 1) {
				t.Fatalf("cell %v: got %d used rectangles, listed as free %v; want at most one, and listed if there is none\nused %v\nfree %v", cell, used, listed, s.Used(), s.Free())
			}
		}
	}
	for i, r := range s.Free() {
		if inside(r, s.Free()[:i]) || inside(r, s.Free()[i+1:]) {
			t.Fatalf("free rectangle %v is inside another one, want only maximal ones: %v", r, s.Free())
		}
	}
}

func TestBestTakesTheSmallestThatFits(t *testing.T) {
	s := New(10, 10, DefaultThreshold)
	s.Place(Rect{0, 0, 6, 10})
	s.Place(Rect{6, 0, 4, 7})
	if at, slack, ok := s.Best(4, 3); !ok || at != (Rect{6, 7, 4, 3}) || slack != 0 {
		t.Errorf("Best(4, 3): got %v, slack %d, %v; want {6 7 4 3}, 0, true", at, slack, ok)
	}
	if _, _, ok := s.Best(5, 1); ok {
		t.Error("Best(5, 1), wider than any free rectangle: got true, want false")
	}
}

func TestKeepThenRestructure(t *testing.T) {
	s := New(4, 1, 2)
	for x := range int64(4) {
		s.Place(Rect{x, 0, 1, 1})
	}
	s.Release(Rect{0, 0, 1, 1})
	s.Release(Rect{1, 0, 1, 1})
	if _, _, ok := s.Best(2, 1); ok {
		t.Error("Best(2, 1) before the threshold: got true, want false, since released rectangles are not joined")
	}
	s.Release(Rect{2, 0, 1, 1})
	if at, _, ok := s.Best(3, 1); !ok || at.X != 0 {
		t.Errorf("Best(3, 1) beyond the threshold: got %v, %v, want x 0, true; free %v", at, ok, s.Free())
	}
	if s.Release(Rect{0, 0, 1, 1}) {
		t.Error("Release of a rectangle that was not placed: got true, want false")
	}
}

// TestThreshold checks the figure in the comment of DefaultThreshold.
func TestThreshold(t *testing.T) {
	sm := []int64{6, 12, 24, 50, 60, 80, 100}
	rng := rand.New(rand.NewPCG(1, 2))
	longest := 0
	for range 5000 {
		s := New(5, 100, 0)
		for range 100 {
			if at, _, ok := s.Best(1+rng.Int64N(5), sm[rng.IntN(len(sm))]); ok {
				s.Place(at)
				longest = max(longest, len(s.Free()))
			}
		}
	}
	if longest > DefaultThreshold {
		t.Errorf("listed rectangles without releases: got %d, want at most the threshold %d", longest, DefaultThreshold)
	}
}
