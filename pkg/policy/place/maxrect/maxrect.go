// Package maxrect keeps the free space of one GPU as its maximal free
// rectangles (FaST-GShare, section 3.4.2, Algorithm 2). Coordinates are whole
// numbers, so that no sum of them ever drifts.
package maxrect

import "slices"

// Rect is [X, X+W) × [Y, Y+H).
type Rect struct{ X, Y, W, H int64 }

// area is the rectangle's area.
func (r Rect) area() int64 { return r.W * r.H }

// Contains says whether all of o lies in r.
func (r Rect) Contains(o Rect) bool {
	return r.X <= o.X && r.Y <= o.Y && o.X+o.W <= r.X+r.W && o.Y+o.H <= r.Y+r.H
}

// Meets says whether the two share a point of their insides.
func (r Rect) Meets(o Rect) bool {
	return r.X < o.X+o.W && o.X < r.X+r.W && r.Y < o.Y+o.H && o.Y < r.Y+r.H
}

// DefaultThreshold is how many free rectangles a Space may list before it is
// restructured. Filling a GPU at random with FaST's configurations (SM 6 to
// 100%, quota 0.2 to 1), without ever releasing, lists at most 3 in half of
// the fills and at most 10 in 100,000 of them; a longer list is fragments that
// releases left behind.
const DefaultThreshold = 10

// Space is the free space of one W × H GPU. No listed rectangle contains
// another. As long as nothing was released the list is exactly the maximal
// free rectangles; after a release it may miss some (see Release).
type Space struct {
	w, h      int64
	threshold int
	free      []Rect
	used      []Rect
	pieces    []Rect // of cut, kept for its memory
}

// New is an empty space. Threshold is how long the list of free rectangles may
// grow by releases before it is restructured; 0 restructures at each release.
func New(w, h int64, threshold int) *Space {
	s := &Space{w: w, h: h, threshold: threshold}
	s.reset()
	return s
}

func (s *Space) reset() { s.free = append(s.free[:0], Rect{W: s.w, H: s.h}) }

// Free is the list of free rectangles, for reading.
func (s *Space) Free() []Rect { return s.free }

// Used is the list of placed rectangles, for reading.
func (s *Space) Used() []Rect { return s.used }

// Best finds where a w × h rectangle goes: into the smallest free rectangle
// that holds it (best area fit; the paper prints the inequalities reversed),
// at its bottom left. Of several as small, the lowest and then leftmost is
// taken. Slack is the area that the free rectangle has too much.
func (s *Space) Best(w, h int64) (at Rect, slack int64, ok bool) {
	best := -1
	for i, r := range s.free {
		if r.W < w || r.H < h {
			continue
		}
		if best < 0 || before(r, s.free[best]) {
			best = i
		}
	}
	if best < 0 {
		return Rect{}, 0, false
	}
	r := s.free[best]
	return Rect{X: r.X, Y: r.Y, W: w, H: h}, r.area() - w*h, true
}

func before(a, b Rect) bool {
	switch {
	case a.area() != b.area():
		return a.area() < b.area()
	case a.Y != b.Y:
		return a.Y < b.Y
	case a.X != b.X:
		return a.X < b.X
	}
	return a.W < b.W
}

// Place takes r, which must lie in a free rectangle, out of the free space.
func (s *Space) Place(r Rect) {
	s.used = append(s.used, r)
	s.cut(r)
}

// cut replaces each free rectangle that meets r by the up to four maximal
// rectangles around r in it, and drops those that lie in another. For the
// rectangle whose corner r was placed in, two remain: Algorithm 2's split.
func (s *Space) cut(r Rect) {
	kept := s.free[:0]
	pieces := s.pieces[:0]
	for _, f := range s.free {
		if f.Meets(r) {
			pieces = around(pieces, f, r)
		} else {
			kept = append(kept, f)
		}
	}
	// A piece may lie in what was kept or in another piece, but what was kept
	// cannot lie in a piece: it did not lie in the rectangle it comes from.
	for i, p := range pieces {
		if !inside(p, kept) && !inside(p, pieces[:i]) && !strictlyInside(p, pieces[i+1:]) {
			kept = append(kept, p)
		}
	}
	s.free, s.pieces = kept, pieces
}

