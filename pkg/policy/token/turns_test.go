package token

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// rect is a part of window × SMs, in fractions and percent.
type rect struct{ x, y, w, h float64 }

func (r rect) turns() []gpu.Turn { return []gpu.Turn{{From: r.x, To: min(1, r.x+r.w)}} }

// drawPacking cuts a GPU into rectangles, like a plan that leaves nothing over.
func drawPacking(t *rapid.T, r rect, depth int) []rect {
	cut := 0
	if depth > 0 {
		cut = rapid.IntRange(0, 2).Draw(t, "cut")
	}
	switch {
	case cut == 1 && r.w > 0.2:
		w := float64(rapid.IntRange(10, int(r.w*100+0.5)-10).Draw(t, "width")) / 100
		return append(drawPacking(t, rect{r.x, r.y, w, r.h}, depth-1), drawPacking(t, rect{r.x + w, r.y, r.w - w, r.h}, depth-1)...)
	case cut == 2 && r.h > 12:
		h := float64(rapid.IntRange(6, int(r.h+0.5)-6).Draw(t, "height"))
		return append(drawPacking(t, rect{r.x, r.y, r.w, h}, depth-1), drawPacking(t, rect{r.x, r.y + h, r.w, r.h - h}, depth-1)...)
	}
	return []rect{r}
}

// worst runs one instance a rectangle, none of which ever stops, and returns
// the most that one falls short of its request.
func worst(t testing.TB, window time.Duration, rects []rect, turns bool) (short float64) {
	w := newWorld(t, Config{Window: window}, 1)
	w.lag = window / 1000
	var workers []*worker
	for n, r := range rects {
		c := &worker{
			id: ClientID(n + 1), instance: string(rune('a' + n)), slice: slice(r.h, r.w, r.w),
			kernel: window / 100, loss: window / 500,
		}
		if turns {
			c.turns = r.turns()
		}
		workers = append(workers, w.join(c))
	}
	w.run(10 * window) // until it is known how long they take to drain
	before := make([]time.Duration, len(workers))
	for n, c := range workers {
		before[n] = w.total(c)
	}
	w.run(60 * window)
	for n, c := range workers {
		got := float64(w.total(c)-before[n]) / float64(50*window)
		if got > rects[n].w+0.02 {
			t.Errorf("instance %d used %.4f, limit %.4f", n, got, rects[n].w)
		}
		short = max(short, rects[n].w-got)
	}
	return short
}

// TestPlanned: on a GPU that a plan packed full, every instance that never
// stops gets its request less what switches cost: here a drain is up to 1% of a
// window and its report another 0.2%, twice a window.
func TestPlanned(t *testing.T) {
	for _, window := range []time.Duration{10 * ms, 100 * ms, time.Second} {
		t.Run(window.String(), func(t *testing.T) {
			greedy, planned := 0.0, 0.0
			rapid.Check(t, func(rt *rapid.T) {
				rects := drawPacking(rt, rect{0, 0, 1, 100}, 4)
				short := worst(t, window, rects, true)
				if short > 0.01 {
					rt.Errorf("an instance of %v is %.4f short of its request", rects, short)
				}
				planned, greedy = max(planned, short), max(greedy, worst(t, window, rects, false))
			})
			t.Logf("most short of its request: %.4f, without turns %.4f", planned, greedy)
		})
	}
}

// TestIdleOwner: an owner that holds nothing costs the others nothing, and one
// that comes late in its turn gets its SMs when the borrower has drained.
func TestIdleOwner(t *testing.T) {
	half := func(first bool) []gpu.Turn {
		if first {
			return []gpu.Turn{{From: 0, To: 0.5}}
		}
		return []gpu.Turn{{From: 0.5, To: 1}}
	}
	w := newWorld(t, Config{}, 1)
	owner := &worker{id: 1, instance: "a", slice: slice(100, 0.5, 0.5), turns: half(true), gap: time.Hour}
	w.step(AddInstance{Instance: "a", Slice: owner.slice, Turns: owner.turns})
	w.step(AddClient{Client: 1, Instance: "a"})
	w.clients[1] = owner
	busy := w.join(&worker{id: 2, instance: "b", slice: slice(100, 0.5, 1), turns: half(false), kernel: ms})
	w.run(5 * time.Second)
	if busy.revoked != 0 || w.total(busy) != 5*time.Second {
		t.Errorf("beside an idle owner: asked back %d times, used %v of 5s: %q", busy.revoked, w.total(busy), busy.reasons)
	}
	for n := range 10 {
		w.run(time.Duration(5000+100*n+4*n)*ms + ms)
		owner.waits, owner.longest, owner.burst = w.now, 0, 2*ms
		w.step(Request{1})
		w.run(w.now + 20*ms)
		if owner.longest > ms || owner.lease != 0 {
			t.Errorf("it came %v into its turn and waited %v", w.now%(100*ms)-20*ms, owner.longest)
		}
	}
}

// TestUnplanned: who comes to a GPU that is full of turns lives from what is
// left, which is next to nothing, but does not starve, and costs the plan no
// more than the package says.
func TestUnplanned(t *testing.T) {
	w := newWorld(t, Config{}, 1)
	var planned []*worker
	for n, r := range []rect{{0, 0, 0.6, 100}, {0.6, 0, 0.4, 50}, {0.6, 50, 0.4, 50}} {
		planned = append(planned, w.join(&worker{
			id: ClientID(n + 1), instance: string(rune('a' + n)), slice: slice(r.h, r.w, r.w), turns: r.turns(), kernel: ms / 2,
		}))
	}
	other := w.join(&worker{id: 9, instance: "z", slice: slice(24, 0.5, 1), kernel: ms / 2})
	w.run(20 * time.Second)
	if got := w.total(other).Seconds() / 20; got < 0.005 || got > 0.02 || other.longest > 1200*ms {
		t.Errorf("the unplanned one used %.4f and waited up to %v", got, other.longest)
	}
	for _, c := range planned {
		if got := w.total(c).Seconds() / 20; got < c.slice.QuotaRequest-0.02 {
			t.Errorf("instance %s used %.4f", c.instance, got)
		}
	}
}
