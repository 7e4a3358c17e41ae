// Package timetable maintains the free capacity of one GPU under the model tokens: the free share of its SMs
// at each moment of the window. A Line finds, takes and gives back turns. Packages place and joint use it.
package timetable

import (
	"cmp"
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
)

// Turn is a part of the window, [From, To).
type Turn struct{ From, To int64 }

// Line holds the free share over the window. Shares and times are integers.
type Line struct{ spans []span }

type span struct {
	Turn
	free int64
}

// New returns the line of an empty GPU with the given window and share of SMs.
func New(window, share int64) *Line { return &Line{[]span{{Turn{0, window}, share}}} }

// Free returns the sum of free share × time.
func (l *Line) Free() int64 {
	sum := int64(0)
	for _, s := range l.spans {
		sum += (s.To - s.From) * s.free
	}
	return sum
}

// Find returns turns, of the given total time, at which the share is free, or nil if there is not enough
// time. Turns need not be contiguous. It prefers the moments with the largest free share, which keeps the
// free share level.
func (l *Line) Find(time, share int64) []Turn {
	var fit []span
	for _, s := range l.spans {
		if s.free >= share {
			fit = append(fit, s)
		}
	}
	slices.SortStableFunc(fit, func(a, b span) int { return cmp.Compare(b.free, a.free) })
	var out []Turn
	for _, s := range fit {
		n := min(time, s.To-s.From)
		out = append(out, Turn{s.From, s.From + n})
		if time -= n; time == 0 {
			return out
		}
	}
	return nil
}

// Rects returns the maximal free rectangles: X and W are times, and H is the share that is free throughout.
func (l *Line) Rects() []maxrect.Rect {
	var out []maxrect.Rect
	for i, s := range l.spans {
		if s.free == 0 {
			continue
		}
		a, b := i, i
		for a > 0 && l.spans[a-1].free >= s.free {
			a--
		}
		for b+1 < len(l.spans) && l.spans[b+1].free >= s.free {
			b++
		}
		r := maxrect.Rect{X: l.spans[a].From, W: l.spans[b].To - l.spans[a].From, H: s.free}
		if !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out
}

// Reserve takes the share during the turns. If it is not free, it changes nothing and returns false.
func (l *Line) Reserve(turns []Turn, share int64) bool {
	for _, t := range turns {
		if t.From < 0 || t.From >= t.To || t.To > l.spans[len(l.spans)-1].To {
			return false
		}
		for _, s := range l.spans {
			if s.From < t.To && t.From < s.To && s.free < share {
				return false
			}
		}
	}
	l.change(turns, -share)
	return true
}

// Release frees a share that was taken.
func (l *Line) Release(turns []Turn, share int64) { l.change(turns, share) }

func (l *Line) change(turns []Turn, by int64) {
	for _, t := range turns {
		l.split(t.From)
		l.split(t.To)
		for i, s := range l.spans {
			if t.From <= s.From && s.To <= t.To {
				l.spans[i].free += by
			}
		}
	}
	l.join()
}

// split splits the span that contains a time.
func (l *Line) split(at int64) {
	for i, s := range l.spans {
		if s.From < at && at < s.To {
			l.spans[i].To = at
			l.spans = slices.Insert(l.spans, i+1, span{Turn{at, s.To}, s.free})
			return
		}
	}
}

// join merges adjacent spans with the same free share.
func (l *Line) join() {
	out := l.spans[:1]
	for _, s := range l.spans[1:] {
		if last := &out[len(out)-1]; last.free == s.free {
			last.To = s.To
		} else {
			out = append(out, s)
		}
	}
	l.spans = out
}
