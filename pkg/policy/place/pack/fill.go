package pack

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"sort"

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

// mostClasses is how many classes of width a pool has. Looking one up costs
// far more than a step inside of one.
const mostClasses = 64

// pool is the rectangles still to be packed, found by how large they may be.
// Kinds of about the same width are a class, in which they are sorted by
// height.
type pool struct {
	kinds   []Kind
	bin     Bin
	left    []int // of each kind
	total   int   // of all kinds
	classes []class
	slot    []slot // of each kind
	tallest int64
}

// slot is where a kind is.
type slot struct{ class, place int32 }

// class is the kinds of some range of widths, the lowest first.
type class struct {
	widest int64
	kinds  []int32
	height []int64
	tree   []leaf // over kinds: node i has its children at 2i and 2i+1
	leaves int    // a power of two above the number of kinds
	lowest int    // the first of which any is left
}

// leaf is the least of both over some kinds of which any is left.
type leaf struct{ w, mem int64 }

var none = leaf{math.MaxInt64, math.MaxInt64}

func (l leaf) and(o leaf) leaf { return leaf{min(l.w, o.w), min(l.mem, o.mem)} }

func (l leaf) within(w, mem int64) bool { return l.w <= w && l.mem <= mem }

func newPool(kinds []Kind, bin Bin) *pool {
	p := &pool{kinds: kinds, bin: bin, left: make([]int, len(kinds)), slot: make([]slot, len(kinds))}
	var sorted []int32
	for i, k := range kinds {
		if p.left[i] = k.Count; k.Count > 0 {
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

// classSize is how many of the sorted kinds the next class takes: a fair
// share of them, and all that are as wide as its last.
func (p *pool) classSize(sorted []int32) int {
	n := max(1, len(sorted)/max(1, mostClasses-len(p.classes)))
	if distinct(p.kinds, sorted) <= mostClasses-len(p.classes) {
		n = 1
	}
	for n < len(sorted) && p.kinds[sorted[n]].W == p.kinds[sorted[n-1]].W {
		n++
	}
	return n
}

// distinct counts the widths of sorted kinds, up to one more than mostClasses.
func distinct(kinds []Kind, sorted []int32) int {
	n := 0
	for i := 0; i < len(sorted) && n <= mostClasses; n++ {
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
		c.tree[i] = c.tree[2*i].and(c.tree[2*i+1])
	}
	p.classes = append(p.classes, c)
}

// take takes n of a kind.
func (p *pool) take(kind, n int) {
	p.left[kind] -= n
	p.total -= n
	if p.left[kind] == 0 {
		s := p.slot[kind]
		p.classes[s.class].remove(int(s.place))
	}
}

func (c *class) remove(place int) {
	i := c.leaves + place
	c.tree[i] = none
	for i /= 2; i > 0; i /= 2 {
		c.tree[i] = c.tree[2*i].and(c.tree[2*i+1])
	}
	for c.lowest < len(c.kinds) && c.tree[c.leaves+c.lowest] == none {
		c.lowest++
	}
}

// most is at least the key of whatever fits w × h.
func (p *pool) most(w, h int64, o order) int64 {
	widest := &p.classes[len(p.classes)-1]
	return o.key(min(w, widest.widest), min(h, p.tallest), p.bin)
}

// manyKinds is from how many kinds on there are always some that are nearly
// alike, so that which of these is taken does not matter.
const manyKinds = 2000

// enough is from which key on a kind is as good as one of key most.
func (p *pool) enough(most int64) int64 {
	if len(p.kinds) < manyKinds {
		return most
	}
	return most - most/128
}

// first is the kind that comes first by the order among those left that fit w
// × h and mem; -1, and the key -1, when none does. Of a class only its tallest
// is looked at. No key is larger than most.
func (p *pool) first(w, h, mem int64, o order, most int64) (kind int, key int64) {
	kind, key = -1, -1
	h = min(h, p.tallest)
	enough := p.enough(most)
	for i := len(p.classes) - 1; i >= 0 && key < enough; i-- {
		c := &p.classes[i]
		if !c.tree[1].within(w, mem) || c.height[c.lowest] > h {
			continue
		}
		if o.key(min(w, c.widest), h, p.bin) <= key {
			if o == byArea || o == byWidth {
				break // narrower ones can only be worse
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

// highest is the last kind that is at most h tall and fits; -1 when none does.
func (c *class) highest(w, h, mem int64) int {
	n := sort.Search(len(c.height), func(i int) bool { return c.height[i] > h })
	// The kinds before n are the leaves left of it: climb, and look down into
	// every left neighbour.
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

// lastIn is the place of the last kind under a node that fits.
func (c *class) lastIn(node int, w, mem int64) int {
	if !c.tree[node].within(w, mem) {
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
