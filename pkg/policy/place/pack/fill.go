package pack

import (
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
)

// filler fills one bin after the other with what is left in a pool.
type filler struct {
	pool  *pool
	bin   Bin
	how   method
	space *maxrect.Space
	mem   int64 // left in the bin
	// holes are the free rectangles; spare is the list's other half while it is
	// renewed.
	holes, spare []hole
	taken        []Placed // in this bin
	largest      int64    // key of what came first in this bin: nothing left has a larger one
}

// hole is a free rectangle, and the kind that comes first of what fits it as
// far as that was found; key is that kind's, or at least as large while nothing
// was looked for, or -1 when nothing fits.
type hole struct {
	rect  maxrect.Rect
	kind  int
	key   int64
	found bool
}

// fill packs all kinds: every bin takes, as long as anything fits, what comes
// first by the order. Of what was put into one bin nothing fits an earlier one,
// so this is first fit decreasing; but it never looks back at a full bin, and
// bins that come out alike are filled once.
func fill(kinds []Kind, bin Bin, how method) (bins []Filled, used int) {
	if how.flip {
		kinds, bin = flip(kinds), bin.flipped()
	}
	f := &filler{pool: newPool(kinds, bin), bin: bin, how: how, space: maxrect.New(bin.W, bin.H, 0)}
	for f.pool.total > 0 {
		f.fillBin()
		times := 1 + f.repeats()
		for _, t := range f.taken {
			f.pool.take(t.Kind, times-1)
		}
		b := Filled{Items: slices.Clone(f.taken), Times: times}
		if how.flip {
			for i, t := range b.Items {
				b.Items[i].X, b.Items[i].Y = t.Y, t.X
			}
		}
		bins = append(bins, b)
		used += times
	}
	return bins, used
}

func flip(kinds []Kind) []Kind {
	out := make([]Kind, len(kinds))
	for i, k := range kinds {
		out[i] = Kind{W: k.H, H: k.W, Mem: k.Mem, Count: k.Count}
	}
	return out
}

func (f *filler) fillBin() {
	f.space.Clear()
	f.taken = f.taken[:0]
	f.holes = f.holes[:0]
	f.mem, f.largest = math.MaxInt64, math.MaxInt64
	if f.bin.Mem > 0 {
		f.mem = f.bin.Mem
	}
	for f.pool.total > 0 {
		kind := f.next()
		if kind < 0 {
			return
		}
		k := f.pool.kinds[kind]
		at, _, _ := f.space.Find(k.W, k.H, f.how.rule)
		f.space.Place(at)
		f.mem -= k.Mem
		f.pool.take(kind, 1)
		if len(f.taken) == 0 {
			f.largest = f.how.order.key(k.W, k.H, f.bin)
		}
		f.taken = append(f.taken, Placed{Kind: kind, X: at.X, Y: at.Y})
	}
}

// next is the kind that comes first of what fits any free rectangle; -1 when
// nothing does. A free rectangle is looked up only when it may hold more than
// what was found so far. What was found for one that is still there holds as
// long as any of that kind is left, since nothing ever comes back; and one that
// nothing fitted stays so.
func (f *filler) next() int {
	f.renew()
	best, key := -1, int64(-1)
	for i := range f.holes {
		if h := &f.holes[i]; h.found && h.key > key && f.pool.left[h.kind] > 0 && f.pool.kinds[h.kind].Mem <= f.mem {
			best, key = h.kind, h.key
		}
	}
	for i := range f.holes {
		h := &f.holes[i]
		if h.key <= key {
			continue
		}
		h.kind, h.key = f.pool.first(h.rect.W, h.rect.H, f.mem, f.how.order, h.key)
		if h.found = h.kind >= 0; h.found && h.key > key {
			best, key = h.kind, h.key
		}
	}
	return best
}

// renew makes the holes those of the space. It lists what is still there
// before what is new, in the same order as before.
func (f *filler) renew() {
	f.spare = f.spare[:0]
	old := f.holes
	for _, r := range f.space.Free() {
		for len(old) > 0 && old[0].rect != r {
			old = old[1:]
		}
		if len(old) > 0 {
			f.spare = append(f.spare, old[0])
		} else {
			f.spare = append(f.spare, hole{rect: r, key: min(f.largest, f.pool.most(r.W, r.H, f.how.order))})
		}
	}
	f.holes, f.spare = f.spare, f.holes
}

// repeats is how many more bins would come out just like the one just filled:
// as long as no kind in it runs out, the same choices are made.
func (f *filler) repeats() int {
	times := math.MaxInt
	for _, t := range f.taken {
		need := 0
		for _, o := range f.taken {
			if o.Kind == t.Kind {
				need++
			}
		}
		times = min(times, f.pool.left[t.Kind]/need)
	}
	return times
}
