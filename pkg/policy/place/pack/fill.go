package pack

import (
	"cmp"
	"math"
	"slices"
	"sort"

	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
)

// filler fills one bin after the other with the remaining rectangles of a pool.
type filler struct {
	pool   *pool
	bin    Bin
	method method
	space  *maxrect.Space
	mem    int64    // free in the bin
	placed []Placed // in this bin
}

// fill packs all kinds. It fills each bin with the first rectangle in order that fits until none fits.
// No rectangle of a later bin fits an earlier one, so this is first fit decreasing, without searching
// full bins. It fills equal bins only once.
func fill(kinds []Kind, bin Bin, m method) (bins []Filled, used int) {
	if m.flip {
		kinds, bin = flip(kinds), bin.flipped()
	}
	f := &filler{pool: newPool(kinds, bin), bin: bin, method: m, space: maxrect.New(bin.W, bin.H, 0)}
	for f.pool.total > 0 {
		f.fillBin()
		times := 1 + f.repeats()
		for _, t := range f.placed {
			f.pool.remove(t.Kind, times-1)
		}
		b := Filled{Items: slices.Clone(f.placed), Times: times}
		if m.flip {
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
	f.placed = f.placed[:0]
	f.mem = math.MaxInt64
	if f.bin.Mem > 0 {
		f.mem = f.bin.Mem
	}
	for kind := f.next(); kind >= 0; kind = f.next() {
		k := f.pool.kinds[kind]
		at, _, _ := f.space.Find(k.W, k.H, f.method.rule)
		f.space.Place(at)
		f.mem -= k.Mem
		f.pool.remove(kind, 1)
		f.placed = append(f.placed, Placed{Kind: kind, X: at.X, Y: at.Y})
	}
}

// next returns the first kind in order that fits any free rectangle, or -1 if none does.
func (f *filler) next() int {
	best, key := -1, int64(-1)
	for _, r := range f.space.Free() {
		if kind, k := f.pool.first(r.W, r.H, f.mem, f.method.order, key); kind >= 0 {
			best, key = kind, k
		}
	}
	return best
}

// repeats returns how many more bins would be filled exactly like the last one: the choices are the
// same until a kind in it runs out.
func (f *filler) repeats() int {
	times := math.MaxInt
	for _, t := range f.placed {
		perBin := 0
		for _, o := range f.placed {
			if o.Kind == t.Kind {
				perBin++
			}
		}
		times = min(times, f.pool.remaining[t.Kind]/perBin)
	}
	return times
}

// maxClasses is the largest number of classes of a pool if there are many widths. With more classes, first looks at more
// of them; with fewer, it looks at more kinds within each.
const maxClasses = 64

// pool holds the rectangles still to be packed and finds them by their largest allowed size. Kinds of
// similar width form a class, in which they are sorted by height.
type pool struct {
	kinds     []Kind
	bin       Bin
	remaining []int // by kind: remaining rectangles
	total     int   // of all kinds
	classes   []class
	classOf   []int // by kind with rectangles
}

// class holds the kinds of a range of widths with remaining rectangles, in ascending order of height.
type class struct {
	narrowest, widest int64
	kinds             []int
}

func newPool(kinds []Kind, bin Bin) *pool {
	p := &pool{kinds: kinds, bin: bin, remaining: make([]int, len(kinds)), classOf: make([]int, len(kinds))}
	var sorted []int
	widths := map[int64]bool{}
	for i, k := range kinds {
		if p.remaining[i] = k.Count; k.Count > 0 {
			sorted = append(sorted, i)
			p.total += k.Count
			widths[k.W] = true
		}
	}
	slices.SortStableFunc(sorted, func(a, b int) int { return cmp.Compare(kinds[a].W, kinds[b].W) })
	size := 1 // of a class, at least; a class has all kinds of a width
	if len(widths) > maxClasses {
		size += len(sorted) / maxClasses
	}
	for len(sorted) > 0 {
		n := min(size, len(sorted))
		for n < len(sorted) && kinds[sorted[n]].W == kinds[sorted[n-1]].W {
			n++
		}
		p.addClass(sorted[:n])
		sorted = sorted[n:]
	}
	return p
}

// addClass adds a class of kinds in ascending order of width.
func (p *pool) addClass(members []int) {
	c := class{narrowest: p.kinds[members[0]].W, widest: p.kinds[members[len(members)-1]].W, kinds: slices.Clone(members)}
	slices.SortFunc(c.kinds, func(a, b int) int {
		return cmp.Or(cmp.Compare(p.kinds[a].H, p.kinds[b].H), cmp.Compare(p.kinds[a].W, p.kinds[b].W), cmp.Compare(b, a))
	})
	for _, kind := range members {
		p.classOf[kind] = len(p.classes)
	}
	p.classes = append(p.classes, c)
}

// remove removes n rectangles of a kind.
func (p *pool) remove(kind, n int) {
	p.remaining[kind] -= n
	p.total -= n
	if p.remaining[kind] == 0 {
		c := &p.classes[p.classOf[kind]]
		c.kinds = slices.DeleteFunc(c.kinds, func(other int) bool { return other == kind })
	}
}

// first returns the first kind in order, among the remaining kinds that fit w × h and mem, and its key.
// It returns -1 if none with a key above the given one fits. It considers only the tallest kind of each
// class.
func (p *pool) first(w, h, mem int64, o order, above int64) (kind int, key int64) {
	kind, key = -1, above
	for i := len(p.classes) - 1; i >= 0; i-- {
		c := &p.classes[i]
		if len(c.kinds) == 0 || c.narrowest > w {
			continue
		}
		tallest := p.kinds[c.kinds[len(c.kinds)-1]].H
		if o.key(min(w, c.widest), min(h, tallest), p.bin) <= key {
			continue
		}
		if k := p.highest(c, w, h, mem); k >= 0 {
			if v := o.key(p.kinds[k].W, p.kinds[k].H, p.bin); v > key {
				kind, key = k, v
			}
		}
	}
	return kind, key
}

// highest returns the last kind in the class that is at most h tall and fits, or -1.
func (p *pool) highest(c *class, w, h, mem int64) int {
	at := sort.Search(len(c.kinds), func(i int) bool { return p.kinds[c.kinds[i]].H > h })
	for at--; at >= 0; at-- {
		if k := p.kinds[c.kinds[at]]; k.W <= w && k.Mem <= mem {
			return c.kinds[at]
		}
	}
	return -1
}
