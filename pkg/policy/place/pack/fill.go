package pack

import (
	"cmp"
	"math"
	"math/bits"
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
	mem    int64 // free in the bin
	// holes are the free rectangles. spare is the second buffer for renew.
	holes, spare []hole
	placed       []Placed // in this bin
	largest      int64    // key of the first rectangle in this bin, the largest of the remaining
}

// hole is a free rectangle with the first kind in order that fits it, if found is true. Its key is that
// kind's key, an upper bound before the first search, or -1 if no kind fits.
type hole struct {
	rect  maxrect.Rect
	kind  int
	key   int64
	found bool
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
		at, _, _ := f.space.Find(k.W, k.H, f.method.rule)
		f.space.Place(at)
		f.mem -= k.Mem
		f.pool.remove(kind, 1)
		if len(f.placed) == 0 {
			f.largest = f.method.order.key(k.W, k.H, f.bin)
		}
		f.placed = append(f.placed, Placed{Kind: kind, X: at.X, Y: at.Y})
	}
}

// next returns the first kind in order that fits any free rectangle, or -1 if none does. It searches
// the pool for a free rectangle only if that may yield a larger key. Earlier results for unchanged
// free rectangles stay valid while the kind has rectangles left, because the pool only shrinks; if no
// kind fitted, none ever will.
func (f *filler) next() int {
	f.renew()
	best, key := -1, int64(-1)
	for i := range f.holes {
		if h := &f.holes[i]; h.found && h.key > key && f.pool.remaining[h.kind] > 0 && f.pool.kinds[h.kind].Mem <= f.mem {
			best, key = h.kind, h.key
		}
	}
	for i := range f.holes {
		h := &f.holes[i]
		if h.key <= key {
			continue
		}
		h.kind, h.key = f.pool.first(h.rect.W, h.rect.H, f.mem, f.method.order, h.key)
		if h.found = h.kind >= 0; h.found && h.key > key {
			best, key = h.kind, h.key
		}
	}
	return best
}

// renew updates the holes to the free rectangles of the space. Unchanged rectangles come first in both
// lists, in the same order.
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
			f.spare = append(f.spare, hole{rect: r, key: min(f.largest, f.pool.maxKey(r.W, r.H, f.method.order))})
		}
	}
	f.holes, f.spare = f.spare, f.holes
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

// maxClasses is the largest number of classes of a pool. Searching a class costs far more than a step
// within it.
const maxClasses = 64

// pool holds the rectangles still to be packed and finds them by their largest allowed size. Kinds of
// similar width form a class, in which they are sorted by height.
type pool struct {
	kinds     []Kind
	bin       Bin
	remaining []int // by kind: remaining rectangles
	total     int   // of all kinds
	classes   []class
	slot      []slot // by kind
	tallest   int64
}

// slot is the position of a kind: its class and its index in the class.
type slot struct{ class, place int32 }

// class holds the kinds of a range of widths, in ascending order of height.
type class struct {
	widest int64
	kinds  []int32
	height []int64
	tree   []leaf // over kinds: the children of node i are 2i and 2i+1
	leaves int    // a power of two above the number of kinds
	lowest int    // index of the first kind with remaining rectangles
}

// leaf holds the least width and the least memory over some kinds with remaining rectangles.
type leaf struct{ w, mem int64 }

var none = leaf{math.MaxInt64, math.MaxInt64}

func (l leaf) merge(o leaf) leaf { return leaf{min(l.w, o.w), min(l.mem, o.mem)} }

func (l leaf) fits(w, mem int64) bool { return l.w <= w && l.mem <= mem }

func newPool(kinds []Kind, bin Bin) *pool {
	p := &pool{kinds: kinds, bin: bin, remaining: make([]int, len(kinds)), slot: make([]slot, len(kinds))}
	var sorted []int32
	for i, k := range kinds {
		if p.remaining[i] = k.Count; k.Count > 0 {
			sorted = append(sorted, int32(i))
			p.total += k.Count
		}
	}
	slices.SortFunc(sorted, func(a, b int32) int {
		return cmp.Or(cmp.Compare(kinds[a].W, kinds[b].W), cmp.Compare(a, b))
	})
	for len(sorted) > 0 {
		n := p.classSize(sorted)
		p.addClass(sorted[:n])
		sorted = sorted[n:]
	}
	return p
}

// classSize returns how many of the sorted kinds the next class takes: an equal share of them, and all
// that have the width of its last.
func (p *pool) classSize(sorted []int32) int {
	n := max(1, len(sorted)/max(1, maxClasses-len(p.classes)))
	if distinct(p.kinds, sorted) <= maxClasses-len(p.classes) {
		n = 1
	}
	for n < len(sorted) && p.kinds[sorted[n]].W == p.kinds[sorted[n-1]].W {
		n++
	}
	return n
}

