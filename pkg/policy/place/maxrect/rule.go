package maxrect

// Rule says into which of the free rectangles that hold it a rectangle goes.
// It always goes to the bottom left corner there.
type Rule int

// The rules (Jylänki, A thousand ways to pack the bin, section 2.3). All break
// ties by the lower and then the lefter free rectangle.
const (
	BestArea      Rule = iota // the one of least area
	BestShortSide             // the one whose shorter leftover side is shortest
	BestLongSide              // the one whose longer leftover side is shortest
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
	case BestLongSide:
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
