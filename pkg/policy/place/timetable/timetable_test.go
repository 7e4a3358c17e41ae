package timetable

import (
	"maps"
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
)

// twin holds the free share at every moment.
type twin []int64

func (w twin) can(turns []Turn, share int64) bool {
	for _, t := range turns {
		for m := t.From; m < t.To; m++ {
			if w[m] < share {
				return false
			}
		}
	}
	return true
}

func (w twin) change(turns []Turn, by int64) {
	for _, t := range turns {
		for m := t.From; m < t.To; m++ {
			w[m] += by
		}
	}
}

// fits reports whether an instance can have the share for that much time, in any pieces.
func (w twin) fits(time, share int64) bool {
	n := int64(0)
	for _, free := range w {
		if free >= share {
			n++
		}
	}
	return n >= time
}

// rects returns the longest runs of moments with at least a certain free share, once for each share that is
// the least of its run.
func (w twin) rects() map[maxrect.Rect]bool {
	out := map[maxrect.Rect]bool{}
	for from := range w {
		least := w[from]
		for to := from; to < len(w); to++ {
			least = min(least, w[to])
			wider := from > 0 && w[from-1] >= least || to+1 < len(w) && w[to+1] >= least
			if least > 0 && !wider {
				out[maxrect.Rect{X: int64(from), W: int64(to + 1 - from), H: least}] = true
			}
		}
	}
	return out
}

func TestAgainstEveryMoment(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const window, share = 20, 10
		line, simple := New(window, share), make(twin, window)
		for i := range simple {
			simple[i] = share
		}
		type reservation struct {
			turns []Turn
			share int64
		}
		var all []reservation
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			if len(all) > 0 && rapid.Bool().Draw(t, "give") {
				h := all[0]
				all = all[1:]
				line.Release(h.turns, h.share)
				simple.change(h.turns, h.share)
			}
			want, amount := int64(rapid.IntRange(1, window).Draw(t, "time")), int64(rapid.IntRange(1, share).Draw(t, "share"))
			turns := line.Find(want, amount)
			if (turns != nil) != simple.fits(want, amount) {
				t.Fatalf("Find(%d, %d) in %v: got turns %v, want success %v", want, amount, simple, turns, simple.fits(want, amount))
			}
			if rapid.Bool().Draw(t, "fixed") {
				from := int64(rapid.IntRange(0, window-1).Draw(t, "from"))
				turns = []Turn{{from, from + int64(rapid.IntRange(1, 5).Draw(t, "length"))}}
			}
			if turns == nil {
				continue
			}
			can := turns[len(turns)-1].To <= window && simple.can(turns, amount)
			if line.Reserve(turns, amount) != can {
				t.Fatalf("Reserve(%v, %d) in %v: got %v, want %v", turns, amount, simple, !can, can)
			}
			if can {
				simple.change(turns, -amount)
				all = append(all, reservation{turns, amount})
			}
			free := int64(0)
			for _, f := range simple {
				free += f
			}
			if line.Free() != free {
				t.Fatalf("free time: got %d, want %d", line.Free(), free)
			}
			rects := line.Rects()
			got := map[maxrect.Rect]bool{}
			for _, r := range rects {
				got[r] = true
			}
			if want := simple.rects(); len(rects) != len(got) || !maps.Equal(got, want) {
				t.Fatalf("rectangles: got %v, want %v", rects, want)
			}
		}
	})
}
