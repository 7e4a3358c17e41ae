// Package maxrect maintains the free space of one GPU as a list of maximal free rectangles
// (FaST-GShare, section 3.4.2, Algorithm 2). A Space finds places for rectangles, by best area fit
// or by other rules, and handles releases. Coordinates are integers, so sums are exact. The planners
// in package place and its subpackages joint and pack use it.
package maxrect

import "slices"

// Rect is the rectangle [X, X+W) × [Y, Y+H).
type Rect struct{ X, Y, W, H int64 }

func (r Rect) area() int64 { return r.W * r.H }

// Contains reports whether o lies completely in r.
func (r Rect) Contains(o Rect) bool {
	return r.X <= o.X && r.Y <= o.Y && o.X+o.W <= r.X+r.W && o.Y+o.H <= r.Y+r.H
}

// Meets reports whether the interiors of r and o intersect.
func (r Rect) Meets(o Rect) bool {
	return r.X < o.X+o.W && o.X < r.X+r.W && r.Y < o.Y+o.H && o.Y < r.Y+r.H
}

// DefaultThreshold is the default length of the list of free rectangles at which a Space
// restructures it. In random fills of a GPU with FaST's configurations (SM share 6 to 100%, quota
// 0.2 to 1) without releases, the list has at most 3 rectangles in half of the fills, and at most 10
// in 100,000 fills. A longer list therefore results from fragments after releases.
const DefaultThreshold = 10

// Space is the free space of one W × H GPU. No listed rectangle contains another. Until the first
// release, the list holds exactly the maximal free rectangles; after a release, it may lack some
// (see Release).
type Space struct {
	w, h      int64
	threshold int
	free      []Rect
	used      []Rect
	fragments []Rect // scratch space of cut
}

// New returns an empty space. After a release, the list of free rectangles is restructured if it is
// longer than threshold; with 0, after each release.
func New(w, h int64, threshold int) *Space {
	s := &Space{w: w, h: h, threshold: threshold}
	s.reset()
	return s
}

func (s *Space) reset() { s.free = append(s.free[:0], Rect{W: s.w, H: s.h}) }

// Free returns the list of free rectangles. The caller must not change it.
func (s *Space) Free() []Rect { return s.free }

// Used returns the list of placed rectangles. The caller must not change it.
func (s *Space) Used() []Rect { return s.used }

// Best finds a place for a w × h rectangle: the bottom left corner of the smallest free rectangle
// that holds it (best area fit; the paper prints the inequalities reversed). Ties go to the lowest,
// then the leftmost. The slack is the excess area of the free rectangle.
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

// Place removes r, which must lie in a free rectangle, from the free space.
func (s *Space) Place(r Rect) {
	s.used = append(s.used, r)
	s.cut(r)
}

// cut replaces each free rectangle that meets r by the up to four maximal rectangles around r in it,
// and drops rectangles that lie in another. Two remain of the rectangle in whose corner r was
// placed: the split of Algorithm 2.
func (s *Space) cut(r Rect) {
	kept := s.free[:0]
	pieces := s.fragments[:0]
	for _, f := range s.free {
		if f.Meets(r) {
			pieces = around(pieces, f, r)
		} else {
			kept = append(kept, f)
		}
	}
	// A piece may lie in a kept rectangle or in another piece. A kept rectangle cannot lie in
	// a piece, because it did not lie in the rectangle that the piece is from.
	for i, p := range pieces {
		if !inside(p, kept) && !inside(p, pieces[:i]) && !strictlyInside(p, pieces[i+1:]) {
			kept = append(kept, p)
		}
	}
	s.free, s.fragments = kept, pieces
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

// Release frees a placed rectangle and reports whether it was placed. It adds the rectangle itself
// to the list ("keep"), so that an instance of the same function fits there again. Free rectangles
// that span it and its neighbours are missing until the list exceeds the threshold and is rebuilt
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

// Restructure rebuilds the list of free rectangles from the placed rectangles.
func (s *Space) Restructure() {
	s.reset()
	for _, r := range s.used {
		s.cut(r)
	}
}

// Rule selects among the free rectangles that hold a rectangle. The place is always at the bottom
// left corner of the free rectangle.
type Rule int

// The rules (Jylänki, A thousand ways to pack the bin, section 2.3). Ties go to the lower, then the
// more left free rectangle.
const (
	bestArea      Rule = iota // the least area
	BestShortSide             // the least shorter leftover side
	bestLongSide              // the least longer leftover side
	BottomLeft                // the lowest, then the leftmost
	Rules                     // the number of rules
)

// Score orders places for one rectangle: lower scores are better, and First takes precedence. Under
// one rule, scores of different spaces are comparable.
type Score struct{ First, Second int64 }

// Less reports whether s is better than o.
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

// Find finds a place for a w × h rectangle by a rule.
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

// Clear frees all rectangles.
func (s *Space) Clear() {
	s.used = s.used[:0]
	s.reset()
}
