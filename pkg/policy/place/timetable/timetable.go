// Package timetable keeps what is free of a GPU under the model tokens: at each
// moment of the window a share of its SMs.
package timetable

import (
	"cmp"
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
)

// Turn is a part of the window, [From, To).
type Turn struct{ From, To int64 }

// Line is the free share over the window. Shares and times are whole numbers.
type Line struct{ spans []span }

type span struct {
	Turn
	free int64
}

// New is the line of an empty GPU with that window and that share of SMs.
func New(window, share int64) *Line { return &Line{[]span{{Turn{0, window}, share}}} }

// Free is the free share × time.
func (l *Line) Free() int64 {
	sum := int64(0)
	for _, s := range l.spans {
		sum += (s.To - s.From) * s.free
	}
	return sum
}

// Find is when an instance can run that wants a share for so much of the
// window, in any pieces: first where most is free, so that what is left stays
// level. It is nil when there is not time enough.
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

// Rects are the maximal free rectangles: X and W in time, H the share that is
// free throughout.
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

// Take makes a share busy during the turns, unless it is not free there.
func (l *Line) Take(turns []Turn, share int64) bool {
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

// Give makes a share that was taken free again.
func (l *Line) Give(turns []Turn, share int64) { l.change(turns, share) }

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

// split makes a span end and the next begin at that time.
func (l *Line) split(at int64) {
	for i, s := range l.spans {
		if s.From < at && at < s.To {
			l.spans[i].To = at
			l.spans = slices.Insert(l.spans, i+1, span{Turn{at, s.To}, s.free})
			return
		}
	}
}

// join makes neighbours with as much free one.
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
