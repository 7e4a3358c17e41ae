package joint

import (
	"cmp"
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
)

// timeline is the free SM shares of a GPU over its window, for timetables: an
// instance may run at any moments that have its share free, its quota in all.
type timeline []span

type span struct {
	from, to int64
	free     int64 // SM share
}

func newTimeline() timeline { return timeline{{0, One, One}} }

// scale keeps areas of the whole line in 64 bits.
const scale = 1000

// area is time × SM share free, in One × One / scale.
func (t timeline) area() int64 {
	total := int64(0)
	for _, s := range t {
		total += (s.to - s.from) * (s.free / scale)
	}
	return total
}

// rects are the maximal rectangles under the line: X and W in time, H the
// share free throughout.
func (t timeline) rects() []maxrect.Rect {
	var out []maxrect.Rect
	for i, s := range t {
		if s.free == 0 {
			continue
		}
		a, b := i, i
		for a > 0 && t[a-1].free >= s.free {
			a--
		}
		for b+1 < len(t) && t[b+1].free >= s.free {
			b++
		}
		r := maxrect.Rect{X: t[a].from, W: t[b].to - t[a].from, H: s.free}
		if !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out
}

// turns gives an instance its time where most is free, so that what is free
// stays level; without enough time it gives none.
func (t timeline) turns(w, h int64) []Turn {
	fit := make([]int, 0, len(t))
	for i, s := range t {
		if s.free >= h {
			fit = append(fit, i)
		}
	}
	slices.SortStableFunc(fit, func(a, b int) int { return cmp.Compare(t[b].free, t[a].free) })
	var out []Turn
	for _, i := range fit {
		n := min(w, t[i].to-t[i].from)
		out = append(out, Turn{t[i].from, t[i].from + n})
		if w -= n; w == 0 {
			return out
		}
	}
	return nil
}

// take makes h of the share busy during the turns.
func (t timeline) take(turns []Turn, h int64) timeline {
	for _, turn := range turns {
		t = t.split(turn.From).split(turn.To)
		for i := range t {
			if t[i].from >= turn.From && t[i].to <= turn.To {
				t[i].free -= h
			}
		}
	}
	return t
}

// split makes at the end of one span and the start of the next.
func (t timeline) split(at int64) timeline {
	for i, s := range t {
		if s.from < at && at < s.to {
			out := append(timeline{}, t[:i]...)
			out = append(out, span{s.from, at, s.free}, span{at, s.to, s.free})
			return append(out, t[i+1:]...)
		}
	}
	return t
}