func around(out []Rect, f, r Rect) []Rect {
	if w := r.X - f.X; w > 0 {
		out = append(out, Rect{f.X, f.Y, w, f.H})
	}
	if w := f.X + f.W - (r.X + r.W); w > 0 {
		out = append(out, Rect{r.X + r.W, f.Y, w, f.H})
	}
	if h := r.Y - f.Y; h > 0 {
		out = append(out, Rect{f.X, f.Y, f.W, h})
	}
	if h := f.Y + f.H - (r.Y + r.H); h > 0 {
		out = append(out, Rect{f.X, r.Y + r.H, f.W, h})
	}
	return out
}

func inside(r Rect, in []Rect) bool {
	return slices.ContainsFunc(in, func(o Rect) bool { return o.Contains(r) })
}

func strictlyInside(r Rect, in []Rect) bool {
	return slices.ContainsFunc(in, func(o Rect) bool { return o != r && o.Contains(r) })
}

// Release gives a placed rectangle back and says whether it was placed. It is
// listed as it is ("keep"), so that the same function finds its place again;
// free rectangles that would span it and its neighbours are missing until the
// list exceeds the threshold and is rebuilt from what is placed
// ("restructure").
func (s *Space) Release(r Rect) bool {
	i := slices.Index(s.used, r)
	if i < 0 {
		return false
	}
	s.used = slices.Delete(s.used, i, i+1)
	s.free = append(s.free, r)
	if len(s.free) > s.threshold {
		s.Restructure()
	}
	return true
}

// Restructure rebuilds the list of free rectangles from what is placed.
func (s *Space) Restructure() {
	s.reset()
	for _, r := range s.used {
		s.cut(r)
	}
}

// Rule says into which of the free rectangles that hold it a rectangle goes.
// It always goes to the bottom left corner there.
type Rule int

// The rules (Jylänki, A thousand ways to pack the bin, section 2.3). All break
// ties by the lower and then the lefter free rectangle.
const (
	bestArea      Rule = iota // the one of least area
	BestShortSide             // the one whose shorter leftover side is shortest
	bestLongSide              // the one whose longer leftover side is shortest
	BottomLeft                // the lowest and then leftmost
	Rules                     // how many there are
)

// Score orders places for one rectangle: less is better, First first. Under
// one rule scores of different spaces compare too.
type Score struct{ First, Second int64 }

// Less says whether s is the better one.
func (s Score) Less(o Score) bool {
	return s.First < o.First || s.First == o.First && s.Second < o.Second
}

func (r Rule) score(f Rect, w, h int64) Score {
	dw, dh := f.W-w, f.H-h
	switch r {
	case BestShortSide:
		return Score{min(dw, dh), max(dw, dh)}
	case bestLongSide:
		return Score{max(dw, dh), min(dw, dh)}
	case BottomLeft:
		return Score{f.Y, f.X}
	}
	return Score{f.W * f.H, min(dw, dh)}
}

// Find finds where a w × h rectangle goes by a rule.
func (s *Space) Find(w, h int64, rule Rule) (at Rect, score Score, ok bool) {
	best := -1
	for i, f := range s.free {
		if f.W < w || f.H < h {
			continue
		}
		c := rule.score(f, w, h)
		if best < 0 || c.Less(score) || c == score && lower(f, s.free[best]) {
			best, score = i, c
		}
	}
	if best < 0 {
		return Rect{}, Score{}, false
	}
	return Rect{X: s.free[best].X, Y: s.free[best].Y, W: w, H: h}, score, true
}

func lower(a, b Rect) bool { return a.Y < b.Y || a.Y == b.Y && a.X < b.X }

// Clear empties the space.
func (s *Space) Clear() {
	s.used = s.used[:0]
	s.reset()
}