// distinct returns the number of widths of sorted kinds, up to one more than mostClasses.
func distinct(kinds []Kind, sorted []int32) int {
	n := 0
	for i := 0; i < len(sorted) && n <= maxClasses; n++ {
		w := kinds[sorted[i]].W
		i += sort.Search(len(sorted)-i, func(j int) bool { return kinds[sorted[i+j]].W > w })
	}
	return n
}

func (p *pool) addClass(members []int32) {
	c := class{kinds: slices.Clone(members), leaves: 1 << bits.Len(uint(len(members)))}
	slices.SortFunc(c.kinds, func(a, b int32) int {
		return cmp.Or(cmp.Compare(p.kinds[a].H, p.kinds[b].H), cmp.Compare(p.kinds[a].W, p.kinds[b].W), cmp.Compare(b, a))
	})
	c.tree = make([]leaf, 2*c.leaves)
	for i := range c.tree {
		c.tree[i] = none
	}
	for i, k := range c.kinds {
		kind := p.kinds[k]
		c.widest = max(c.widest, kind.W)
		p.tallest = max(p.tallest, kind.H)
		c.height = append(c.height, kind.H)
		c.tree[c.leaves+i] = leaf{kind.W, kind.Mem}
		p.slot[k] = slot{int32(len(p.classes)), int32(i)}
	}
	for i := c.leaves - 1; i > 0; i-- {
		c.tree[i] = c.tree[2*i].merge(c.tree[2*i+1])
	}
	p.classes = append(p.classes, c)
}

// remove removes n rectangles of a kind.
func (p *pool) remove(kind, n int) {
	p.remaining[kind] -= n
	p.total -= n
	if p.remaining[kind] == 0 {
		s := p.slot[kind]
		p.classes[s.class].remove(int(s.place))
	}
}

func (c *class) remove(place int) {
	i := c.leaves + place
	c.tree[i] = none
	for i /= 2; i > 0; i /= 2 {
		c.tree[i] = c.tree[2*i].merge(c.tree[2*i+1])
	}
	for c.lowest < len(c.kinds) && c.tree[c.leaves+c.lowest] == none {
		c.lowest++
	}
}

// maxKey returns an upper bound of the keys of the rectangles that fit w × h.
func (p *pool) maxKey(w, h int64, o order) int64 {
	widest := &p.classes[len(p.classes)-1]
	return o.key(min(w, widest.widest), min(h, p.tallest), p.bin)
}

// manyKinds is the number of kinds from which some are always nearly alike, so that the choice among
// them does not matter.
const manyKinds = 2000

// sufficientKey returns the key from which a kind is as good as a kind with the key keyLimit.
func (p *pool) sufficientKey(keyLimit int64) int64 {
	if len(p.kinds) < manyKinds {
		return keyLimit
	}
	return keyLimit - keyLimit/128
}

// first returns the first kind in order, among the remaining kinds that fit w × h and mem, and its key.
// It returns -1 and -1 if none fits. It considers only the tallest kind of each class. The key keyLimit
// must be an upper bound.
func (p *pool) first(w, h, mem int64, o order, keyLimit int64) (kind int, key int64) {
	kind, key = -1, -1
	h = min(h, p.tallest)
	sufficient := p.sufficientKey(keyLimit)
	for i := len(p.classes) - 1; i >= 0 && key < sufficient; i-- {
		c := &p.classes[i]
		if !c.tree[1].fits(w, mem) || c.height[c.lowest] > h {
			continue
		}
		if o.key(min(w, c.widest), h, p.bin) <= key {
			if o == byArea || o == byWidth {
				break // narrower classes can only be worse
			}
			continue
		}
		k := c.highest(w, h, mem)
		if k < 0 {
			continue
		}
		if v := o.key(p.kinds[k].W, p.kinds[k].H, p.bin); v > key {
			kind, key = k, v
		}
	}
	return kind, key
}

// highest returns the last kind in the class that is at most h tall and fits, or -1.
func (c *class) highest(w, h, mem int64) int {
	n := sort.Search(len(c.height), func(i int) bool { return c.height[i] > h })
	// The kinds before n are the leaves to the left of n: climb the tree and search every left
	// neighbour.
	for i := c.leaves + n; i > 1; i /= 2 {
		if i&1 == 0 {
			continue
		}
		if at := c.lastIn(i-1, w, mem); at >= 0 {
			return int(c.kinds[at])
		}
	}
	return -1
}

// lastIn returns the index of the last kind under a node that fits, or -1.
func (c *class) lastIn(node int, w, mem int64) int {
	if !c.tree[node].fits(w, mem) {
		return -1
	}
	if node >= c.leaves {
		return node - c.leaves
	}
	if at := c.lastIn(2*node+1, w, mem); at >= 0 {
		return at
	}
	return c.lastIn(2*node, w, mem)
}
